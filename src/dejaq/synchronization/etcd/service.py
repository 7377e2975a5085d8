"""The synchronization contract on etcd: records are keys under the cluster's prefix, a membership is a lease."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Mapping
from math import inf

from dejaq.errors import ClusterRefused, DejaqError, SynchronizationError, SynchronizationFull
from dejaq.protocol.etcd import rpc_pb2 as rpc
from dejaq.synchronization.base import TTL_SECONDS_DEFAULT, Record, RecordChange
from dejaq.synchronization.etcd.endpoints import Endpoints
from dejaq.synchronization.etcd.wire import EtcdAnswer, NotThere, Wire
from dejaq.synchronization.mirror import Mirror
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

# The part of the promised time that is not used: clocks of two machines do not run equally fast.
MARGIN = 0.1
RETRY_SECONDS = 0.1


class EtcdSynchronization:
    """One member of a cluster that synchronizes by etcd."""

    name = "etcd"

    def __init__(self, endpoints: Endpoints, *, cluster: str, clock: Clock, ttl: float = TTL_SECONDS_DEFAULT) -> None:
        self._prefix = f"/dejaq/{cluster}/"
        self._clock = clock
        self._ttl = ttl
        self._wire = Wire(endpoints)
        self._lease = 0
        # Whether every bound record is under the present lease.
        self._whole = True
        self._until = -inf
        self._bound: dict[str, bytes] = {}
        self._keeper: asyncio.Task[None] | None = None
        self.failure: str | None = None
        self.full: str | None = None

    async def open(self) -> None:
        """Become a member and keep it so."""
        await self._begin()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="etcd membership")

    async def close(self) -> None:
        """Leave: the bound records are gone at once, or after the TTL when etcd does not answer."""
        self._until = -inf
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
            self._keeper = None
        self._bound.clear()
        if self._lease:
            try:
                request = rpc.LeaseRevokeRequest(ID=self._lease)
                await self._wire.call("Lease.LeaseRevoke", request, rpc.LeaseRevokeResponse, seconds=1.0)
            except DejaqError as error:
                log.info("the membership runs out by itself: %s", error)
            self._lease = 0
        await self._wire.close()

    def serving_until(self) -> float:
        """The time of the last renewal that was sent and answered, plus the TTL less a margin."""
        return self._until

    # Membership

    async def _begin(self) -> None:
        """Take a new lease and put the bound records back under it."""
        lease = secrets.randbits(62) + 1
        sent = self._clock.monotonic()
        request = rpc.LeaseGrantRequest(ID=lease, TTL=round(self._ttl))
        try:
            await self._wire.call("Lease.LeaseGrant", request, rpc.LeaseGrantResponse)
        except ClusterRefused as error:
            # A first try that was not answered has been done after all.
            if "lease already exists" not in str(error):
                raise
        self._lease = lease
        self._whole = False
        await self._bind()
        self._renewed(sent, self._ttl)

    async def _bind(self) -> None:
        for key, value in list(self._bound.items()):
            if await self._put(key, value, expected=0, bound=True, again=True) is None:
                raise SynchronizationError(f"{key} is held by another member")
        self._whole = True

    def _renewed(self, sent: float, ttl: float) -> None:
        self._until = sent + ttl * (1 - MARGIN)
        self.failure = None

    async def _keep(self) -> None:
        while True:
            try:
                sent = self._clock.monotonic()
                left = await self._wire.keep_alive(self._lease)
                if left > 0:
                    if not self._whole:
                        await self._bind()
                    self._renewed(sent, left)
                else:
                    log.warning("the membership has expired; the broker joins again")
                    self._until = -inf
                    await self._begin()
            except DejaqError as error:
                self.failure = str(error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("the membership could not be renewed")
                await asyncio.sleep(1.0)
            else:
                await asyncio.sleep(self._ttl / 3)

    # Records

    async def get(self, key: str) -> Record | None:
        """The record, read through the quorum."""
        request = rpc.RangeRequest(key=self._key(key))
        kvs = (await self._wire.call("KV.Range", request, rpc.RangeResponse)).response.kvs
        return self._record(kvs[0]) if kvs else None

    async def under(self, prefix: str) -> list[Record]:
        """The records under a prefix, by key."""
        return (await self._read(prefix))[0]

    async def _read(self, prefix: str) -> tuple[list[Record], int]:
        start = self._key(prefix)
        request = rpc.RangeRequest(key=start, range_end=_end(start))
        response = (await self._wire.call("KV.Range", request, rpc.RangeResponse)).response
        return [self._record(kv) for kv in response.kvs], response.header.revision

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, bound: bool = False, comes_back: bool = True
    ) -> Record | None:
        """Write a record in one transaction with the comparison."""
        record = await self._put(key, value, expected=expected, bound=bound)
        if record is not None and bound and comes_back:
            self._bound[key] = value
        return record

    async def _put(
        self, key: str, value: bytes, *, expected: int | None, bound: bool, again: bool = False
    ) -> Record | None:
        put = rpc.PutRequest(key=self._key(key), value=value, lease=self._lease if bound else 0)
        answer = await self._written(self._transact(key, rpc.RequestOp(request_put=put), expected))
        kvs = answer.response.responses[-1].response_range.kvs
        if answer.response.succeeded:
            self.full = None
            return self._record(kvs[0])
        # The comparison also fails when an unanswered try was done: then the record is the one it wrote.
        ours = (again or answer.unsure) and kvs and kvs[0].value == value and kvs[0].lease == put.lease
        return self._record(kvs[0]) if ours else None

    async def put_bound(self, values: Mapping[str, bytes]) -> None:
        """Write bound records in one transaction."""
        puts = [rpc.PutRequest(key=self._key(key), value=values[key], lease=self._lease) for key in values]
        request = rpc.TxnRequest(success=[rpc.RequestOp(request_put=put) for put in puts])
        await self._written(self._wire.call("KV.Txn", request, rpc.TxnResponse))
        self.full = None
        self._bound.update(values)

    async def _written(self, answer: Awaitable[EtcdAnswer[rpc.TxnResponse]]) -> EtcdAnswer[rpc.TxnResponse]:
        try:
            return await answer
        except NotThere as error:
            raise SynchronizationError("the membership has expired", details=str(error)) from None
        except SynchronizationFull as error:
            self.full = str(error)
            raise

    async def remove(self, key: str, *, expected: int | None = None) -> bool:
        """Remove a record in one transaction with the comparison."""
        self._bound.pop(key, None)
        delete = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._key(key)))
        answer = await self._transact(key, delete, expected)
        response = answer.response
        if response.succeeded and response.responses[0].response_delete_range.deleted:
            return True
        return answer.unsure and not response.responses[-1].response_range.kvs

    async def _transact(self, key: str, change: rpc.RequestOp, expected: int | None) -> EtcdAnswer[rpc.TxnResponse]:
        """Make a change if the key has the revision `expected`, and read the key behind it either way."""
        name = self._key(key)
        read = rpc.RequestOp(request_range=rpc.RangeRequest(key=name))
        request = rpc.TxnRequest(success=[change, read], failure=[read])
        if expected is not None:
            request.compare.add(key=name, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=expected)
        return await self._wire.call("KV.Txn", request, rpc.TxnResponse)

    async def watch(self, prefix: str) -> AsyncIterator[list[RecordChange]]:
        """Every record, then every change from the next revision on; again so when etcd has forgotten that one."""
        start = self._key(prefix)
        mirror = Mirror()
        revision: int | None = None
        first = True
        while True:
            try:
                if revision is None:
                    records, revision = await self._read(prefix)
                    changes = mirror.reload(records)
                    if changes or first:
                        first = False
                        yield changes
                request = rpc.WatchCreateRequest(key=start, range_end=_end(start), start_revision=revision + 1)
                async for answer in self._wire.watch(request):
                    if answer.canceled:
                        # Behind a compaction, or the server cancelled the watch: in both cases read all records again.
                        revision = None
                        break
                    if answer.events:
                        revision = answer.header.revision
                        if changes := mirror.apply(self._change(event) for event in answer.events):
                            yield changes
            except SynchronizationError as error:
                log.info("the watch of %s continues at another server: %s", prefix, error)
                await asyncio.sleep(RETRY_SECONDS)

    def _change(self, event: rpc.Event) -> RecordChange:
        record = None if event.type == rpc.Event.DELETE else self._record(event.kv)
        return RecordChange(self._name(event.kv.key), record)

    def _key(self, name: str) -> bytes:
        return (self._prefix + name).encode()

    def _name(self, key: bytes) -> str:
        return key.decode().removeprefix(self._prefix)

    def _record(self, kv: rpc.KeyValue) -> Record:
        return Record(key=self._name(kv.key), value=kv.value, token=kv.create_revision, revision=kv.mod_revision)


def _end(prefix: bytes) -> bytes:
    """The first key behind every key that begins with `prefix`, which ends with no 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
