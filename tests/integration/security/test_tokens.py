"""Bearer tokens: S2, and keys of issuers that change or cannot be fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dejaq
from dejaq.errors import Code, DejaqError, Unauthenticated, Unavailable
from dejaq.protocol.v1 import access_pb2 as access
from dejaq.security.fetching import fetch_json
from dejaq.security.issuer_keys import FORCED_SECONDS, REFRESH_SECONDS, IssuerKeys
from dejaq.security.settings import Issuer
from dejaq.security.tokens import TokenVerifier
from dejaq.timekeeper.clock import SystemClock
from tests.integration.security.conftest import Endpoints
from tests.integration.security.issuer import AUDIENCE, ForgingIssuer, serving

Make = Callable[[ForgingIssuer], str]

REFUSED: dict[str, Make] = {
    "not a token": lambda issuer: "hello",
    "two parts": lambda issuer: issuer.token().rpartition(".")[0],
    "no algorithm": lambda issuer: issuer.forged({"alg": "none", "kid": "one"}),
    "no algorithm in capitals": lambda issuer: issuer.forged({"alg": "NONE", "kid": "one"}),
    "algorithm confusion": lambda issuer: issuer.confused(),
    "no signature": lambda issuer: issuer.forged({"alg": "RS256", "kid": "one"}),
    "signature of another key": lambda issuer: issuer.token(issuer.other),
    "signature of a key of another kind": lambda issuer: issuer.forged({"alg": "ES256", "kid": "one"}, b"x" * 64),
    "changed claims": lambda issuer: ".".join(
        (
            issuer.token().split(".")[0],
            issuer.forged({}, preferred_username="root").split(".")[1],
            issuer.token().split(".")[2],
        )
    ),
    "key in the header": lambda issuer: issuer.token(issuer.other, header={"jwk": issuer.other.as_dict(private=False)}),
    "critical extension": lambda issuer: issuer.forged({"alg": "RS256", "kid": "one", "crit": ["b64"]}),
    "unknown key": lambda issuer: issuer.forged({"alg": "RS256", "kid": "three"}, b"x" * 256),
    "key id that is no text": lambda issuer: issuer.forged({"alg": "RS256", "kid": ["one"]}, b"x" * 256),
    "other issuer": lambda issuer: issuer.token(iss="https://elsewhere.example.org"),
    "no issuer": lambda issuer: issuer.token(iss=None),
    "issuer that is no text": lambda issuer: issuer.token(iss=["a"]),
    "other audience": lambda issuer: issuer.token(aud="mail"),
    "other audiences": lambda issuer: issuer.token(aud=["mail", "calendar"]),
    "no audience": lambda issuer: issuer.token(aud=None),
    "expired": lambda issuer: issuer.token(exp=int(time.time()) - 1),
    "no end": lambda issuer: issuer.token(exp=None),
    "end that is no number": lambda issuer: issuer.token(exp="tomorrow"),
    "end that is true": lambda issuer: issuer.token(exp=True),
    "not yet valid": lambda issuer: issuer.token(nbf=int(time.time()) + 600),
    "issued in the future": lambda issuer: issuer.token(iat=int(time.time()) + 600),
    "no user": lambda issuer: issuer.token(preferred_username=None),
    "user that is no text": lambda issuer: issuer.token(preferred_username={"a": 1}),
    "user that looks like the full name of another issuer's": lambda issuer: issuer.token(
        preferred_username="corp/alice"
    ),
    "user with a line break": lambda issuer: issuer.token(preferred_username="alice\nroot"),
    "too many groups": lambda issuer: issuer.token(groups=[f"g{number}" for number in range(300)]),
    "huge": lambda issuer: issuer.token(padding="x" * 9_000),
    "deep": lambda issuer: issuer.forged({"alg": "RS256", "kid": "one"}) + "." + "[" * 3_000,
    "wrong key": lambda issuer: f"dq_{'0' * 12}_{'0' * 64}",
    "half a key": lambda issuer: "dq_abc",
}


@pytest.fixture(scope="module")
def issuer() -> Iterator[ForgingIssuer]:
    with serving(ForgingIssuer()) as made:
        yield made


@pytest.fixture
def auth_file(tmp_path: Path, issuer: ForgingIssuer) -> Path:
    path = tmp_path / "auth.toml"
    path.write_text(issuer.settings)
    return path


async def test_a_good_token_names_the_user_and_the_groups(
    auth_file: Path, issuer: ForgingIssuer, endpoints: Endpoints
) -> None:
    async with endpoints.broker(auth=auth_file) as broker:
        for token in (issuer.token(), issuer.token(issuer.second, aud=["mail", AUDIENCE], groups="staff")):
            async with dejaq.connect(endpoints.url(broker, tls=False), token=token) as client:
                caller = await client._seeds.call(
                    "Access.WhoAmI", access.WhoAmIRequest(), access.WhoAmIResponse, patience=client._settings
                )
                assert (caller.principal, caller.user, list(caller.groups)) == ("user:corp/alice", "alice", ["staff"])
                assert caller.session


@pytest.mark.parametrize("case", REFUSED)
async def test_s2_a_bad_token_is_refused(auth_file: Path, issuer: ForgingIssuer, case: str) -> None:
    token = REFUSED[case](issuer)
    async with dejaq.Broker(auth=auth_file) as broker:
        from dejaq.security.base import Credentials

        gate = broker.central.access.gate
        with pytest.raises(Unauthenticated) as caught:
            await gate.identify(Credentials(bearer=token), "test")
        # S8: neither the error nor the metrics repeat the token.
        for part in (one for one in token.split(".") if len(one) > 20):
            assert part not in str(caught.value)
            assert part.encode() not in broker.central.metrics.render()


@pytest.mark.parametrize("case", ["no algorithm", "expired", "wrong key", "not a token", ""])
async def test_s2_no_endpoint_serves_a_bad_token(
    auth_file: Path, issuer: ForgingIssuer, endpoints: Endpoints, case: str
) -> None:
    given: dict[str, Any] = {"token": REFUSED[case](issuer)} if case else {}
    async with endpoints.broker(auth=auth_file) as broker:
        with pytest.raises(DejaqError) as caught:
            async with dejaq.connect(endpoints.url(broker, tls=False), **given):
                raise AssertionError("the broker served this client")
        assert caught.value.code is Code.UNAUTHENTICATED
        assert len(broker.central.access.gate.streams) == 0


async def test_a_token_is_not_sent_over_a_network_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DejaqError, match="dejaqs://"):
        async with dejaq.connect("dejaq://broker.example.org:7400", token="secret"):
            raise AssertionError("the token was sent")


def verifier_of(issuer: ForgingIssuer) -> tuple[TokenVerifier, list[float]]:
    """A verifier whose monotonic clock a test moves."""
    now = [1_000.0]
    known = Issuer(alias="corp", issuer=issuer.url, audience=(AUDIENCE,))
    return TokenVerifier([(known, IssuerKeys(known, fetch=fetch_json, monotonic=lambda: now[0]))]), now


def later(seconds: float) -> int:
    """The time in microseconds, so that a token is verified again and not remembered."""
    return SystemClock().now_us() + int(seconds * 1_000_000)


async def test_keys_stay_in_use_while_the_issuer_is_away() -> None:
    with serving(ForgingIssuer()) as issuer:
        verifier, now = verifier_of(issuer)
        token = issuer.token()
        issuer.down = True
        with pytest.raises(Unavailable):
            await verifier.verify(token, later(0))
        # It is not asked again at once, however many callers come.
        issuer.down = False
        with pytest.raises(Unavailable):
            await verifier.verify(token, later(0))
        assert issuer.fetches == 0
        now[0] += FORCED_SECONDS
        assert (await verifier.verify(token, later(0))).principal.user == "alice"
        issuer.down = True
        now[0] += 10 * REFRESH_SECONDS
        assert (await verifier.verify(token, later(61))).principal.user == "alice"


async def test_new_keys_are_found_and_unknown_ones_do_not_make_the_broker_ask_again_and_again() -> None:
    with serving(ForgingIssuer()) as issuer:
        verifier, now = verifier_of(issuer)
        await verifier.verify(issuer.token(), later(0))
        assert issuer.fetches == 1
        issuer.published = [issuer.second]
        for number in range(50):
            with pytest.raises(Unauthenticated):
                await verifier.verify(issuer.forged({"alg": "RS256", "kid": f"k{number}"}, b"x"), later(0))
        assert issuer.fetches == 1
        now[0] += FORCED_SECONDS
        with pytest.raises(Unauthenticated):
            await verifier.verify(issuer.forged({"alg": "RS256", "kid": "fresh"}, b"x"), later(0))
        assert issuer.fetches == 2
        # The key that the issuer withdrew is not used any more, also for a token that was verified before.
        with pytest.raises(Unauthenticated):
            await verifier.verify(issuer.token(), later(61))
        assert (await verifier.verify(issuer.token(issuer.second), later(0))).principal.user == "alice"


async def test_users_of_two_issuers_with_one_name_are_two_users(tmp_path: Path, issuer: ForgingIssuer) -> None:
    with serving(ForgingIssuer()) as second:
        path = tmp_path / "two.toml"
        both = issuer.settings + second.settings.replace('"corp"', '"guests"')
        path.write_text(both)
        with pytest.raises(DejaqError, match="user_prefix"):
            dejaq.Broker(auth=path)
        path.write_text(both + 'user_prefix = "guest."\n')
        async with dejaq.Broker(auth=path) as broker:
            from dejaq.security.base import Credentials

            gate = broker.central.access.gate
            users = [
                (await gate.identify(Credentials(bearer=one.token()), "test"))[0].principal for one in (issuer, second)
            ]
            assert [user.name for user in users] == ["user:corp/alice", "user:guests/alice"]
            assert [user.user for user in users] == ["alice", "guest.alice"]
            assert [sorted(user.groups) for user in users] == [["staff"], ["guest.staff"]]
