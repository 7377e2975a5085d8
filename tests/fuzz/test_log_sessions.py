"""R15 for logs: damaged frames of appenders, readers and members of groups are answered or refused. G6, G8."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.broker.central import Central
from dejaq.broker.context import begin_call
from dejaq.config import BrokerConfig
from dejaq.domain.headers import encode_headers
from dejaq.errors import Code
from dejaq.protocol.spliced import BrokerSent, whole
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.storage.base import Storage
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.waiting import patient
from dejaq.timekeeper.clock import SystemClock
from tests.fuzz.corpus import damaged, opening_frames
from tests.fuzz.executions import executions

pytestmark = pytest.mark.chaos
LOG, BUCKETS, LAST = "events", 4, 2**63
HELLO = opening_frames()[0]
SEEDS = st.integers(min_value=0, max_value=2**32)
FAULTS = {Code.INTERNAL, Code.UNAVAILABLE, Code.INDEFINITE}


def log_frames() -> list[bytes]:
    """Every command of a session on a log."""
    records = log_pb2.LogRecords(
        bodies=[b"a", b"", b"cc" * 50], keys=[b"k", b"", b"l"], headers=[encode_headers({"kind": "fuzz"}), b"", b""]
    )
    plain = log_pb2.LogRecords(bodies=[b"x"]).SerializeToString()
    batches = [
        log_pb2.LogBatch(bucket=1, records=records.SerializeToString()),
        log_pb2.LogBatch(bucket=2, records=plain),
    ]
    everywhere = [log_pb2.LogPosition(bucket=bucket) for bucket in range(BUCKETS)]
    commands = [
        log_pb2.LogCommand(append=log_pb2.LogAppend(topic=LOG, session=b"fuzzer-001", sequence=1, batches=batches)),
        log_pb2.LogCommand(
            append=log_pb2.LogAppend(topic=LOG, batches=batches, client_ms=1_800_000_000_000, timeout_ms=5)
        ),
        log_pb2.LogCommand(open=log_pb2.LogOpen(topic=LOG, positions=everywhere[:2], credit_bytes=1_000)),
        log_pb2.LogCommand(
            open=log_pb2.LogOpen(
                topic=LOG, group="g", member="m", positions=everywhere, credit_bytes=50, headers={"kind": "fuzz"}
            )
        ),
        log_pb2.LogCommand(credit=log_pb2.LogCredit(bytes=100)),
        log_pb2.LogCommand(commit=log_pb2.LogCommit(positions=everywhere[:1], claims=[1])),
        log_pb2.LogCommand(seek=log_pb2.LogSeek(position=everywhere[1], number=7)),
        log_pb2.LogCommand(pause=log_pb2.LogPause(buckets=[0, 1])),
        log_pb2.LogCommand(pause=log_pb2.LogPause(buckets=[0], resume=True)),
        log_pb2.LogCommand(release=log_pb2.LogRelease(buckets=[1], claims=[1])),
    ]
    frames = [carrier.ClientFrame(request=number, log=command) for number, command in enumerate(commands, start=1)]
    return [frame.SerializeToString() for frame in frames]


FRAMES = log_frames()
READER, MEMBER = FRAMES[2:4]


class LogTarget:
    """A broker with a log, which gets the bytes of a client, in one session per input."""

    def __init__(self, runner: asyncio.Runner, storage: Storage) -> None:
        self._runner = runner
        config = BrokerConfig(listen=None, memory_bytes_max=0)
        self._central = Central(config=config, storage=storage, clock=SystemClock())
        self._runner.run(self._open())

    async def _open(self) -> None:
        await self._central.start()
        request = overseer.CreateTopicRequest(name=LOG, settings=overseer.TopicSettings(kind="log", buckets=BUCKETS))
        await self._central.services.call(begin_call("fuzz"), "Overseer.CreateTopic", request)

    def close(self) -> None:
        self._runner.run(self._central.stop(drain=False))

    def check(self, *sent: bytes) -> list[carrier.BrokerFrame]:
        """Send frames and a ping. The ping is answered, or the session ends with a reason that is no fault of the
        broker; nothing that was accepted breaks the store.
        """
        answers = self._runner.run(self._feed(list(sent)))
        assert self._central.storage.failure is None
        assert not self._central.doctor.degradations
        codes = [Code(frame.error.code) for frame in answers if frame.WhichOneof("event") == "error"]
        assert not FAULTS & set(codes), answers
        assert codes or any(frame.request == LAST for frame in answers), answers
        return answers

    async def _feed(self, sent: list[bytes]) -> list[carrier.BrokerFrame]:
        answers: list[carrier.BrokerFrame] = []
        over = asyncio.Event()

        async def frames() -> AsyncIterator[bytes | carrier.ClientFrame]:
            for frame in sent:
                yield frame
            yield carrier.ClientFrame(request=LAST, ping=carrier.Ping())
            await over.wait()

        async def send(frame: BrokerSent) -> None:
            answers.append(whole(frame))
            if frame.request == LAST:
                over.set()

        await asyncio.wait_for(self._central.services.session(begin_call("fuzz"), frames(), send), patient(20))
        return answers


@pytest.fixture(scope="module")
def memory() -> Iterator[LogTarget]:
    with asyncio.Runner() as runner:
        made = LogTarget(runner, MemoryStorage())
        yield made
        made.close()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogTarget]:
    with asyncio.Runner() as runner:
        made = LogTarget(runner, RocksStorage(tmp_path_factory.mktemp("fuzz") / "data"))
        yield made
        made.close()


def test_the_frames_of_logs_that_fuzzing_starts_from_are_valid(memory: LogTarget) -> None:
    for opening, others in ((READER, FRAMES[4:5] + FRAMES[6:9]), (MEMBER, FRAMES[4:])):
        answers = memory.check(HELLO, *FRAMES[:1], opening, *others)
        assert [frame for frame in answers if frame.WhichOneof("event") == "error"] == []
        events = {frame.log.WhichOneof("event") for frame in answers if frame.WhichOneof("event") == "log"}
        assert {"appended", "opened"} <= events


@executions(1_000)
@given(frames=st.lists(st.sampled_from(FRAMES), min_size=1, max_size=3), seed=SEEDS)
def test_r15_damaged_frames_of_logs(memory: LogTarget, frames: list[bytes], seed: int) -> None:
    """G6, G8: appends, readers and members of groups, each opened in two of three inputs."""
    opened = [(), (READER,), (MEMBER,)][seed % 3]
    memory.check(HELLO, *opened, *(damaged(frame, seed + n) for n, frame in enumerate(frames)))


@executions(200)
@given(frame=st.sampled_from(FRAMES[:2]), seed=SEEDS)
def test_r15_damaged_appends_on_the_embedded_store(embedded: LogTarget, frame: bytes, seed: int) -> None:
    """G6, G8: every batch that the broker accepts, the store accepts too."""
    embedded.check(HELLO, damaged(frame, seed))
