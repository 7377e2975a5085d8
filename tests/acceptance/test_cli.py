"""The command `dejaq` as a user types it, against a broker process."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import patient, wait_until
from tests.acceptance.process import DEJAQ, Done, dejaq, environment, serve

Run = Callable[..., Done]
NEXT_YEAR = f"{datetime.now(UTC).year + 1}-01-01T00:00:00Z"


@pytest.fixture
def run(broker: BrokerProcess) -> Run:
    def run(*arguments: str, stdin: str | None = None) -> Done:
        return dejaq(*arguments, url=broker.url, stdin=stdin)

    return run


def test_a_topic_is_created_listed_described_and_deleted(run: Run) -> None:
    made = run("topic", "create", "life", "--buckets", "8", "--max-lease", "1h")
    assert (made.code, made.out) == (0, "topic life created; 8 buckets\n")
    again = run("topic", "create", "life", "--buckets", "8", "--max-lease", "1h")
    assert again.code == 0
    assert "already exists" in again.out

    described = run("topic", "describe", "life", "--json").objects[0]
    assert described["state"] == "live"
    assert (described["buckets"], described["max_lease_ms"]) == (8, 3_600_000)
    assert "life" in run("topic", "list").out

    deleted = run("topic", "delete", "life", "--yes")
    assert (deleted.code, deleted.out) == (0, "topic life is being deleted\n")
    assert run("topic", "describe", "life").code == 1


def test_a_topic_with_other_settings_is_refused(run: Run, topic: str) -> None:
    refused = run("topic", "create", topic, "--buckets", "5")
    assert refused.code == 1
    assert "[TOPIC_EXISTS]" in refused.err
    assert "next: " in refused.err


def test_a_topic_is_edited_and_fixed_settings_are_refused(run: Run, topic: str) -> None:
    """U15: `dejaq topic edit` changes settings that may change, and refuses the others."""
    edited = run("topic", "edit", topic, "--max-attempts", "3", "--max-lease", "5m")
    assert (edited.code, edited.out) == (0, f"topic {topic}: max_attempts is 3, max_lease_ms is 300000\n")
    refused = run("topic", "edit", topic, "--buckets", "9")
    assert (refused.code, "[INVALID_SETTING]" in refused.err, "is fixed" in refused.err) == (1, True, True)
    assert run("topic", "edit", topic).code == 2


def test_deleting_a_topic_that_does_not_exist_does_not_advise_to_create_it(run: Run) -> None:
    """U17: the error of `topic delete nosuch` advised to create the topic first."""
    missing = run("topic", "delete", "nosuch", "--yes")
    assert (missing.code, "[TOPIC_NOT_FOUND]" in missing.err) == (1, True)
    assert "create" not in missing.err
    assert "dejaq topic list" in missing.err


def test_a_message_of_another_group_is_refused_with_the_owner_and_the_option(run: Run, topic: str) -> None:
    """U17: the error NOT_OWNER named neither the owner nor the option `--group`."""
    run("produce", topic, "--body", "x", "--id", "order-1", "--at", NEXT_YEAR, "--group", "billing")
    for change in (("cancel",), ("move", "--delay", "5"), ("edit", "--body", "y")):
        refused = run(change[0], topic, "order-1", *change[1:])
        assert (refused.code, "[NOT_OWNER]" in refused.err) == (1, True)
        assert "--group billing" in refused.err


def test_queries_accept_groups_headers_and_consumers(run: Run, topic: str) -> None:
    """U23: `count`, `browse` and `histogram` lacked the options --group, --header and --consumer."""
    run("produce", topic, "--body", "x", "--at", NEXT_YEAR, "--group", "billing", "--header", "k=v")
    run("produce", topic, "--body", "y", "--at", NEXT_YEAR)
    for options, expected in (
        (("--group", "billing"), 1),
        (("--header", "k=v"), 1),
        (("--header", "k=w"), 0),
        (("--consumer", "w"), 0),
        ((), 2),
    ):
        assert run("count", topic, *options).out == f"{expected}\n"
        assert len(run("browse", topic, *options, "--json").objects) == expected
    [drawn] = run("histogram", topic, "--group", "billing", "--to", "4000d", "--json").objects
    assert sum(step["count"] for step in drawn["steps"]) == 1


def test_a_message_far_behind_the_others_does_not_flatten_the_histogram(run: Run, topic: str) -> None:
    """U23: with one message in 2030, all other messages were in a single bar."""
    rows = "".join(json.dumps({"body": "x", "delay": 60 + n}) + "\n" for n in range(100))
    run(
        "produce",
        topic,
        "--file",
        "-",
        stdin=rows
        + json.dumps({"body": "far", "at": NEXT_YEAR.replace(NEXT_YEAR[:4], str(int(NEXT_YEAR[:4]) + 3), 1)})
        + "\n",
    )
    [drawn] = run("histogram", topic, "--json").objects
    assert drawn["later"] == 1
    assert drawn["step_ms"] <= 60_000
    assert sum(step["count"] for step in drawn["steps"]) == 100


def test_consume_creates_the_folder_of_its_output(run: Run, topic: str, tmp_path: Path) -> None:
    """U23: `consume --output` failed when the folder did not exist."""
    run("produce", topic, "--body", "hello", "--id", "a")
    taken = run("consume", topic, "--max", "1", "--output", str(tmp_path / "deep" / "er"))
    assert taken.code == 0, taken.err
    assert (tmp_path / "deep" / "er" / "a").read_bytes() == b"hello"


def test_deleting_asks_first_and_no_answer_deletes_nothing(run: Run, topic: str) -> None:
    assert run("topic", "delete", topic, stdin="n\n").code != 0
    assert run("topic", "describe", topic).code == 0


def test_a_produced_message_is_consumed_and_removed(run: Run, topic: str) -> None:
    sent = run("produce", topic, "--body", "grüß dich", "--id", "m-1", "--header", "lang=de", "--json")
    assert sent.objects == [{"id": "m-1", "topic": topic}]

    taken = run("consume", topic, "--max", "1", "--json")
    assert taken.code == 0
    [message] = taken.objects
    assert (message["id"], message["body"], message["headers"]) == ("m-1", "grüß dich", {"lang": "de"})
    assert message["attempts"] == 1
    assert message["late_ms"] >= 0
    assert run("count", topic).out == "0\n"


def test_a_message_without_an_id_gets_a_usable_id(run: Run, topic: str) -> None:
    made = run("produce", topic, "--body", "x", "--delay", "1h").out.strip()
    assert run("get", topic, made).code == 0
    assert run("cancel", topic, made).out == f"cancelled {made}\n"


def test_a_repeat_with_the_same_id_creates_no_second_message(run: Run, topic: str) -> None:
    """G5: the same content is reported as a duplicate, other content is refused."""
    at = NEXT_YEAR
    for _ in range(2):
        assert run("produce", topic, "--body", "x", "--id", "same", "--at", at).code == 0
    taken = run("produce", topic, "--body", "other", "--id", "same", "--at", at)
    assert taken.code == 1
    assert "[ID_TAKEN]" in taken.err
    assert run("count", topic).out == "1\n"


def test_an_id_given_by_the_user_is_created_once_within_the_window(run: Run) -> None:
    """U7: an id stays taken after the delivery of its message, for as long as the topic's settings say."""
    assert run("topic", "create", "once", "--dedup", "24h").code == 0
    assert run("topic", "describe", "once", "--json").objects[0]["dedup_ms"] == 86_400_000
    for _ in range(2):
        assert run("produce", "once", "--body", "x", "--id", "order-1").code == 0
        run("consume", "once", "--max", "1", "--timeout", "1")
    assert run("count", "once").out == "0\n"
    fixed = run("topic", "edit", "once", "--dedup", "1h")
    assert fixed.code != 0
    assert "dedup_ms is 86400000 and is fixed" in fixed.err
    assert "max_dedup_ids is 5" in run("topic", "edit", "once", "--max-dedup-ids", "5").out


