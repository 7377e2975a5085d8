"""`dejaq dlq` as a user types it, against a broker process."""

from __future__ import annotations

import pytest

from dejaq import sync
from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import Done, dejaq


@pytest.fixture
def dead(broker: BrokerProcess, topic: str) -> str:
    """A topic of which three messages were rejected."""
    with sync.connect(broker.url) as client:
        with client.producer(topic) as producer:
            for number in range(3):
                producer.send(b"body", id=f"m{number}", headers={"k": str(number)})
        with client.consumer(topic, max_messages=3) as consumer:
            for lease in consumer:
                lease.reject("late" if lease.id == "m0" else "not JSON")
    return topic


def test_dead_letters_are_listed_redriven_and_purged(broker: BrokerProcess, dead: str) -> None:
    def run(*arguments: str) -> Done:
        return dejaq("dlq", *arguments, url=broker.url)

    listed = run("list", dead)
    assert listed.code == 0
    assert [line.split()[1] for line in listed.out.splitlines()] == ["m0", "m1", "m2"]
    assert "attempts=1  not JSON" in listed.out
    [one] = run("list", dead, "--reason", "late", "--json").objects
    assert (one["id"], one["dead-topic"], one["dead-reason"]) == ("m0", dead, "late")

    counted = run("redrive", dead, "--header", "k=2", "--dry-run", "--json").objects[0]
    assert (counted["matched"], counted["redriven"], counted["dry_run"]) == (1, 0, True)
    moved = run("redrive", dead, "--header", "k=2")
    assert (moved.code, moved.out) == (0, "1 redriven\n")
    assert dejaq("get", dead, "m2", url=broker.url).code == 0
    partly = run("redrive", dead, "m1", "nobody", "--json")
    assert (partly.code, partly.objects[0]["refused"]) == (1, {"NOT_FOUND": 1})

    assert run("purge", dead, "--reason", "late").code != 0, "the command asks for a confirmation and gets none"
    assert run("purge", dead, "--reason", "late", "--yes").out == "1 purged\n"
    assert run("list", dead).out == ""
    assert run("purge", dead, "--all").code != 0, "the command asks for a confirmation and gets none"
    assert run("redrive", dead, "--all").code != 0, "the command asks for a confirmation and gets none"
    nothing = run("purge", dead, "--all", "--yes")
    assert (nothing.code, nothing.out) == (0, f"no dead letters of {dead} match\n")


def test_an_impossible_command_is_an_error_and_loses_nothing(broker: BrokerProcess, dead: str) -> None:
    def run(*arguments: str) -> Done:
        return dejaq(*arguments, url=broker.url)

    both = run("dlq", "redrive", dead, "m0", "--reason", "late")
    assert (both.code, "ids or a filter" in both.err) == (2, True)
    assert run("dlq", "list", "nowhere").code == 1
    assert run("topic", "delete", dead, "--yes").code == 0
    refused = run("dlq", "redrive", dead, "--all", "--yes")
    assert refused.code == 1
    assert "[TOPIC_NOT_FOUND]" in refused.err or "[TOPIC_DELETING]" in refused.err
    assert "the dead letters stay" in refused.err
    assert len(run("dlq", "list", dead).out.splitlines()) == 3
    assert run("topic", "create", "elsewhere").code == 0
    assert run("dlq", "redrive", dead, "--all", "--yes", "--target", "elsewhere").out == "3 redriven\n"


def test_a_dead_letter_is_shown_with_its_error_and_traceback(broker: BrokerProcess, topic: str) -> None:
    """U24: the reason and the traceback of the failure are stored with the dead letter and shown."""
    with sync.connect(broker.url) as client, client.consumer(topic, max_messages=1) as consumer:
        with client.producer(topic) as producer:
            producer.send(b"body", id="m0")
        try:
            raise ValueError("no\x1b[31mcolour")
        except ValueError as error:
            next(consumer).reject("odd", error=error)
    listed = dejaq("dlq", "list", topic, url=broker.url)
    assert "attempts=1  odd (ValueError: no\u00b7[31mcolour)" in listed.out
    shown = dejaq("dlq", "show", topic, "m0", url=broker.url)
    assert shown.code == 0
    assert "  reason: odd" in shown.out
    assert shown.out.splitlines()[-1] == "ValueError: no\u00b7[31mcolour"
    [one] = dejaq("dlq", "show", topic, "m0", "--json", url=broker.url).objects
    assert one["dead-error"] == "ValueError: no\x1b[31mcolour"
    assert one["dead-traceback"].startswith("Traceback")
    missing = dejaq("dlq", "show", topic, "nobody", url=broker.url)
    assert (missing.code, "dlq list" in missing.err) == (1, True)
