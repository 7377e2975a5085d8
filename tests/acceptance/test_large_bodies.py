"""Large bodies on the command line: bodies are read from files and written to files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import Done, dejaq


@pytest.fixture
def body(tmp_path: Path) -> Path:
    path = tmp_path / "body"
    path.write_bytes(os.urandom(3_000_000))
    return path


def test_a_file_is_sent_shown_saved_and_consumed(broker: BrokerProcess, tmp_path: Path, body: Path) -> None:
    def run(*arguments: str) -> Done:
        return dejaq(*arguments, url=broker.url)

    assert run("topic", "create", "files", "--buckets", "2", "--max-body", str(64 << 20)).code == 0
    sent = run("produce", "files", "--body-file", str(body), "--id", "a")
    assert (sent.code, sent.out) == (0, "a\n")
    shown = run("get", "files", "a", "--json").objects[0]
    assert (shown["body_bytes"], shown["large"], "body" in shown) == (3_000_000, True, False)
    assert "[3,000,000 bytes]" in run("browse", "files").out

    saved = tmp_path / "saved"
    assert run("get", "files", "a", "--output", str(saved)).code == 0
    assert saved.read_bytes() == body.read_bytes()

    body.write_bytes(b"other" * 500_000)
    assert run("edit", "files", "a", "--body-file", str(body)).code == 0
    folder = tmp_path / "bodies"
    folder.mkdir()
    taken = run("consume", "files", "--max", "1", "--output", str(folder), "--timeout", "20s")
    assert taken.code == 0, taken.err
    assert (folder / "a").read_bytes() == body.read_bytes()
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert run("get", "files", "a", "--output", str(saved)).code == 1


def test_a_body_that_cannot_be_sent_or_saved_is_an_error_of_one_sentence(
    broker: BrokerProcess, tmp_path: Path, body: Path
) -> None:
    def run(*arguments: str) -> Done:
        return dejaq(*arguments, url=broker.url)

    assert run("topic", "create", "narrow", "--buckets", "2").code == 0
    refused = run("produce", "narrow", "--body-file", str(body))
    assert refused.code == 1
    assert "[BODY_TOO_LARGE]" in refused.err
    assert run("produce", "narrow", "--body-file", str(tmp_path / "none")).code == 2
    assert run("produce", "narrow", "--body", "x", "--body-file", str(body)).code == 2
    assert run("produce", "narrow", "--body", "x", "--id", "a", "--delay", "60s").code == 0
    assert run("get", "narrow", "a", "--output", str(tmp_path / "no" / "folder")).code == 2
    assert run("topic", "create", "wide", "--max-body", str((64 << 20) + 1)).code == 1