def test_a_released_message_comes_again_with_one_more_attempt(run: Run, topic: str) -> None:
    run("produce", topic, "--body", "again", "--id", "r-1")
    assert run("consume", topic, "--max", "1", "--release-after", "0").code == 0
    [message] = run("consume", topic, "--max", "1", "--json").objects
    assert (message["id"], message["attempts"]) == ("r-1", 2)


def test_no_message_is_shown_before_its_time(run: Run, topic: str, broker: BrokerProcess) -> None:
    """G2: measured outside the broker, by the machine's clock when each line comes out of the pipe."""
    rows = "".join(json.dumps({"id": f"t-{n}", "body": "x", "delay": 0.5 + n / 50}) + "\n" for n in range(40))
    assert run("produce", topic, "--file", "-", stdin=rows).code == 0
    consumer = subprocess.Popen(
        [DEJAQ, "consume", topic, "--max", "40", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(broker.url),
    )
    assert consumer.stdout is not None
    with consumer.stdout:
        seen = [(time.time_ns() // 1_000_000, json.loads(line)) for line in consumer.stdout]
    assert consumer.wait() == 0
    assert len(seen) == 40
    assert [message["id"] for at_ms, message in seen if at_ms < message["ts"]] == []
    assert [message["id"] for _, message in seen if message["late_ms"] < 0] == []
    assert [message["ts"] for _, message in seen] == sorted(message["ts"] for _, message in seen)


def test_consume_ends_when_nothing_comes_within_its_timeout(run: Run, topic: str) -> None:
    run("produce", topic, "--body", "later", "--delay", "1h")
    ended = run("consume", topic, "--timeout", "0.2")
    assert (ended.code, ended.out) == (0, "")
    assert "0 taken" in ended.err


def test_move_edit_and_cancel_change_pending_messages(run: Run, topic: str) -> None:
    for name in ("a", "b"):
        run("produce", topic, "--body", "old", "--id", name, "--delay", "1h")
    assert run("move", topic, "a", "b", "--at", NEXT_YEAR).out == "moved a\nmoved b\n"
    assert run("edit", topic, "a", "--body", "new", "--priority", "-3", "--header", "k=v").code == 0
    [a] = run("get", topic, "a", "--json").objects
    assert (a["at"], a["body"], a["priority"]) == (NEXT_YEAR.replace("Z", ".000Z"), "new", -3)
    assert a["headers"] == {"k": "v"}
    assert a["status"] == "waiting"
    assert run("cancel", topic, "a").code == 0
    assert run("count", topic).out == "1\n"


@pytest.mark.parametrize(
    "change", [["move", "--delay", "5"], ["edit", "--body", "x"], ["cancel"]], ids=lambda change: change[0]
)
def test_each_refused_id_is_named_and_the_others_are_changed(run: Run, topic: str, change: list[str]) -> None:
    run("produce", topic, "--body", "x", "--id", "there", "--delay", "1h")
    done = run(change[0], topic, "missing", "there", *change[1:])
    assert done.code == 1
    assert "there" in done.out
    assert "missing: No message has this id" in done.err
    assert "[NOT_FOUND]" in done.err


def test_another_group_may_not_change_a_message(run: Run, topic: str) -> None:
    run("produce", topic, "--body", "mine", "--id", "own", "--delay", "1h", "--group", "us")
    refused = run("cancel", topic, "own", "--group", "them")
    assert refused.code == 1
    assert "[NOT_OWNER]" in refused.err
    assert run("cancel", topic, "own", "--group", "us").code == 0


def test_get_says_which_ids_are_missing(run: Run, topic: str) -> None:
    run("produce", topic, "--body", "x", "--id", "there", "--delay", "1h")
    done = run("get", topic, "there", "gone", "--json")
    assert done.code == 1
    assert [row["id"] for row in done.objects] == ["there", "gone"]
    assert done.objects[1]["outcome"] == "NOT_FOUND"


def test_a_file_is_sent_line_by_line_and_a_bad_line_does_not_stop_the_others(
    run: Run, topic: str, tmp_path: Path
) -> None:
    """G6: each line has an outcome of its own."""
    rows = [
        json.dumps({"id": "f-1", "body": "one", "at": NEXT_YEAR}),
        "this is not JSON",
        "",
        '{"body": "two", "delay": 3600, "priority": 5, "headers": {"k": "v"}}',
        '{"id": "not an id!", "body": "three", "delay": 3600}',
        '{"id": "f-2", "body_base64": "/w==", "delay": 3600}',
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(rows))
    sent = run("produce", topic, "--file", str(path))
    assert sent.code == 1
    assert sent.out == "3 created, 0 already there, 2 refused\n"
    assert "line 2: not JSON" in sent.err
    assert "line 5: " in sent.err
    assert "[INVALID_ID]" in sent.err
    assert run("count", topic).out == "3\n"
    [binary] = run("get", topic, "f-2", "--json").objects
    assert binary["body_base64"] == "/w=="


def test_a_long_file_from_stdin_is_sent_whole(run: Run, topic: str) -> None:
    rows = "".join(json.dumps({"id": f"n-{n}", "body": str(n), "delay": 3600}) + "\n" for n in range(2_500))
    sent = run("produce", topic, "--file", "-", "--json", stdin=rows)
    assert sent.objects == [{"topic": topic, "created": 2500, "repeats": 0, "refused": 0}]
    assert run("count", topic, "--status", "waiting").out == "2500\n"


def test_a_line_is_sent_before_the_pipe_ends_and_ctrl_c_ends_the_wait(
    run: Run, topic: str, broker: BrokerProcess
) -> None:
    producer = subprocess.Popen(
        [DEJAQ, "produce", topic, "--file", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(broker.url),
    )
    assert producer.stdin is not None
    with producer.stdin:
        producer.stdin.write('{"body": "x", "delay": 3600}\n')
        producer.stdin.flush()
        wait_until(lambda: run("count", topic).out == "1\n", within=20, what="the line is sent")
        producer.send_signal(signal.SIGINT)
        assert producer.wait(timeout=patient(20)) == 130


def test_a_missing_file_is_wrong_usage(run: Run, topic: str) -> None:
    wrong = run("produce", topic, "--file", "missing.jsonl")
    assert wrong.code == 2
    assert "cannot read missing.jsonl" in wrong.err


def test_the_output_of_browse_can_be_sent_to_another_topic(run: Run, topic: str) -> None:
    run(
        "produce",
        topic,
        "--body",
        "copy me",
        "--id",
        "c-1",
        "--at",
        NEXT_YEAR,
        "--priority",
        "7",
    )
    printed = run("browse", topic, "--json").out
    run("topic", "create", f"{topic}-copy")
    assert run("produce", f"{topic}-copy", "--file", "-", stdin=printed).code == 0
    [copy] = run("get", f"{topic}-copy", "c-1", "--json").objects
    assert (copy["body"], copy["priority"]) == ("copy me", 7)
    assert copy["at"] == NEXT_YEAR.replace("Z", ".000Z")


def test_count_accepts_ranges_and_statuses(run: Run, topic: str) -> None:
    for hours in (1, 2, 3):
        run("produce", topic, "--body", "x", "--delay", f"{hours}h")
    run("produce", topic, "--body", "x", "--at", "-1h")
    assert run("count", topic).out == "4\n"
    assert run("count", topic, "--from", "now", "--to", "150m").out == "2\n"
    assert run("count", topic, "--status", "available").out == "1\n"
    assert run("count", topic, "--json").objects == [{"topic": topic, "count": 4}]


def test_a_histogram_is_drawn_and_adds_up(run: Run, topic: str) -> None:
    for minutes in (10, 10, 10, 50):
        run("produce", topic, "--body", "x", "--delay", f"{minutes}m")
    run("produce", topic, "--body", "x", "--at", "-1h")
    drawn = run("histogram", topic)
    assert drawn.code == 0
    assert "█" in drawn.out
    assert "1 earlier, 0 later" in drawn.err
    [values] = run("histogram", topic, "--from", "now", "--to", "20m", "--step", "60", "--json").objects
    assert sum(step["count"] for step in values["steps"]) == 3
    assert (values["earlier"], values["later"], values["step_ms"]) == (1, 1, 60_000)


def test_browse_lists_in_the_order_of_time_and_stops_at_the_limit(run: Run, topic: str) -> None:
    for hours in (3, 1, 2):
        run("produce", topic, "--body", f"in {hours}", "--id", f"h-{hours}", "--delay", f"{hours}h")
    assert [row["id"] for row in run("browse", topic, "--json").objects] == ["h-1", "h-2", "h-3"]
    shown = run("browse", topic, "--max", "2")
    assert "in 1" in shown.out
    assert "in 3" not in shown.out
    assert "the first 2" in shown.err


def test_info_shows_brokers_and_topics(run: Run, topic: str) -> None:
    [info] = run("info", "--json").objects
    assert info["brokers"][0]["health"] == "healthy"
    assert topic in [known["name"] for known in info["topics"]]
    shown = run("info")
    assert topic in shown.out
    assert "healthy" in shown.out


def test_top_refreshes_as_often_as_requested(run: Run, topic: str) -> None:
    looks = run("top", "--times", "2", "--interval", "0.1", "--json").objects
    assert len(looks) == 2
    assert {"growth_per_s", "available"} <= looks[1]["topics"][0].keys()
    assert topic in run("top", "--times", "1").out


def test_the_shell_runs_a_script_and_reports_that_a_line_failed(run: Run, topic: str) -> None:
    script = f'produce {topic} --body "from the shell" --id s-1 --delay 1h\ncount {topic}\nexit\ncount {topic}\n'
    done = run("shell", stdin=script)
    assert (done.code, done.out) == (0, "s-1\n1\n")
    failed = run("shell", stdin=f"count nowhere\ncount {topic}\n")
    assert failed.code == 1
    assert failed.out == "1\n"


def test_an_unknown_topic_is_refused_with_the_next_step(run: Run) -> None:
    for arguments in (["count", "nowhere"], ["produce", "nowhere", "--body", "x"], ["browse", "nowhere"]):
        refused = run(*arguments)
        assert refused.code == 1, arguments
        assert "[TOPIC_NOT_FOUND]" in refused.err
        assert "dejaq topic create" in refused.err
        assert "Traceback" not in refused.err


def test_no_broker_is_exit_code_3_and_says_how_to_start_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"dejaq://127.0.0.1:{taken.getsockname()[1]}"
        alone = dejaq("--json", "info", url=url)
    assert alone.code == 3
    assert alone.out == ""
    error = json.loads(alone.err)["error"]
    assert error["code"] == "NO_BROKER"
    assert "dejaq serve" in error["next"]


def test_a_reader_that_closes_the_pipe_early_is_no_error(run: Run, topic: str, broker: BrokerProcess) -> None:
    rows = "".join(json.dumps({"body": "x" * 200, "delay": 3600}) + "\n" for _ in range(2_000))
    run("produce", topic, "--file", "-", stdin=rows)
    piped = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"'{DEJAQ}' browse {topic} --all --json | head -n 1"],
        capture_output=True,
        text=True,
        env=environment(broker.url),
        check=False,
    )
    assert piped.stderr == ""
    assert len(piped.stdout.splitlines()) == 1


def test_serve_keeps_acknowledged_messages_and_stops_on_a_signal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serve(data) as first:
        assert dejaq("topic", "create", "kept", url=first.url).code == 0
        assert dejaq("produce", "kept", "--body", "x", "--id", "k-1", "--delay", "1h", url=first.url).code == 0
        first.terminate()
        assert asyncio.run(first.exited()) == 0
    with serve(data) as second:
        assert dejaq("get", "kept", "k-1", url=second.url).code == 0


def test_serve_prints_the_address_where_it_listens_for_programs() -> None:
    serving = subprocess.Popen(
        [DEJAQ, "serve", "--memory", "--listen", "127.0.0.1:0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(""),
    )
    assert serving.stdout is not None
    try:
        printed = json.loads(serving.stdout.readline())
        assert printed["pid"] == serving.pid
        assert dejaq("info", url=printed["url"]).code == 0
    finally:
        serving.kill()
        serving.wait()
        serving.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--data"),
        (["--data", "d", "--memory"], "--memory"),
        (["--memory", "--listen", "nonsense"], "host:port"),
        (["--memory", "--listen", "0.0.0.0:0"], "insecure"),
        (["--memory", "--config", "missing.toml"], "missing.toml"),
    ],
)
def test_serve_reports_what_is_wrong_with_its_settings(arguments: list[str], complaint: str) -> None:
    refused = dejaq("serve", *arguments)
    assert refused.code == 2
    assert complaint in refused.err
    assert "Traceback" not in refused.err


def test_serve_reads_a_config_file_and_arguments_win(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('cluster = "from-file"\nlisten = "nonsense"\n')
    with serve(None, "--config", str(config)) as serving:
        [info] = dejaq("info", "--json", url=serving.url).objects
    assert info["cluster"] == "from-file"


def test_schedules_are_added_listed_run_paused_and_removed(run: Run) -> None:
    assert run("topic", "create", "nightly", "--kind", "cron").code == 0
    added = run("cron", "add", "nightly", "report", "30 2 * * *", "--zone", "Europe/Berlin", "--body", "of {date}")
    assert added.code == 0, added.err
    assert added.out.startswith("schedule report of nightly runs next at ")
    assert (
        run("cron", "add", "nightly", "report", "30 2 * * *", "--zone", "Europe/Berlin", "--body", "of {date}").code
        == 0
    )
    taken = run("cron", "add", "nightly", "report", "@daily")
    assert (taken.code, "[ID_TAKEN]" in taken.err) == (1, True)
    assert "--replace" in taken.err, "U17: the hint was about messages and their ids"
    assert run("cron", "add", "nightly", "report", "@daily", "--replace").code == 0

    [listed] = run("cron", "list", "nightly", "--json").objects
    assert (listed["name"], listed["expression"], listed["state"]) == ("report", "@daily", "active")
    assert (listed["body"], listed["zone"]) == ("of {date}", "Europe/Berlin"), "U17: --replace emptied the rest"
    assert "report" in run("cron", "list", "nightly").out
    assert len(run("cron", "next", "nightly", "report", "--count", "3").out.splitlines()) == 3
    assert len(run("cron", "next", "nightly", "0 4 * * *", "--proposed", "--zone", "Asia/Tokyo").out.splitlines()) == 5

    made = run("cron", "run", "nightly", "report", "--json").objects[0]["id"]
    assert run("get", "nightly", made).code == 0
    assert "run" in run("cron", "history", "nightly", "report").out
    assert "paused" in run("cron", "pause", "nightly", "report").out
    assert run("cron", "list", "nightly", "--json").objects[0]["state"] == "paused"
    assert run("cron", "resume", "nightly", "report").code == 0
    assert run("cron", "remove", "nightly", "report").code == 0
    assert run("cron", "list", "nightly", "--json").objects == []


def test_removing_a_schedule_that_does_not_exist_is_an_error(run: Run) -> None:
    """U17: `cron remove nosuch` printed `is removed`."""
    assert run("topic", "create", "nightlier", "--kind", "cron").code == 0
    missing = run("cron", "remove", "nightlier", "nosuch")
    assert (missing.code, "[NOT_FOUND]" in missing.err) == (1, True)
    assert "dejaq cron list nightlier" in missing.err


def test_the_next_times_of_a_schedule_are_also_shown_in_its_time_zone(run: Run) -> None:
    """U5: times were shown in UTC only, which hides changes to and from daylight saving time."""
    assert run("topic", "create", "tokyo", "--kind", "cron").code == 0
    shown = run("cron", "next", "tokyo", "0 4 * * *", "--proposed", "--zone", "Asia/Tokyo", "--count", "1")
    assert re.fullmatch(r"\S+T19:00:00Z  \S+T04:00:00\+09:00\n", shown.out)
    assert run("cron", "add", "tokyo", "early", "0 4 * * *", "--zone", "Asia/Tokyo").code == 0
    [stored] = run("cron", "next", "tokyo", "early", "--count", "1", "--json").objects
    assert stored["local"].endswith("T04:00:00+09:00")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("never", "0 0 31 2 *"), "INVALID_SCHEDULE"),
        (("never", "@daily", "--zone", "Mars/Olympus"), "INVALID_SCHEDULE"),
        (("never", "@daily", "--body", "{nonsense}"), "INVALID_SCHEDULE"),
    ],
)
def test_an_invalid_schedule_is_refused_with_an_explanation(run: Run, arguments: tuple[str, ...], code: str) -> None:
    assert run("topic", "create", "nightly", "--kind", "cron").code == 0
    refused = run("cron", "add", "nightly", *arguments)
    assert refused.code == 1
    assert f"[{code}]" in refused.err
    assert "Traceback" not in refused.err
