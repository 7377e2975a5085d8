"""R15: the broker answers every frame of arbitrary bytes definitely and continues to serve. G6, G8."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.broker.central import Central
from dejaq.broker.context import begin_call
from dejaq.broker.sessions.incoming import read_frame
from dejaq.config import BrokerConfig
from dejaq.errors import Code
from dejaq.protocol.spliced import BrokerSent, whole
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.storage.base import Storage
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.waiting import patient
from dejaq.timekeeper.clock import SystemClock
from tests.fuzz.corpus import consumer_frames, damaged, opening_frames, producer_frames
from tests.fuzz.executions import executions

pytestmark = pytest.mark.chaos
LAST = 2**63
ANSWERS = frozenset({"error", "outcomes", "welcome", "pong"})
HELLO, AS_PRODUCER, AS_CONSUMER = opening_frames()
SUBSCRIBE = consumer_frames()[5]
SEEDS = st.integers(min_value=0, max_value=2**32)


class Target:
    """A broker that receives the bytes of a client, in one session per input."""

    def __init__(self, runner: asyncio.Runner, storage: Storage) -> None:
        self._runner = runner
        self._central = Central(
            config=BrokerConfig(listen=None, memory_bytes_max=0), storage=storage, clock=SystemClock()
        )
        self._runner.run(self._open())

    async def _open(self) -> None:
        await self._central.start()
        settings = overseer.TopicSettings(buckets=4)
        await self._central.services.call(
            begin_call("fuzz"),
            "Overseer.CreateTopic",
            overseer.CreateTopicRequest(name="mail", settings=settings),
        )

    def close(self) -> None:
        self._runner.run(self._central.stop(drain=False))

    def check(self, *sent: bytes) -> list[carrier.BrokerFrame]:
        """Send frames and a ping; each frame must get its own answer, and no answer may be a fault of the broker."""
        answers = self._runner.run(self._feed(list(sent)))
        assert self._central.storage.failure is None
        assert not self._central.doctor.degradations
        # An unexpected answer to a recall gets no answer, unless it is refused.
        asked = Counter(f.request for f in map(read_frame, sent) if f.WhichOneof("command") != "recalled")
        answered = Counter(f.request for f in answers if f.WhichOneof("event") in ANSWERS)
        assert asked <= answered, f"asked {asked}, answered {answered}"
        for frame in answers:
            code = Code(frame.error.code)
            assert code not in {Code.INTERNAL, Code.UNAVAILABLE, Code.INDEFINITE}, frame
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
def target() -> Iterator[Target]:
    with asyncio.Runner() as runner:
        made = Target(runner, MemoryStorage())
        yield made
        made.close()


@pytest.fixture(scope="module")
def rocks_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with asyncio.Runner() as runner:
        made = Target(runner, RocksStorage(tmp_path_factory.mktemp("fuzz") / "data"))
        yield made
        made.close()


def test_the_frames_that_fuzzing_starts_from_are_valid(target: Target) -> None:
    codes = {Code(frame.error.code) for frame in target.check(HELLO, AS_PRODUCER, *producer_frames())}
    assert codes == {Code.OK}
    codes = {Code(frame.error.code) for frame in target.check(HELLO, AS_CONSUMER, SUBSCRIBE, *consumer_frames())}
    assert codes <= {Code.OK}


@executions(2_000)
@given(frames=st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_r15_random_bytes_as_frames(target: Target, frames: list[bytes]) -> None:
    """G8: a frame that cannot be parsed is answered, and the session stays open."""
    target.check(*frames)


@executions(2_000)
@given(data=st.data(), seed=SEEDS)
def test_r15_damaged_openings(target: Target, data: st.DataObject, seed: int) -> None:
    """G8: an almost valid handshake is accepted or refused as a whole."""
    target.check(*(damaged(frame, seed + n) for n, frame in enumerate((HELLO, AS_PRODUCER, AS_CONSUMER))))


@executions(3_500)
@given(frame=st.sampled_from(producer_frames()), seed=SEEDS)
def test_r15_damaged_producer_frames(target: Target, frame: bytes, seed: int) -> None:
    """G6, G8: a damaged create, edit or cancel is answered with outcomes or an error."""
    target.check(HELLO, AS_PRODUCER, damaged(frame, seed))


@executions(2_500)
@given(frame=st.sampled_from(consumer_frames()), seed=SEEDS)
def test_r15_damaged_consumer_frames(target: Target, frame: bytes, seed: int) -> None:
    """G6, G8: a damaged settlement is answered with outcomes or an error."""
    target.check(HELLO, AS_CONSUMER, SUBSCRIBE, damaged(frame, seed))


@executions(1_000)
@given(frames=st.lists(st.sampled_from(producer_frames() + consumer_frames()), min_size=1, max_size=3), seed=SEEDS)
def test_r15_damaged_frames_on_the_embedded_store(rocks_target: Target, frames: list[bytes], seed: int) -> None:
    """G6, G8: every frame that the broker accepts, the store accepts too."""
    role = AS_PRODUCER if seed % 2 else AS_CONSUMER
    rocks_target.check(HELLO, role, *(damaged(frame, seed + n) for n, frame in enumerate(frames)))
