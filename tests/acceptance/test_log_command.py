"""`dejaq log` as a user types it, against a broker process."""

from __future__ import annotations

from pathlib import Path

import pytest

from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import Done, dejaq


@pytest.fixture
def log(broker: BrokerProcess, topic: str) -> str:
    name = f"{topic}.log"
    made = dejaq("topic", "create", name, "--kind", "log", "--buckets", "2", "--keep", "7d", url=broker.url)
    assert (made.code, made.out) == (0, f"topic {name} created; 2 buckets\n")
    return name


def test_messages_are_appended_read_and_shown(broker: BrokerProcess, log: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> Done:
        return dejaq("log", *arguments, url=broker.url)

    place = run("append", log, "--body", "hello", "--key", "k", "--header", "a=b", "--json").objects[0]
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\nthree\n")
    assert run("append", log, "--file", str(lines), "--bucket", "0").out == "3 appended\n"
    found = run("read", log, "--json").objects
    assert sorted(one["body"] for one in found) == ["hello", "one", "three", "two"]
    (hello,) = [one for one in found if one["body"] == "hello"]
    assert (hello["key"], hello["headers"], hello["offset"]) == ("k", {"a": "b"}, place["offset"])
    assert len(run("read", log, "--max", "2").out.splitlines()) == 2
    assert len(run("read", log, "--from", "-1h", "--to", "latest").out.splitlines()) == 4
    assert run("read", log, "--from", "latest").out == ""
    assert [one["body"] for one in run("tail", log, "-n", "2", "--no-follow", "--json").objects] == ["two", "three"]
    followed = run("tail", log, "-n", "0", "--max", "1", "--no-follow")
    assert (followed.code, followed.out) == (0, "")


def test_a_batch_is_rolled_back_by_its_name(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> Done:
        return dejaq("log", *arguments, url=broker.url)

    log = f"{topic}.log"
    settings = ("--kind", "log", "--buckets", "1", "--rollback-window", "30m")
    assert dejaq("topic", "create", log, *settings, url=broker.url).code == 0
    (tmp_path / "lines").write_text("one\ntwo\n")
    (batch,) = run("append", log, "--file", str(tmp_path / "lines"), "--names", "--json").objects
    assert (batch["bucket"], batch["offset"], batch["count"]) == (0, 0, 2)
    name = run("append", log, "--body", "three", "--key", "k", "--header", "a=b", "--names").out.strip()
    assert run("rollback", log, batch["name"]).out == f"batch {batch['name']} is rolled back\n"
    found = run("read", log, "--uncommitted", "--to", "99", "--json").objects
    assert [(one["body"], one.get("rolled_back", False)) for one in found] == [
        ("one", True),
        ("two", True),
        ("three", False),
    ]
    assert (found[2]["key"], found[2]["headers"]) == ("k", {"a": "b"})
    assert run("rollback", log, name).code == 0
    assert "no transaction is in doubt" in run("in-doubt", log).err + run("in-doubt", log).out


def test_groups_are_listed_and_reset(broker: BrokerProcess, log: str) -> None:
    def run(*arguments: str) -> Done:
        return dejaq("log", *arguments, url=broker.url)

    run("append", log, "--body", "hello", "--bucket", "1")
    assert "no group" in run("groups", log).err + run("groups", log).out
    assert run("reset", log, "billing", "--to", "latest", "--dry-run", "--json").code == 0
    assert run("groups", log, "--json").objects == []
    assert run("reset", log, "billing", "--to", "beginning", "--bucket", "1").code == 0
    assert run("groups", log, "--json").objects == [{"group": "billing", "members": 0, "buckets": 1, "lag": 1}]
    assert [one["lag"] for one in run("lag", log, "billing", "--json").objects] == [0, 1]


def test_a_wrong_command_says_what_is_wrong(broker: BrokerProcess, log: str, topic: str) -> None:
    def run(*arguments: str) -> Done:
        return dejaq(*arguments, url=broker.url)

    assert run("log", "append", log).code == 2
    assert (run("log", "read", log, "--from", "noon").code, run("log", "rollback", log, "x").code) == (2, 1)
    other = run("log", "append", topic, "--body", "x")
    assert (other.code, "is not a log" in other.err) == (1, True)
    produced = run("produce", log, "--body", "x")
    assert (produced.code, "is a log" in produced.err) == (1, True)
    refused = run("topic", "create", "timeline", "--keep", "7d")
    assert (refused.code, "only a log has this setting" in refused.err) == (1, True)
