"""The identity of the caller, API keys, and sessions of users, for programs that administrate a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from dejaq.protocol.transport import Response
from dejaq.protocol.v1 import access_pb2 as access
from dejaq.sdk.client import Client


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller as the broker sees it. `expires_ms` is 0 for credentials without an end."""

    principal: str
    kind: str
    user: str
    groups: tuple[str, ...]
    session: str
    device: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """An API key without its secret. `expires_ms` is 0 for a key without an end."""

    id: str
    user: str
    groups: tuple[str, ...]
    label: str
    made_by: str
    made_ms: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A user on a device, at one broker."""

    id: str
    principal: str
    device: str
    broker: str
    streams: int
    peers: tuple[str, ...]
    since_ms: int
    expires_ms: int


class AccessCalls:
    """The calls of the `Access` service."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _call(self, method: str, request: Message, response: type[Response]) -> Response:
        client = self._client
        return await client._seeds.call(f"Access.{method}", request, response, patience=client._settings)

    async def who_am_i(self) -> Caller:
        """The caller as the broker sees it."""
        answer = await self._call("WhoAmI", access.WhoAmIRequest(), access.WhoAmIResponse)
        return Caller(
            principal=answer.principal,
            kind=answer.kind,
            user=answer.user,
            groups=tuple(answer.groups),
            session=answer.session,
            device=answer.device,
            expires_ms=answer.expires_ms,
        )

    async def create_key(
        self, *, user: str = "", groups: Sequence[str] = (), label: str = "", lifetime_ms: int = 0
    ) -> tuple[KeyInfo, str]:
        """Make a key; returns it with its secret, which cannot be read again.

        The call is not repeated, since each one makes a key.
        """
        request = access.CreateKeyRequest(user=user, groups=groups, label=label, lifetime_ms=lifetime_ms)
        client = self._client
        transport = client._seeds.first()
        answer = await transport.call("Access.CreateKey", request, access.CreateKeyResponse, client._settings.timeout)
        return _key(answer.key), answer.secret

    async def keys(self) -> list[KeyInfo]:
        """The keys that the caller may revoke."""
        answer = await self._call("ListKeys", access.ListKeysRequest(), access.ListKeysResponse)
        return [_key(key) for key in answer.keys]

    async def revoke_key(self, key_id: str) -> None:
        """Have every broker refuse a key; raises NOT_FOUND."""
        await self._call("RevokeKey", access.RevokeKeyRequest(id=key_id), access.RevokeKeyResponse)

    async def sessions(self) -> list[SessionInfo]:
        """The open sessions that the caller may end."""
        answer = await self._call("ListSessions", access.ListSessionsRequest(), access.ListSessionsResponse)
        return [
            SessionInfo(
                id=one.id,
                principal=one.principal,
                device=one.device,
                broker=one.broker,
                streams=one.streams,
                peers=tuple(one.peers),
                since_ms=one.since_ms,
                expires_ms=one.expires_ms,
            )
            for one in answer.sessions
        ]

    async def end_session(self, session_id: str) -> None:
        """End a session at every broker; raises NOT_FOUND."""
        await self._call("EndSession", access.EndSessionRequest(id=session_id), access.EndSessionResponse)


def _key(proto: access.ApiKeyInfo) -> KeyInfo:
    return KeyInfo(
        id=proto.id,
        user=proto.user,
        groups=tuple(proto.groups),
        label=proto.label,
        made_by=proto.made_by,
        made_ms=proto.made_ms,
        expires_ms=proto.expires_ms,
    )
