"""R15: any text or byte string from outside is accepted, or refused with the intended error. G8."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from dejaq.broker.central import Central
from dejaq.cli.terminal.times import SECONDS, WHEN, When
from dejaq.config import BrokerConfig, load_config, split_address
from dejaq.domain.context import DIRECT_CALL, CallContext
from dejaq.domain.headers import decode_headers, encode_headers
from dejaq.domain.ids import ProducerSession, generated_ids, parse_generated, valid_id, valid_ids
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, DejaqError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import history_pb2 as history
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.session.address import parse_url
from dejaq.storage.base import Filter
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.timekeeper.clock import SystemClock
from tests.fuzz.corpus import NOW, SESSION, damaged, store_records
from tests.fuzz.executions import executions

pytestmark = pytest.mark.chaos
SESSION_ID = generated_ids(ProducerSession.unpack(SESSION).prefix(1), 3, 1)[0]
SEEDS = st.integers(min_value=0, max_value=2**32)
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.lists(st.none(), max_size=1)
)
PLACES = st.tuples(
    st.integers(0, 2**31), st.integers(0, 1_023), st.integers(0, 2**40), st.integers(0, 2**63), st.integers(0, 2**31)
)


def code_of(attempt: Callable[[], object]) -> Code:
    """OK, or the code of the error; any other exception is a fault and is raised."""
    try:
        attempt()
    except DejaqError as error:
        return error.code
    return Code.OK


# Headers and ids


@executions(1_000)
@given(encoded=st.binary(max_size=60), headers=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4))
def test_r15_headers(encoded: bytes, headers: dict[str, str]) -> None:
    """Random bytes decode to headers or raise ValueError; encoded headers decode to the same headers."""
    for data in (encoded, damaged(encode_headers({"a": "b", "c": "d"}), int.from_bytes(encoded[:4], "big"))):
        try:
            again = encode_headers(decode_headers(data))
        except ValueError:
            continue
        assert decode_headers(again) == decode_headers(data)
    assert decode_headers(encode_headers(headers)) == headers


@executions(500)
@given(ids=st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_r15_ids(ids: list[str]) -> None:
    """A column of ids is valid exactly when each id is; a generated id is parsed to the same id."""
    assert valid_ids(ids) == all(map(valid_id, ids))
    for text in ids:
        parsed = parse_generated(text)
        if parsed is not None:
            session, bucket, counter = parsed
            assert generated_ids(session.prefix(bucket), counter, 1) == [text]


# Keys and records


@executions(1_000)
@given(first=PLACES, second=PLACES)
def test_r15_keys_sort_as_their_numbers(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """Keys sort like their (topic, bucket, slice, number, owner), and a key is parsed to its numbers."""
    one, other = keys.run(*first), keys.run(*second)
    assert (one < other) == (first < second)
    assert keys.unpack_place(keys.place(one)) == first[1:]
    prefix = keys.of_bucket(keys.RUN, *first[:2])
    assert prefix <= one < keys.after(prefix)


TABLES = (
    keys.RUN,
    keys.GONE,
    keys.LEASE,
    keys.TERMS,
    keys.SESSION,
    keys.MINUTE_COUNT,
    keys.DAY_COUNTS,
    keys.COUNT_CHANGE,
    keys.EXTENT,
    keys.INDEX,
    keys.DIRECTORY,
    keys.OWNER,
)


RECORDS = st.tuples(
    st.sampled_from(TABLES), st.binary(max_size=24), st.builds(damaged, st.sampled_from(store_records()), SEEDS)
)


# The records whose damage makes a store report that it is damaged.
UNREADABLE = (DejaqError, DecodeError, ValueError, LookupError, ArithmeticError, struct.error)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, RocksStorage]]:
    with asyncio.Runner() as runner:
        storage = RocksStorage(tmp_path_factory.mktemp("records"))
        runner.run(storage.open(NOW))
        yield runner, storage
        runner.run(storage.close())


@executions(980)
@given(records=st.lists(RECORDS, min_size=1, max_size=3))
def test_r15_damaged_records_are_read_or_refused(
    store: tuple[asyncio.Runner, RocksStorage], records: list[tuple[bytes, bytes, bytes]]
) -> None:
    """Operations that do not need a meaningless record ignore it; operations that need it are refused."""
    # The checksums of the files find real damage; these records are like those that a fault of another release leaves.
    runner, storage = store
    runner.run(_read_with(storage, [(keys.of_topic(table, 1) + tail, value) for table, tail, value in records]))


async def _read_with(storage: RocksStorage, records: list[tuple[bytes, bytes]]) -> None:
    topic = Topic("mail", 1, TopicSettings(buckets=2))
    for key, value in records:
        storage._database._db[key] = value
    with suppress(*UNREADABLE):
        await storage.put_topic(topic, DIRECT_CALL)
        await storage.browse(topic, Filter(), None, 10, NOW)
    with suppress(*UNREADABLE):
        await storage.count(topic, Filter(owner="fuzz"), NOW)
        await storage.get(topic, ["one", SESSION_ID], NOW)
    for key, _ in records:
        del storage._database._db[key]
    if storage.failure is not None:
        # If a record failed a change half-way, the store refuses every call until it is opened again.
        await storage.close()
        await storage.open(NOW)
    assert storage.failure is None
    await storage.drop_topic(topic, NOW, DIRECT_CALL)


@executions(8)
@given(record=RECORDS)
def test_r15_a_store_with_a_damaged_record_opens_or_says_so(
    tmp_path_factory: pytest.TempPathFactory, record: tuple[bytes, bytes, bytes]
) -> None:
    """G8: the directory is unlocked and the error is STORE_CORRUPT; after a repair the store opens again."""
    table, tail, value = record
    asyncio.run(_open_with(tmp_path_factory.getbasetemp() / "store", keys.of_topic(table, 1) + tail, value))


async def _open_with(path: Path, key: bytes, value: bytes) -> None:
    storage = RocksStorage(path)
    await storage.open(NOW)
    if not await storage.topics():
        await storage.put_topic(Topic("mail", 1, TopicSettings(buckets=2)), DIRECT_CALL)
    storage._database._db[key] = value
    await storage.close()
    code = Code.OK
    try:
        await storage.open(NOW)
    except DejaqError as error:
        code = error.code
    assert code in {Code.OK, Code.STORE_CORRUPT}
    await storage.close()
    repaired = RocksDatabase(path / "db")
    del repaired._db[key]
    repaired.close()


# Configuration, settings and addresses


@executions(1_000)
@given(
    text=st.text(max_size=60),
    values=st.dictionaries(st.sampled_from(sorted(BrokerConfig.__dataclass_fields__)), ANYTHING, max_size=4),
)
def test_r15_config(tmp_path_factory: pytest.TempPathFactory, text: str, values: dict[str, Any]) -> None:
    """A config file, the environment and arguments with any content lead to a config or an INVALID_ARGUMENT."""
    file = tmp_path_factory.getbasetemp() / "fuzz.toml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    environment = {f"DEJAQ_{name.upper()}": str(value) for name, value in values.items()}
    attempts: list[Callable[[], BrokerConfig]] = [
        lambda: load_config(file, env={}),
        lambda: load_config(env=environment),
        lambda: load_config(env={}, **values),
    ]
    for attempt in attempts:
        assert code_of(lambda: attempt().check()) in {Code.OK, Code.INVALID_ARGUMENT}


@executions(500)
@given(text=st.text(alphabet=st.one_of(st.sampled_from("dejaq:/,.[]0127@ "), st.characters()), max_size=30))
def test_r15_addresses(text: str) -> None:
    """An address is parsed, or refused with INVALID_ARGUMENT."""
    for read in (parse_url, split_address):
        assert code_of(lambda: read(text)) in {Code.OK, Code.INVALID_ARGUMENT}


@executions(1_000)
@given(values=st.dictionaries(st.sampled_from([*TopicSettings.__dataclass_fields__, "other"]), ANYTHING, max_size=5))
def test_r15_topic_settings(values: dict[str, Any]) -> None:
    """Settings are within their ranges, or refused with INVALID_SETTING."""
    code = code_of(lambda: TopicSettings.from_dict(values))
    assert code in {Code.OK, Code.INVALID_SETTING}
    if code is Code.OK:
        settings = TopicSettings.from_dict(values)
        settings.check()
        assert TopicSettings.from_dict(settings.as_dict()) == settings


# The command line


TIMES = st.one_of(
    st.text(max_size=30),
    st.text(alphabet="0123456789+-.:TZ msdhw", max_size=25),
    st.from_regex(r"[+-]?[0-9]{1,400}(\.[0-9]{1,5})?(ms|s|m|h|d|w)?", fullmatch=True),
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
)


@executions(1_500)
@given(text=TIMES)
def test_r15_times_on_the_command_line(text: str) -> None:
    """A time or a duration is parsed, or refused as wrong usage."""
    with suppress(click.UsageError):
        assert isinstance(WHEN.convert(text, None, None), When)
    with suppress(click.UsageError):
        assert SECONDS.convert(text, None, None) >= 0


# Calls


REQUESTS: dict[str, list[Message]] = {
    "Carrier.Get": [carrier.GetRequest(topic="mail", ids=["one", "two"])],
    "Carrier.Count": [
        carrier.CountRequest(topic="mail"),
        carrier.CountRequest(topic="mail", filter=carrier.Filter(start=1, end=2**50, status="waiting", owner="o")),
    ],
    "Carrier.Histogram": [
        carrier.HistogramRequest(topic="mail", filter=carrier.Filter(start=1, end=2**20), step_ms=1_000)
    ],
    "Carrier.History": [history.HistoryRequest(topic="mail", id="one", cursor=b"\x0a\x01b", count=10)],
    "Carrier.Browse": [carrier.BrowseRequest(topic="mail", page_size=10, cursor=b"12345678one")],
    "Overseer.CreateTopic": [
        overseer.CreateTopicRequest(
            name="made",
            settings=overseer.TopicSettings(buckets=2, max_future_ms=5, max_lease_ms=500, durability="relaxed"),
        )
    ],
    "Overseer.DescribeTopic": [overseer.TopicRequest(name="mail")],
    "Overseer.Ping": [overseer.PingRequest(client_us=5)],
}
CONTEXT = CallContext("a-request", "fuzz")
CALLS = [(name, request) for name, requests in REQUESTS.items() for request in requests]


@pytest.fixture(scope="module")
def broker() -> Iterator[Callable[[str, Message], None]]:
    with asyncio.Runner() as runner:
        central = Central(
            config=BrokerConfig(listen=None, memory_bytes_max=0), storage=MemoryStorage(), clock=SystemClock()
        )
        runner.run(central.start())
        runner.run(central.services.call(CONTEXT, "Overseer.CreateTopic", overseer.CreateTopicRequest(name="mail")))

        async def answer(name: str, request: Message) -> None:
            if name in central.services.unary:
                await central.services.call(CONTEXT, name, request)
            else:
                _ = [page async for page in central.services.stream(CONTEXT, name, request)]

        yield lambda name, request: runner.run(answer(name, request))
        runner.run(central.stop(drain=False))


@executions(2_000)
@given(call=st.sampled_from(CALLS), seed=SEEDS)
def test_r15_damaged_calls(broker: Callable[[str, Message], None], call: tuple[str, Message], seed: int) -> None:
    """A query or a topic call is answered, or refused because of a mistake of the caller."""
    name, request = call
    try:
        mutant = type(request).FromString(damaged(request.SerializeToString(), seed))
    except DecodeError:
        return
    code = code_of(lambda: broker(name, mutant))
    assert code not in {Code.INTERNAL, Code.UNAVAILABLE, Code.INDEFINITE}, f"{name} {mutant}"
