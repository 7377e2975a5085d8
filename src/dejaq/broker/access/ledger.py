"""The API keys and the ended sessions of the cluster: kept in the storage, in a hidden topic, the same at every broker.

A broker that changes a record writes it to the storage, then changes a record of the synchronization service that every
broker watches; each one then reads the records again. So keys are as durable as messages, and are in every backup.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

from dejaq import limits
from dejaq.broker.catalog import Catalog
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Cancel, Create
from dejaq.domain.context import CallContext
from dejaq.domain.ids import ProducerSession
from dejaq.errors import Code, Unauthenticated, error_of
from dejaq.security.base import Identity
from dejaq.security.keys import ApiKey
from dejaq.storage.base import Filter, Storage, apply_one
from dejaq.synchronization.base import Synchronization
from dejaq.synchronization.keys import ACCESS
from dejaq.timekeeper.clock import Clock

# Hidden from earlier releases too, which know hidden topics by this ending; no topic can have the name in front of it.
TOPIC = "~/access/schedules"
_OWNER = "access"
_KEY, _ENDED = "key:", "ended:"
_PAGE_ROWS = 100
# A token that was issued before its session ended stays refused for so long; no issuer should make tokens that live
# longer. The same holds for a key or certificate for the shorter time: they have no time of issue, so the client could
# never come back.
ENDED_SECONDS = 7 * 86_400
ENDED_KEY_SECONDS = 300
# The most logins of one session that its end refuses.
LOGINS_MAX = 100


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A session that a caller has ended: when, the logins behind its tokens, and who did it."""

    at_us: int
    logins: tuple[str, ...] = ()
    by: str = ""


