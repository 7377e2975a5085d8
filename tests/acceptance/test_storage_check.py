"""`dejaq storage inspect` and `dejaq storage check`, as a user runs them on a data directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import dejaq as sdk
from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import dejaq


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a broker that was killed; both commands are run while it serves, too."""

    async def serve() -> None:
        async with BrokerProcess(tmp_path / "data") as broker:
            async with sdk.connect(broker.url) as client:
                await client.create_topic("mail", buckets=4)
                async with client.producer("mail") as producer:
                    assert (await producer.send_batch([b"x" * 100] * 500, delay=3_600)).ok
            assert dejaq("storage", "inspect", str(tmp_path / "data")).code == 0
            refused = dejaq("storage", "check", str(tmp_path / "data"))
            assert refused.code != 0
            assert "STORE_LOCKED" in refused.err
            broker.kill()

    asyncio.run(serve())
    return tmp_path / "data"


def test_a_whole_directory_has_no_problems(data: Path) -> None:
    done = dejaq("storage", "check", str(data), "--json")
    assert done.code == 0, done.err
    (found,) = done.objects
    assert found["problems"] == []
    assert found["log_records"] > 0
    assert found["log_frames"] > 0
    (shown,) = dejaq("storage", "inspect", str(data), "--json").objects
    assert shown["format"] == 10
    assert sum(file["bytes"] for file in shown["log_files"]) == shown["log_bytes"] == found["log_bytes"]
    assert "commit log" in dejaq("storage", "inspect", str(data)).out


def test_damage_of_the_log_is_named_and_is_an_error(data: Path) -> None:
    path = max((data / "commit").iterdir(), key=lambda file: file.stat().st_size)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    done = dejaq("storage", "check", str(data))
    assert done.code != 0
    assert path.name in done.out
    assert "STORE_CORRUPT" in done.err


def test_another_directory_is_refused(tmp_path: Path) -> None:
    for command in ("check", "inspect"):
        done = dejaq("storage", command, str(tmp_path))
        assert done.code != 0
        assert "not a broker's data directory" in done.err
