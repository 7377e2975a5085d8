"""What ends a session permanently, and how much of the shared limits one caller may use."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from dejaq import limits
from dejaq.errors import DejaqError
from dejaq.sdk.admin.access import AccessCalls
from tests.integration.security.conftest import Endpoints
from tests.integration.security.issuer import ForgingIssuer
from tests.integration.security.test_access import ROOT, auth_file, connect, issuer, open_topic

__all__ = ["auth_file", "issuer"]


async def test_an_ended_login_stays_refused_under_another_device_name_and_after_a_refresh(
    auth_file: Path, issuer: ForgingIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client chooses the name of its device, so the provider's session (`sid`) or the token itself is refused."""
    endpoints = Endpoints("websocket")
    stolen = {"with a session": issuer.token(sid="laptop-7"), "without one": issuer.token(jti="1")}
    later = int(time.time()) + 30
    refreshed, other = issuer.token(sid="laptop-7", iat=later), issuer.token(sid="phone-1", iat=later)
    async with endpoints.broker(auth=auth_file) as broker, connect(endpoints, broker, api_key=ROOT) as root:
        admin = AccessCalls(root)
        for round_, token in enumerate(stolen.values()):
            monkeypatch.setattr(socket, "gethostname", lambda number=round_: f"laptop{number}")
            async with connect(endpoints, broker, token=token) as alice:
                session = (await AccessCalls(alice).who_am_i()).session
                if round_ == 0:
                    await open_topic(broker, root)
                async with alice.consumer("mail"):
                    await admin.end_session(session)
        # Ended a second time with other logins: the first ones stay refused.
        monkeypatch.setattr(socket, "gethostname", lambda: "laptop0")
        third = issuer.token(sid="laptop-8", iat=later)
        async with connect(endpoints, broker, token=third) as alice, alice.consumer("mail"):
            await admin.end_session((await AccessCalls(alice).who_am_i()).session)
        monkeypatch.setattr(socket, "gethostname", lambda: "a new name")
        for token in (*stolen.values(), refreshed, third):
            with pytest.raises(DejaqError, match="this session was ended"):
                async with connect(endpoints, broker, token=token):
                    pass
        async with connect(endpoints, broker, token=other) as alice:
            assert (await AccessCalls(alice).who_am_i()).user == "alice"


async def test_an_ended_key_is_refused_under_every_device_name(
    auth_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key has one session on all of its devices, because the client chooses the names of these."""
    endpoints = Endpoints("websocket")
    async with endpoints.broker(auth=auth_file) as broker, connect(endpoints, broker, api_key=ROOT) as root:
        admin = AccessCalls(root)
        (info, key), (other, other_key) = [await admin.create_key(user="bob") for _ in range(2)]
        await open_topic(broker, root)
        monkeypatch.setattr(socket, "gethostname", lambda: "laptop")
        async with connect(endpoints, broker, api_key=key) as bob, bob.consumer("mail"):
            monkeypatch.setattr(socket, "gethostname", lambda: "phone")
            async with connect(endpoints, broker, api_key=key) as phone, phone.consumer("mail"):
                listed = {one.id: one for one in await admin.sessions() if one.principal == f"key:{info.id}"}
                assert [one.device for one in listed.values()] == ["laptop, phone"]
                await admin.end_session(next(iter(listed)))
        monkeypatch.setattr(socket, "gethostname", lambda: "a new name")
        with pytest.raises(DejaqError, match="this session was ended"):
            async with connect(endpoints, broker, api_key=key):
                pass
        async with connect(endpoints, broker, api_key=other_key) as bob:
            assert (await AccessCalls(bob).who_am_i()).principal == f"key:{other.id}"


async def test_one_user_cannot_use_up_the_shared_limits(
    auth_file: Path, issuer: ForgingIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "API_KEYS_PER_USER_MAX", 2)
    monkeypatch.setattr(limits, "RULES_PER_USER_MAX", 2)
    monkeypatch.setattr(limits, "ENDED_SESSIONS_PER_USER_MAX", 1)
    endpoints = Endpoints("websocket")
    async with (
        endpoints.broker(auth=auth_file) as broker,
        connect(endpoints, broker, api_key=ROOT) as root,
        connect(endpoints, broker, token=issuer.token(sid="one")) as alice,
    ):
        calls, rights = AccessCalls(alice), alice.rights()
        keys = [(await calls.create_key())[0] for _ in range(2)]
        with pytest.raises(DejaqError, match="alice has 2 keys"):
            await calls.create_key()
        await calls.revoke_key(keys[0].id)
        await calls.create_key()
        for name in ("a", "b"):
            await rights.allow("user:bob", ["read"], f"~alice/{name}")
        with pytest.raises(DejaqError, match="has made 2 rules"):
            await rights.allow("user:bob", ["read"], "~alice/c")
        await root.rights().allow("user:bob", ["read"], "~alice/c")
        session = (await calls.who_am_i()).session
        await calls.end_session(session)
        async with connect(endpoints, broker, token=issuer.token(sid="two", iat=int(time.time()) + 30)) as again:
            with pytest.raises(DejaqError, match="has ended 1 sessions within a week"):
                await AccessCalls(again).end_session(session)
        # An administrator has no such limit, and others are not concerned.
        await AccessCalls(root).create_key(user="alice")
        with pytest.raises(DejaqError, match="no '/' in its name"):
            await AccessCalls(root).create_key(user="corp/alice")
