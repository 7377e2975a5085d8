"""The gate: finds out who makes a call before it begins, and ends what callers have open when they may no longer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from dejaq.broker import metrics as specs
from dejaq.broker.access.open_streams import DEVICE_CHARS_MAX, OpenStream, OpenStreams, session_id_of
from dejaq.broker.context import begin_call
from dejaq.broker.metrics import Metrics
from dejaq.domain.context import CallContext, Endpoint
from dejaq.errors import Code, DejaqError, Unauthenticated, error_of
from dejaq.security.base import Authenticator, Credentials, Identity
from dejaq.security.keys import PREFIX
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.5
# After so many streams the event loop does other work.
STREAMS_PER_STEP = 200

# Raises when the session of an identity was ended by a command.
CheckSession = Callable[[str, Identity, int], None]


class CallerGate:
    """Authenticates each call and session, and watches over those that are open."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        clock: Clock,
        metrics: Metrics,
        sessions_per_user_max: int,
        check_session: CheckSession = lambda session_id, identity, now_us: None,
        refused: Callable[[Credentials, str, DejaqError], None] = lambda credentials, peer, error: None,
        entered: Callable[[CallContext], None] = lambda context: None,
    ) -> None:
        """`refused` is called for every caller that is not accepted, `entered` when one begins a session."""
        self._authenticator = authenticator
        self._clock = clock
        self._metrics = metrics
        self._sessions_per_user_max = sessions_per_user_max
        self._check_session = check_session
        self._refused = refused
        self._entered = entered
        self.streams = OpenStreams()

    def connect(self, gauge: Callable[[specs.MetricSpec, specs.Gauge], None]) -> None:
        """Publish the metrics."""
        gauge(specs.USER_SESSIONS, lambda: {(): self.streams.session_count})

    async def identify(self, credentials: Credentials, peer: str) -> tuple[Identity, str]:
        """The caller's identity and the id of its session; raises UNAUTHENTICATED or UNAVAILABLE."""
        now_us = self._clock.now_us()
        try:
            identity = await self._authenticator.authenticate(credentials, peer, now_us)
            session_id = session_id_of(identity.principal, credentials.device[:DEVICE_CHARS_MAX])
            self._check_session(session_id, identity, now_us)
        except DejaqError as error:
            error.answered = True
            self._metrics.add(specs.REFUSED_CALLERS, 1, error.code.name)
            self._refused(credentials, peer, error)
            log.info("a caller at %s is refused: %s", peer, error.message)
            raise
        return identity, session_id

    @asynccontextmanager
    async def open(
        self,
        credentials: Credentials,
        peer: str,
        *,
        endpoint: Endpoint,
        seconds: float | None = None,
        is_session: bool = False,
    ) -> AsyncIterator[CallContext]:
        """The context of a call or session of the caller with these credentials.

        Raises UNAUTHENTICATED, LIMIT_EXCEEDED when the user has too many sessions, and the reason when it was ended
        meanwhile.
        """
        identity, session_id = await self.identify(credentials, peer)
        context = replace(
            begin_call(peer, seconds, endpoint=endpoint), principal=identity.principal, session_id=session_id
        )
        if is_session:
            self._check_limit(context)
        stream = OpenStream(
            context, credentials, identity, self._clock.now_us(), is_session, task=asyncio.current_task()
        )
        self.streams.add(stream)
        if is_session and context.principal.recorded:
            self._entered(context)
        try:
            yield context
        except asyncio.CancelledError:
            if stream.error is None or stream.task is None:
                raise
            stream.task.uncancel()
            raise stream.error from None
        finally:
            self.streams.remove(stream)

    def _check_limit(self, context: CallContext) -> None:
        principal = context.principal
        if principal.recorded and self.streams.sessions_of(principal) >= self._sessions_per_user_max:
            self._metrics.add(specs.REFUSED_CALLERS, 1, Code.LIMIT_EXCEEDED.name)
            raise error_of(
                Code.LIMIT_EXCEEDED,
                f"{principal.name} has {self._sessions_per_user_max} sessions open at this broker, the most a user may",
            )

    async def renew(self, context: CallContext, bearer: str) -> None:
        """Let a stream continue with new credentials of the same caller; raises UNAUTHENTICATED."""
        stream = self.streams.get(context.request_id.partition("/")[0])
        if stream is None:
            return
        credentials = replace(stream.credentials, bearer=bearer)
        identity, _ = await self.identify(credentials, context.peer)
        if identity.principal.name != context.principal.name:
            raise Unauthenticated(f"the new token is not one of {context.principal.name}; begin a new session")
        if identity.principal != context.principal:
            # Everything that the session may do was decided for the earlier groups.
            changed = Unauthenticated("the new token has other groups; begin a new session with it")
            changed.answered = True
            stream.end(changed)
            raise changed
        stream.credentials, stream.identity = credentials, identity

    async def run(self) -> None:
        """End the streams whose credentials have expired or were revoked, until cancelled."""
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            await self.sweep()

    async def sweep(self) -> None:
        """Look at every open stream of an authenticated caller once."""
        now_us = self._clock.now_us()
        for number, stream in enumerate(self.streams.named, 1):
            if stream.error is None:
                await self._look(stream, now_us)
            if number % STREAMS_PER_STEP == 0:
                await asyncio.sleep(0)

    async def _look(self, stream: OpenStream, now_us: int) -> None:
        try:
            expires_us = stream.identity.expires_us
            if expires_us is not None and expires_us <= now_us:
                raise Unauthenticated("the credentials of this stream have expired; connect again with new ones")
            self._check_session(stream.context.session_id, stream.identity, now_us)
            bearer = stream.credentials.bearer
            if not bearer or bearer.startswith(PREFIX) or expires_us is None:
                # A key may have been revoked. A token was verified when the stream began and is good until it expires.
                await self._authenticator.authenticate(stream.credentials, stream.context.peer, now_us)
        except Unauthenticated as error:
            error.answered = True
            self._metrics.add(specs.ENDED_STREAMS, 1)
            log.info("a stream of %s at %s is ended: %s", stream.context.principal.name, stream.context.peer, error)
            stream.end(error)
        except DejaqError as error:
            log.debug("a stream of %s was not checked: %s", stream.context.principal.name, error)
