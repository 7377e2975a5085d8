"""`dejaq worker` as a process: it processes messages, stops on a signal, and loses nothing when it is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import wait_until
from tests.acceptance.process import DEJAQ, dejaq, environment, serve

WITHIN = 20.0
MODULE = '''
import asyncio, os, pathlib, time

import dejaq

HERE = pathlib.Path(__file__).parent
NUMBER = 7


def note(lease):
    """One file for each message that is done, named by its body."""
    (HERE / "done").mkdir(exist_ok=True)
    (HERE / "done" / lease.body.decode()).write_text(str(lease.attempts))


async def fails_once(lease):
    if lease.attempts == 1:
        raise RuntimeError("first time")
    note(lease)


def waits(lease):
    (HERE / "started").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
    note(lease)
'''

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, broker: BrokerProcess) -> Iterator[Start]:
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("raise KeyError('SMTP_HOST')")
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [DEJAQ, "worker", *arguments],
            cwd=tmp_path,
            env=environment(broker.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def produce(broker: BrokerProcess, topic: str, *bodies: str) -> None:
    for body in bodies:
        assert dejaq("produce", topic, "--body", body, url=broker.url).code == 0


def count(broker: BrokerProcess, topic: str) -> int:
    return int(dejaq("count", topic, "--json", url=broker.url).objects[0]["count"])


def events_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.communicate(timeout=WITHIN)[1].splitlines()]


def test_a_function_is_run_for_each_message_and_again_after_it_failed(
    start: Start, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """G4: a message whose function failed is delivered again."""
    produce(broker, topic, "one", "two", "three")
    worker = start("shop:fails_once", topic, "--retry", "fixed:10ms", "--max", "6", "--json")
    events = events_of(worker)
    assert worker.returncode == 0
    assert {path.name: path.read_text() for path in (tmp_path / "done").iterdir()} == dict.fromkeys(
        ["one", "two", "three"], "2"
    )
    assert count(broker, topic) == 0
    names = [event["event"] for event in events]
    assert (names.count("failed"), names.count("done")) == (3, 3)
    assert {event["again_ms"] for event in events if event["event"] == "failed"} == {10}
    assert all(event["topic"] == topic and event["level"] for event in events)


def test_sigterm_lets_running_functions_finish_and_leaves_other_messages(
    start: Start, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, "one", "two", "three")
    worker = start("shop:waits", topic, "--concurrency", "1", "--json")
    wait_until((tmp_path / "started").exists, within=WITHIN, what="the function is called")
    worker.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    events = events_of(worker)
    assert worker.returncode == 0
    assert [event["event"] for event in events if event["event"] in ("stopping", "done", "stopped")][-1] == "stopped"
    assert len(list((tmp_path / "done").iterdir())) == 1
    assert count(broker, topic) == 2


def test_a_thread_that_does_not_end_delays_neither_the_stop_nor_its_message(
    start: Start, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, "stuck")
    worker = start("shop:waits", topic, "--grace", "0.1", "--json")
    wait_until((tmp_path / "started").exists, within=WITHIN, what="the function is called")
    worker.send_signal(signal.SIGTERM)
    assert "interrupted" in [event["event"] for event in events_of(worker)]
    assert worker.returncode == 0
    assert dejaq("count", topic, "--status", "available", "--json", url=broker.url).objects[0]["count"] == 1


def test_messages_of_a_killed_worker_are_delivered_again(
    start: Start, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """G4: kill -9 during the work loses no message."""
    produce(broker, topic, "one")
    first = start("shop:waits", topic, "--lease", "0.5")
    wait_until((tmp_path / "started").exists, within=WITHIN, what="the function is called")
    first.kill()
    first.wait()
    (tmp_path / "go").touch()
    second = start("shop:waits", topic, "--max", "1")
    second.communicate(timeout=WITHIN)
    assert (tmp_path / "done" / "one").read_text() == "2"
    assert count(broker, topic) == 0


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("nosuch:send", "there is no module 'nosuch'"),
        ("shop", "is not MODULE:FUNCTION"),
        ("shop:", "is not MODULE:FUNCTION"),
        ("shop:fail_once", "there is no 'fail_once' in 'shop'; is it 'fails_once'?"),
        ("shop:NUMBER", "'NUMBER' in 'shop' is not a function but int"),
        ("shop:NUMBER.real.nothing", "there is no 'nothing' in 'shop'"),
        ("broken:send", "fails on import: KeyError: 'SMTP_HOST'"),
    ],
)
def test_a_function_that_cannot_be_found_is_an_error_of_one_sentence(start: Start, function: str, says: str) -> None:
    worker = start(function, "mail")
    error = worker.communicate(timeout=WITHIN)[1]
    assert worker.returncode == 2
    assert says in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("option", "says"), [(("--retry", "sometimes"), "not a back-off policy"), (("--concurrency", "0"), "0 is not in")]
)
def test_invalid_options_are_wrong_usage(start: Start, option: tuple[str, str], says: str) -> None:
    worker = start("shop:waits", "mail", *option)
    error = worker.communicate(timeout=WITHIN)[1]
    assert worker.returncode == 2
    assert says in error


def test_a_topic_that_does_not_exist_is_reported(start: Start) -> None:
    worker = start("shop:waits", "no-such-topic")
    error = worker.communicate(timeout=WITHIN)[1]
    assert worker.returncode == 1
    assert "[TOPIC_NOT_FOUND]" in error
    assert "Traceback" not in error


def test_a_second_signal_ends_the_worker_without_a_traceback(
    start: Start, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """U20: the log ended with a traceback of the event loop."""
    produce(broker, topic, "x")
    worker = start("shop:waits", topic)
    wait_until(lambda: (tmp_path / "started").exists(), within=WITHIN)
    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    said = ""
    while "stopping" not in said:
        said += worker.stderr.readline()
    worker.send_signal(signal.SIGTERM)
    said += worker.communicate(timeout=WITHIN)[1]
    assert "interrupted" in said
    assert "Traceback" not in said


def test_the_worker_starts_while_no_broker_runs(tmp_path: Path) -> None:
    """U8: the worker ended when no broker was running."""
    (tmp_path / "shop.py").write_text(MODULE)
    with serve(tmp_path / "store") as own:
        assert dejaq("topic", "create", "late", url=own.url).code == 0
        produce(own, "late", "x")
        own.kill()
        worker = subprocess.Popen(
            [DEJAQ, "worker", "shop:note", "late", "--max", "1"],
            cwd=tmp_path,
            env=environment(own.url),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert worker.stderr is not None
            assert "waiting for a broker" in worker.stderr.readline()
            asyncio.run(own.restart())
            worker.communicate(timeout=WITHIN)
        finally:
            worker.kill()
            worker.wait()
    assert (tmp_path / "done" / "x").exists()
