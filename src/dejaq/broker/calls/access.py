"""The calls of the `Access` service: the caller's identity, API keys, and sessions of users on devices."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from dejaq import limits
from dejaq.broker.access.ledger import LOGINS_MAX, AccessLedger
from dejaq.broker.access.open_streams import OpenStream
from dejaq.broker.context import bound
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.domain.context import CallContext, Principal, PrincipalKind
from dejaq.errors import Code, DejaqError, InvalidArgument, Missing, PermissionDenied, error_of
from dejaq.protocol.v1 import access_pb2 as access
from dejaq.security.keys import ApiKey, digest_of, new_secret

ASK_SECONDS = 1.0
LABEL_CHARS_MAX = 128
USER_CHARS_MAX = 64
GROUPS_MAX = 50
LIFETIME_MS_MAX = 10 * 366 * 86_400_000
DEVICES_SHOWN = 5
PEERS_SHOWN = 8


class AccessService:
    """Answers callers about themselves, and administrators about every user."""

    def __init__(self, broker: BrokerContext, ledger: AccessLedger) -> None:
        self._broker = broker.config.name
        self._clock = broker.clock
        self._streams = broker.gate.streams
        self._connections = broker.cluster.connections
        self._guard = broker.guard
        self._ledger = ledger

    def _is_admin(self, context: CallContext) -> bool:
        """Whether the caller manages the keys and sessions of every user. Rights that are not checked are none here."""
        if context.in_process or context.principal.admin:
            return True
        return self._guard.enabled and self._guard.operates(context)

    async def who_am_i(self, context: CallContext, request: access.WhoAmIRequest) -> access.WhoAmIResponse:
        """The caller as the broker sees it."""
        stream = self._streams.get(context.request_id)
        principal = context.principal
        expires_us = stream.identity.expires_us if stream is not None else None
        return access.WhoAmIResponse(
            principal=principal.name,
            kind=str(principal.kind),
            user=principal.user,
            groups=sorted(principal.groups),
            session=context.session_id,
            device=stream.device if stream is not None else "",
            expires_ms=expires_us // 1_000 if expires_us is not None else 0,
        )

    # Keys

    async def create_key(self, context: CallContext, request: access.CreateKeyRequest) -> access.CreateKeyResponse:
        """Make a key; its secret is in the answer and nowhere else."""
        self._check_new(context, request)
        now_ms = self._clock.now_ms()
        key_id, secret = new_secret(secrets.token_bytes)
        key = ApiKey(
            id=key_id,
            digest=digest_of(secret),
            user=request.user or context.principal.user,
            groups=tuple(sorted(set(request.groups))),
            label=request.label,
            made_by=context.principal.name,
            made_ms=now_ms,
            expires_ms=now_ms + request.lifetime_ms if request.lifetime_ms else 0,
        )
        await self._ledger.add(context, key)
        return access.CreateKeyResponse(key=_shown(key), secret=secret)

    def _check_new(self, context: CallContext, request: access.CreateKeyRequest) -> None:
        principal = context.principal
        names = [("user", request.user, USER_CHARS_MAX), ("label", request.label, LABEL_CHARS_MAX)]
        for what, text, chars_max in [*names, *(("group", group, LABEL_CHARS_MAX) for group in request.groups)]:
            if len(text) > chars_max or not text.isprintable():
                raise InvalidArgument(f"a {what} has at most {chars_max} printable characters")
        if "/" in request.user:
            # `user:ALIAS/NAME` is the full name of a user of an issuer.
            raise InvalidArgument("a user has no '/' in its name")
        if len(request.groups) > GROUPS_MAX or not 0 <= request.lifetime_ms <= LIFETIME_MS_MAX:
            raise InvalidArgument(f"a key has at most {GROUPS_MAX} groups and a lifetime of at most ten years")
        if self._is_admin(context):
            return
        if not principal.user:
            raise PermissionDenied(f"{principal.name} has no user, so it cannot make keys; ask an administrator")
        if principal.kind is PrincipalKind.KEY:
            # Otherwise the holder of a stolen key could outlive its revocation.
            raise PermissionDenied("a key cannot make keys; log in as a user, or ask an administrator")
        if request.user not in ("", principal.user) or not set(request.groups) <= principal.groups:
            raise PermissionDenied("only an administrator makes keys of other users, or of groups of others")
        if sum(key.user == principal.user for key in self._ledger.keys.values()) >= limits.API_KEYS_PER_USER_MAX:
            most = limits.API_KEYS_PER_USER_MAX
            raise error_of(Code.LIMIT_EXCEEDED, f"{principal.user} has {most} keys, the most of a user; revoke some")

    async def list_keys(self, context: CallContext, request: access.ListKeysRequest) -> access.ListKeysResponse:
        """The keys that the caller may revoke."""
        seen = [key for key in self._ledger.keys.values() if self._owns(context, key)]
        return access.ListKeysResponse(keys=[_shown(key) for key in sorted(seen, key=lambda key: key.made_ms)])

    async def revoke_key(self, context: CallContext, request: access.RevokeKeyRequest) -> access.RevokeKeyResponse:
        """Refuse a key from now on."""
        key = self._ledger.keys.get(request.id)
        if key is not None and not self._owns(context, key):
            raise Missing(f"no key of yours has the id {request.id[:80]!r}; `dejaq key list` shows them")
        await self._ledger.revoke(context, request.id)
        return access.RevokeKeyResponse()

    def _owns(self, context: CallContext, key: ApiKey) -> bool:
        principal = context.principal
        return self._is_admin(context) or key.id == _own_key(principal) or (key.user == principal.user != "")

    # Sessions

    async def list_sessions(
        self, context: CallContext, request: access.ListSessionsRequest
    ) -> access.ListSessionsResponse:
        """The open sessions at every broker that the caller may end."""
        seen = [one for one in await self._everywhere(context) if self._sees(context, one.principal)]
        for one in seen:
            # Only brokers need them.
            one.ClearField("logins")
        return access.ListSessionsResponse(sessions=seen)

    async def _everywhere(self, context: CallContext) -> list[access.OpenSession]:
        """The open sessions of every caller at every broker."""
        request = access.ListSessionsRequest()
        answers = await self._connections.gather(
            self._connections.call(
                broker, "Peer.Sessions", request, access.ListSessionsResponse, bound(context, ASK_SECONDS)
            )
            for broker in self._connections
        )
        return [*self._own_sessions(), *(one for answer in answers for one in _sessions_in(answer))]

    async def sessions_here(
        self, context: CallContext, request: access.ListSessionsRequest
    ) -> access.ListSessionsResponse:
        """The open sessions at this broker, for another broker."""
        return access.ListSessionsResponse(sessions=self._own_sessions())

    def _own_sessions(self) -> list[access.OpenSession]:
        found: dict[str, list[OpenStream]] = {}
        for stream in self._streams:
            if stream.context.session_id:
                found.setdefault(stream.context.session_id, []).append(stream)
        return [self._session(session_id, streams) for session_id, streams in found.items()]

    def _session(self, session_id: str, streams: list[OpenStream]) -> access.OpenSession:
        ends = [stream.identity.expires_us for stream in streams if stream.identity.expires_us is not None]
        return access.OpenSession(
            id=session_id,
            principal=streams[0].context.principal.name,
            device=", ".join(sorted({stream.device for stream in streams} - {""})[:DEVICES_SHOWN]),
            broker=self._broker,
            streams=len(streams),
            peers=sorted({stream.context.peer for stream in streams})[:PEERS_SHOWN],
            since_ms=min(stream.since_us for stream in streams) // 1_000,
            expires_ms=min(ends) // 1_000 if ends else 0,
            logins=sorted({stream.identity.login for stream in streams} - {""})[:LOGINS_MAX],
        )

    def _sees(self, context: CallContext, principal: str) -> bool:
        return self._is_admin(context) or principal == context.principal.name

    async def end_session(self, context: CallContext, request: access.EndSessionRequest) -> access.EndSessionResponse:
        """End a session at every broker."""
        meant = [
            one
            for one in await self._everywhere(context)
            if one.id == request.id and self._sees(context, one.principal)
        ]
        if request.id != context.session_id and not meant:
            raise Missing(f"no session of yours has the id {request.id[:80]!r}; see `dejaq sessions list`")
        by, most = context.principal.name, limits.ENDED_SESSIONS_PER_USER_MAX
        if not self._is_admin(context) and self._ledger.ended_by(by, self._clock.now_us()) >= most:
            raise error_of(Code.LIMIT_EXCEEDED, f"{by} has ended {most} sessions within a week; ask an administrator")
        logins = {login for one in meant for login in one.logins}
        await self._ledger.end_session(context, request.id, sorted(logins))
        return access.EndSessionResponse()


def _own_key(principal: Principal) -> str:
    return principal.name.removeprefix("key:") if principal.kind is PrincipalKind.KEY else ""


def _sessions_in(answer: access.ListSessionsResponse | DejaqError) -> Iterable[access.OpenSession]:
    """What a broker answered; a broker that does not answer has its sessions left out."""
    return () if isinstance(answer, DejaqError) else answer.sessions


def _shown(key: ApiKey) -> access.ApiKeyInfo:
    return access.ApiKeyInfo(
        id=key.id,
        user=key.user,
        groups=key.groups,
        label=key.label,
        made_by=key.made_by,
        made_ms=key.made_ms,
        expires_ms=key.expires_ms,
    )
