"""The README's programs, run as a reader runs them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import wait_until
from tests.acceptance.process import SECONDS_MAX, environment, serve

README = Path(__file__).resolve().parents[2] / "README.md"
PROGRAMS = {
    match[1]: match[0] for match in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", README.read_text(), re.DOTALL)
}
ADDRESS = "dejaq://127.0.0.1:7400"


@pytest.fixture
def own_broker() -> Iterator[BrokerProcess]:
    with serve() as serving:
        yield serving


def program(name: str, url: str, folder: Path) -> list[str]:
    path = folder / name
    path.write_text(PROGRAMS[name].replace(ADDRESS, url))
    return [sys.executable, "-W", "error", str(path)]


def run(name: str, url: str, folder: Path) -> str:
    done = subprocess.run(
        program(name, url, folder),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(url),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_program_of_the_readme_is_tested_here() -> None:
    assert sorted(PROGRAMS) == [
        "batches.py",
        "blocking.py",
        "consumer.py",
        "embedded.py",
        "events.py",
        "producer.py",
        "queries.py",
    ]
    assert README.read_text().count("```python") == len(PROGRAMS)


def test_the_consumer_gets_on_time_what_the_producer_sends(own_broker: BrokerProcess, tmp_path: Path) -> None:
    assert run("producer.py", own_broker.url, tmp_path) == "pending: 4\n"
    consumer = subprocess.Popen(
        program("consumer.py", own_broker.url, tmp_path),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(own_broker.url),
    )
    # This ends the wait for lines when the consumer prints nothing more.
    watchdog = threading.Timer(SECONDS_MAX, consumer.kill)
    watchdog.start()
    assert consumer.stdout is not None
    try:
        lines = [consumer.stdout.readline() for _ in range(4)]
    finally:
        watchdog.cancel()
        consumer.kill()
        consumer.wait()
        consumer.stdout.close()
    said = [re.sub(r" \d{4}-.*", "", line.strip().split(" ", 1)[-1]) for line in lines]
    assert sorted(said) == ["many thanks", "one", "three", "two"]
    assert lines[-1].startswith("thanks-")
    assert all("attempt 1" in line for line in lines)


def test_the_program_with_a_log_prints_what_it_appended(own_broker: BrokerProcess, tmp_path: Path) -> None:
    states = [f"order-17 {state} at offset {n}" for n, state in enumerate(("created", "paid", "sent"))]
    assert run("events.py", own_broker.url, tmp_path).splitlines() == [*states, "last: sent"]


def test_programs_run_twice_and_together_and_continue_after_a_restart(tmp_path: Path) -> None:
    """U2: the second consumer ended the first one, and the second producer ended with a traceback."""
    with serve(tmp_path / "store") as broker:
        consumers = [
            subprocess.Popen(
                [*program("consumer.py", broker.url, tmp_path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment(broker.url),
            )
            for _ in range(2)
        ]
        said: list[str] = []
        readers = [threading.Thread(target=_collect, args=(consumer, said), daemon=True) for consumer in consumers]
        for reader in readers:
            reader.start()
        try:
            for runs in range(2):
                if runs:
                    broker.kill()
                    asyncio.run(broker.restart())
                for _ in range(2):
                    assert run("producer.py", broker.url, tmp_path).startswith("pending: ")
                wait_until(lambda: len(said) >= 8 * (runs + 1), within=SECONDS_MAX)
            assert [consumer.poll() for consumer in consumers] == [None, None]
        finally:
            for consumer in consumers:
                consumer.kill()
                consumer.wait()
        assert len(said) == 16, said
        assert all("attempt 1" in line for line in said), said


@pytest.mark.parametrize("name", ["batches.py", "blocking.py", "queries.py"])
def test_a_program_runs_twice_at_the_same_time(own_broker: BrokerProcess, tmp_path: Path, name: str) -> None:
    """U2: because of fixed names, one of the two programs ended the other."""
    (tmp_path / "other").mkdir()
    folders = [tmp_path, tmp_path / "other"]
    with ThreadPoolExecutor(2) as both:
        assert all(both.map(lambda folder: run(name, own_broker.url, folder), folders))


def _collect(consumer: subprocess.Popen[str], said: list[str]) -> None:
    assert consumer.stdout is not None
    for line in consumer.stdout:
        said.append(line.strip())


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("batches.py", "sum: 12497500\n"),
        ("blocking.py", "water the plants\n"),
        ("embedded.py", "hello from inside\n"),
    ],
)
def test_a_program_prints_the_expected_output(
    own_broker: BrokerProcess, tmp_path: Path, name: str, printed: str
) -> None:
    assert run(name, own_broker.url, tmp_path) == printed


def test_the_queries_answer_exactly(own_broker: BrokerProcess, tmp_path: Path) -> None:
    printed = run("queries.py", own_broker.url, tmp_path).splitlines()
    assert printed[0] == "meeting-3 is due in 4 hours"
    assert printed[1] == "in the next six hours: 5"
    assert printed[2:6] == ["+0 h: 2", "+3 h: 3", "+6 h: 3", "+9 h: 2"]
    assert printed[6].count("meeting-") == 10
