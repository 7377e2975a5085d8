from __future__ import annotations

import dataclasses
import pickle

import pytest

from dejaq.domain.context import ANONYMOUS, BROKER, CallContext, Principal, PrincipalKind
from dejaq.errors import Code, error_of
from dejaq.security.base import Credentials


def test_the_journal_records_every_principal_but_the_anonymous_one() -> None:
    alice = Principal("user:corp/alice", kind=PrincipalKind.USER, user="alice", groups=frozenset({"staff"}))
    assert [one.recorded for one in (ANONYMOUS, BROKER, alice)] == ["", "broker", "user:corp/alice"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        alice.admin = True  # type: ignore[misc]


def test_a_frame_keeps_the_caller_and_the_session_of_its_stream() -> None:
    caller = Principal("key:k1", kind=PrincipalKind.KEY, user="alice")
    stream = CallContext("r1", "ipv4:127.0.0.1:1", caller, 5.0, session_id="s1")
    assert stream.of_frame(7) == dataclasses.replace(stream, request_id="r1/7")


def test_credentials_do_not_show_their_secret() -> None:
    assert "secret" not in repr(Credentials(bearer="dq_id_secret", device="laptop"))


@pytest.mark.parametrize("code", [Code.UNAUTHENTICATED, Code.PERMISSION_DENIED])
def test_a_refused_caller_gets_a_final_error_that_can_be_pickled(code: Code) -> None:
    error = error_of(code)
    assert not error.retryable
    assert not error.indefinite
    assert pickle.loads(pickle.dumps(error)).code is code