class AccessLedger:
    """Reads and writes the keys and the ended sessions."""

    def __init__(
        self, *, storage: Storage, clock: Clock, catalog: Catalog, synchronization: Synchronization, random: Random
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._catalog = catalog
        self._synchronization = synchronization
        self._random = random
        self._turn = asyncio.Lock()
        # By id; replaced as a whole.
        self.keys: dict[str, ApiKey] = {}
        # By the id of the session.
        self._ended: dict[str, EndedSession] = {}
        # The logins of ended sessions -> when they were ended: another device name does not bring them back.
        self._ended_logins: dict[str, int] = {}

    async def load(self) -> None:
        """Read every record. Raises STORE_CORRUPT, with the records as they were, when one cannot be read."""
        async with self._turn:
            topic = await self._catalog.records(TOPIC)
            keys: dict[str, ApiKey] = {}
            ended: dict[str, EndedSession] = {}
            cursor: bytes | None = None
            while topic is not None:
                page = await self._storage.browse(topic, Filter(), cursor, _PAGE_ROWS, self._clock.now_ms())
                for message in page.messages:
                    _read(message.id, message.body, keys, ended)
                cursor = page.cursor
                if cursor is None:
                    break
                # Deliveries that are due meanwhile go first.
                await asyncio.sleep(0)
            self.keys, self._ended = keys, ended
            self._ended_logins = {login: one.at_us for one in ended.values() for login in one.logins}

    async def run(self) -> None:
        """Read the records whenever a broker has changed them, until cancelled."""
        async for _ in self._synchronization.watch(ACCESS):
            await self.load()

    # Keys

    async def add(self, context: CallContext, key: ApiKey) -> None:
        """Keep a key at every broker."""
        if len(self.keys) >= limits.API_KEYS_MAX:
            raise error_of(Code.LIMIT_EXCEEDED, f"there are {limits.API_KEYS_MAX:,} keys, the most a cluster keeps")
        await self._create(context, _KEY + key.id, key.packed())

    async def revoke(self, context: CallContext, key_id: str) -> ApiKey:
        """Remove a key at every broker; raises NOT_FOUND."""
        key = self.keys.get(key_id)
        topic = await self._catalog.records(TOPIC)
        if key is None or topic is None:
            raise error_of(Code.NOT_FOUND, f"no key has the id {key_id[:80]!r}; `dejaq key list` shows all")
        # NOT_FOUND here means that another broker has removed it.
        await apply_one(self._storage, Cancel(topic, _OWNER, [_KEY + key_id]), self._clock.now_ms(), context)
        await self._publish()
        return key

    # Sessions

    async def end_session(self, context: CallContext, session_id: str, logins: Sequence[str]) -> None:
        """Refuse a session's present credentials, and tokens of these logins, at every broker from now on."""
        now_us = self._clock.now_us()
        topic = await self._catalog.make_records(context, TOPIC)
        old = [name for name, one in self._ended.items() if now_us - one.at_us > ENDED_SECONDS * 1_000_000]
        if len(self._ended) - len(old) >= limits.ENDED_SESSIONS_MAX:
            raise error_of(Code.LIMIT_EXCEEDED, f"{limits.ENDED_SESSIONS_MAX:,} sessions were ended within a week")
        # A session that was ended before gets the new time.
        gone = [_ENDED + one for one in {*old, *({session_id} & set(self._ended))}]
        if gone:
            await apply_one(self._storage, Cancel(topic, _OWNER, gone), self._clock.now_ms(), context)
        before = self._ended.get(session_id)
        kept = [*logins, *(before.logins if before is not None else ())]
        record = EndedSession(now_us, tuple(dict.fromkeys(kept))[:LOGINS_MAX], context.principal.name)
        await self._create(context, _ENDED + session_id, json.dumps(asdict(record)).encode())

    def ended_by(self, principal: str, now_us: int) -> int:
        """The number of sessions that a caller has ended within the last week."""
        return sum(
            one.by == principal and now_us - one.at_us <= ENDED_SECONDS * 1_000_000 for one in self._ended.values()
        )

    def check_session(self, session_id: str, identity: Identity, now_us: int) -> None:
        """Raise UNAUTHENTICATED when the session was ended and the credentials are from before its end."""
        login_us = self._ended_logins.get(identity.login)
        if login_us is not None and now_us - login_us < ENDED_SECONDS * 1_000_000:
            raise Unauthenticated("this session was ended; log in again")
        ended = self._ended.get(session_id)
        if ended is None:
            return
        ended_us = ended.at_us
        if identity.issued_us is not None:
            refused = identity.issued_us <= ended_us and now_us - ended_us < ENDED_SECONDS * 1_000_000
        else:
            refused = now_us - ended_us < ENDED_KEY_SECONDS * 1_000_000
        if refused:
            raise Unauthenticated("this session was ended; log in again")

    # Records

    async def _create(self, context: CallContext, record_id: str, body: bytes) -> None:
        topic = await self._catalog.make_records(context, TOPIC)
        session = ProducerSession(self._clock.now_ms(), self._random.getrandbits(32))
        # As far away as possible: nothing leases it.
        batch = CreateBatch(_OWNER, session, 0, ts=[limits.TS_MS_MAX], bodies=[body], ids=[record_id])
        outcomes = await apply_one(self._storage, Create(topic, batch), self._clock.now_ms(), context)
        if not outcomes[0].succeeded:
            raise error_of(outcomes[0], details=record_id)
        await self._publish()

    async def _publish(self) -> None:
        """Have every broker, this one first, read the records again."""
        await self.load()
        await self._synchronization.put(ACCESS, self._random.randbytes(8).hex().encode())


def _read(record_id: str, body: bytes, keys: dict[str, ApiKey], ended: dict[str, EndedSession]) -> None:
    try:
        if record_id.startswith(_KEY):
            key = ApiKey.unpack(body)
            keys[key.id] = key
        elif record_id.startswith(_ENDED):
            values = json.loads(body)
            ended[record_id.removeprefix(_ENDED)] = EndedSession(
                int(values["at_us"]), tuple(map(str, values.get("logins", ()))), str(values.get("by", ""))
            )
    except (ValueError, KeyError, TypeError) as wrong:
        raise error_of(Code.STORE_CORRUPT, f"the record {record_id} cannot be read: {wrong}") from None
