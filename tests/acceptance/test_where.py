"""The option `--where` as a user types it, against a broker process."""

from __future__ import annotations

import pytest

from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import Done, dejaq


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    rows = "\n".join(
        f'{{"id": "m{number}", "body": "x", "delay": {3600 * (number + 1)}, "priority": {number}, '
        f'"headers": {{"campaign": "{"ab"[number % 2]}"}}}}'
        for number in range(6)
    )
    assert dejaq("produce", topic, "--file", "-", url=broker.url, stdin=rows).code == 0
    return topic


def test_messages_are_counted_edited_moved_and_cancelled(broker: BrokerProcess, filled: str) -> None:
    def run(*arguments: str) -> Done:
        return dejaq(*arguments, url=broker.url)

    counted = run("edit", filled, "--where", "header.campaign=a", "--priority", "9", "--dry-run")
    assert (counted.code, counted.out) == (0, f"3 messages of default in {filled} match; nothing was changed\n")
    assert run("edit", filled, "--where", "header.campaign=a", "--priority", "9").out == "3 edited\n"
    assert run("move", filled, "--where", "priority=9", "--shift", "+1d", "--json").objects[0]["moved"] == 3
    assert run("count", filled, "--from", "+12h").out == "3\n"
    gone = run("cancel", filled, "--where", "priority=1..3", "--where", "to=+5h")
    assert (gone.code, gone.out) == (0, "2 cancelled\n")
    nothing = run("cancel", filled, "--where", "header.campaign=z")
    assert (nothing.code, nothing.out) == (0, f"no messages of default in {filled} match\n")
    assert run("cancel", filled, "--where", "priority=5", "--group", "other").out.startswith("no messages of other")


def test_an_edit_sets_one_header_and_removes_another(broker: BrokerProcess, filled: str) -> None:
    """U16: headers that the command does not name stay."""
    edited = dejaq("edit", filled, "m0", "m1", "--header", "lang=en", url=broker.url)
    assert edited.code == 0
    assert dejaq("edit", filled, "m1", "--remove-header", "campaign", url=broker.url).code == 0
    found = dejaq("get", filled, "m0", "m1", "--json", url=broker.url)
    assert [one["headers"] for one in found.objects] == [{"campaign": "a", "lang": "en"}, {"lang": "en"}]


def test_a_change_of_everything_needs_all_and_asks_first(broker: BrokerProcess, filled: str) -> None:
    """U18: a command without ids and conditions changes nothing, and `--all` asks for a confirmation."""

    def run(*arguments: str) -> Done:
        return dejaq(*arguments, url=broker.url)

    unanswered = run("cancel", filled, "--all")
    assert unanswered.code != 0
    assert f"Every message of default in {filled} that is not leased will be cancelled" in unanswered.err
    assert run("cancel", filled, "--all", "--json").code == 2, "a program cannot answer"
    assert run("move", filled, "--all", "--shift", "+1h").code != 0
    assert run("edit", filled, "--all", "--priority", "3").code != 0
    counted = run("cancel", filled, "--all", "--dry-run")
    assert (counted.code, counted.out) == (0, f"6 messages of default in {filled} match; nothing was changed\n")
    assert run("edit", filled, "--all", "--priority", "3", "--yes").out == "6 edited\n"
    assert run("cancel", filled, "--all", "--yes").out == "6 cancelled\n"
    assert run("count", filled).out == "0\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["cancel"], "Give ids, or --where"),
        (["cancel", "m1", "--where", "priority=1"], "not both"),
        (["cancel", "m1", "--dry-run"], "--dry-run"),
        (["cancel", "m1", "--all", "--yes"], "not both"),
        (["cancel", "--where", "priority=1", "--all", "--yes"], "not both"),
        (["dlq", "purge", "--yes"], "--all"),
        (["dlq", "redrive"], "--all"),
        (["cancel", "--where", "colour=red"], "colour=red"),
        (["cancel", "--where", "priority=low"], "priority=low"),
        (["cancel", "--where", "from=whenever"], "whenever"),
        (["move", "--where", "priority=1"], "--shift"),
        (["move", "m1", "--shift", "+1h"], "--shift"),
        (["edit", "--where", "priority=1"], "what to change"),
    ],
)
def test_an_invalid_condition_is_an_error_with_an_explanation(
    broker: BrokerProcess, arguments: list[str], complaint: str
) -> None:
    place = 2 if arguments[0] == "dlq" else 1
    refused = dejaq(*arguments[:place], "mail", *arguments[place:], url=broker.url)
    assert refused.code == 2
    assert complaint in refused.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "TOPIC", "--body", "x", "--priority", "2147483648"),
        ("edit", "TOPIC", "m1", "--priority", "-2147483649"),
        ("edit", "TOPIC", "--where", "priority=1", "--priority", "2147483648"),
        ("cancel", "TOPIC", "--where", "priority=0..2147483648"),
    ],
)
def test_a_priority_out_of_range_is_refused_and_nothing_changes(
    broker: BrokerProcess, filled: str, arguments: tuple[str, ...]
) -> None:
    before = dejaq("browse", filled, "--json", url=broker.url).objects
    refused = dejaq(*(filled if one == "TOPIC" else one for one in arguments), url=broker.url)
    assert refused.code == 1
    assert "INVALID_PRIORITY" in refused.err
    assert "Traceback" not in refused.err
    kept = ("id", "ts", "priority", "version")
    after = dejaq("browse", filled, "--json", url=broker.url).objects
    assert [[one[key] for key in kept] for one in after] == [[one[key] for key in kept] for one in before]
