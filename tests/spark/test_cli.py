"""`dejaq pipeline` as called by a person or a program."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dejaq.sync
from dejaq.cli.main import run
from dejaq.pipeline.lake.lake import Lake
from dejaq.testing.waiting import wait_until
from tests.spark.comparing import assert_lake_equals_oracle
from tests.spark.history import Store, random_store, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The commands use the running Spark session.
pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def store() -> Store:
    return random_store(31, steps=120)


@pytest.fixture(scope="module")
def home(spark: SparkSession, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("cli")
    write_segments(home / "journal", store.events, cuts=(20, 40))
    assert run(["pipeline", "run", "--journal", str(home / "journal"), "--lake", str(home / "lake")]) == 0
    return home


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run(["pipeline", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_run_prints_each_batch_and_the_state(
    spark: SparkSession, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    write_segments(journal, store.events, cuts=(20, 40))
    common = ("--journal", str(journal), "--lake", str(lake))
    first, second, third, state = output_of(capsys, "run", *common, "--batch-events", "1")
    assert [first["version"], second["version"], third["version"]] == [1, 2, 3]
    assert first["segments"] == 1
    assert state["events"] == state["taken_in"] == len(store.events)
    assert state["gaps"] == {}
    told = output_of(capsys, "watch", *common, "--interval", "0", "--times", "2")
    (again,) = [one for one in told if "alarm" not in one]
    assert again["taken_in"] == 0
    assert {row["table"] for row in output_of(capsys, "compact", "--lake", str(lake))} >= {"events", "messages"}
    assert_lake_equals_oracle(Lake(spark, str(lake)), store.events)


def test_a_gap_in_the_journal_is_reported(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "journal"
    _, missing, _ = write_segments(journal, store.events, cuts=(20, 40))
    missing.with_suffix(".json").unlink()
    (*_, state) = output_of(capsys, "run", "--journal", str(journal), "--lake", str(tmp_path / "lake"))
    assert state["gaps"] == {"store-1": [[21, 40]]}


@pytest.mark.parametrize("absent", [0, 1], ids=["head", "middle"])
def test_an_audit_of_a_lake_that_lacks_records_is_incomplete_and_exits_1(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], absent: int
) -> None:
    """P1: the audit of a lake with missing records reported that the lake balances, and exited with 0."""
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    paths = write_segments(journal, store.events, cuts=(20, 40))
    paths[absent].with_suffix(".json").unlink()
    assert run(["pipeline", "run", "--journal", str(journal), "--lake", str(lake)]) == 0
    assert "warning: the lake lacks records: store-1 " in capsys.readouterr().err
    assert run(["pipeline", "audit", "--lake", str(lake), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["balanced"], answer["missing_records"]) == ("incomplete", False, 20)
    first, last = ((1, 20), (21, 40))[absent]
    why = "not in the lake yet"
    assert answer["gaps"] == [{"origin": "store-1", "first": first, "last": last, "why": why}]


@pytest.mark.parametrize(
    ("job", "keys"),
    [
        ("accuracy", {"hours", "histogram", "hours_breached", "plot"}),
        ("forecast", {"minutes", "due", "consumers_max", "plot"}),
        ("retries", {"topics", "poison_candidates", "consumers", "plot"}),
        ("traffic", {"groups", "duplicates", "bytes", "plot"}),
        ("audit", {"balance", "findings", "balanced", "lost", "plot"}),
    ],
)
def test_a_job_prints_json_and_writes_a_picture(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str, keys: set[str]
) -> None:
    picture = tmp_path / "deep" / "picture.png"
    (answer,) = output_of(capsys, job, "--lake", str(home / "lake"), "--plot", str(picture))
    assert keys <= answer.keys()
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("job", ["accuracy", "forecast", "retries", "traffic", "audit"])
def test_a_job_prints_tables_for_people(home: Path, capsys: pytest.CaptureFixture[str], job: str) -> None:
    assert run(["pipeline", job, "--lake", str(home / "lake"), "--topic", "mail"]) == 0
    shown = capsys.readouterr().out
    assert "mail" in shown
    assert "billing" not in shown


def test_an_audit_that_does_not_balance_exits_1_and_reports_the_reason(
    spark: SparkSession, home: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (lost_topic, lost_id), *rest = sorted(store.pending)
    snapshot = str(tmp_path / "snapshot")
    spark.createDataFrame(rest, "topic string, id string").coalesce(1).write.parquet(snapshot)
    arguments = ["pipeline", "audit", "--lake", str(home / "lake"), "--snapshot", snapshot]
    assert run([*arguments, "--taken-ms", str(store.now + 1), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["balanced"], answer["lost"]) == (False, 1)
    (finding,) = answer["findings"]
    assert (finding["finding"], finding["topic"], finding["id"]) == ("lost", lost_topic, lost_id)


def test_the_report_is_written_and_its_path_printed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out" / "report.html"
    (answer,) = output_of(capsys, "report", "--lake", str(home / "lake"), "--output", str(target))
    assert answer["report"] == str(target)
    assert target.read_text().count('"job":') == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--journal", "none", "--lake", "lake"], "the journal none cannot be read"),
        (["accuracy", "--lake", "none"], "there is no lake at none"),
        (["accuracy", "--lake", "nope://x"], "the lake nope://x cannot be used"),
        (["audit", "--lake", "x", "--live", "--snapshot", "y"], "Give one of --live and --snapshot"),
        (["run", "--journal", ".", "--conf", "oops"], "'oops' is not KEY=VALUE"),
    ],
)
def test_an_impossible_command_is_an_error_of_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["pipeline", *arguments]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_watch_takes_in_segments_that_arrive_while_it_runs(
    spark: SparkSession, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    _, second = write_segments(journal, store.events, cuts=(40,))
    hidden = second.with_suffix(".json").rename(tmp_path / second.with_suffix(".json").name)

    def bring() -> None:
        wait_until(lambda: list(lake.glob("_commits/*.json")), within=60, what="the first commit")
        hidden.rename(journal / hidden.name)

    bringing = threading.Thread(target=bring)
    bringing.start()
    common = ("--journal", str(journal), "--lake", str(lake), "--interval", "0.2", "--times", "10")
    # The random history has early deliveries, which are reported as alarms.
    told = output_of(capsys, "watch", *common)
    first, then, state = [one for one in told if "alarm" not in one]
    bringing.join()
    assert [first["version"], then["version"]] == [1, 2]
    assert state["events"] == len(store.events)


def test_the_audit_of_a_live_broker_covers_deleted_topics_unrecorded_topics_and_dead_letters(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G9: dead letters and messages of a deleted topic are accounted for; the audit names what it cannot judge."""
    with dejaq.sync.Broker(tmp_path / "data") as broker:
        with dejaq.sync.connect(broker.url) as client:
            for name, journal in (("kept", True), ("deleted", True), ("silent", False)):
                client.create_topic(name, journal=journal)
                with client.producer(name, group="g") as producer:
                    producer.send_batch([b"x"] * 10, delay=3_600)
            client.delete_topic("deleted")
            wait_until(lambda: len(client.info().topics) == 2, within=20, what="the end of the topic")
            with client.producer("kept", group="g") as producer:
                producer.send_batch([b"bad", b"bad"], delay=0, ids=["dead", "redriven"])
            with client.consumer("kept", name="w") as consumer:
                for _, lease in zip(range(2), consumer, strict=False):
                    lease.reject("not JSON")
            assert client.dead_letters("kept").redrive(["redriven"]).done == 1
        common = ("--lake", str(tmp_path / "lake"), "--url", broker.url, "--live")
        (*_, audit) = output_of(capsys, "audit", "--journal", str(tmp_path / "data" / "journal"), *common)
    (accuracy,) = output_of(capsys, "accuracy", "--lake", str(tmp_path / "lake"))
    assert [(row["topic"], row["delivered"], row["unknown"]) for row in accuracy["hours"]] == [("kept", 2, 0)]
    assert audit["balanced"]
    assert audit["not_journaled"] == "silent"
    names = ("created", "cancelled", "dead_lettered", "dropped", "pending", "on_timeline")
    balance = {row["topic"]: tuple(row[name] for name in names) for row in audit["balance"]}
    assert balance == {
        "kept": (13, 0, 2, 0, 11, 11),
        "kept.dead": (2, 1, 0, 0, 1, 1),
        "deleted": (10, 0, 0, 10, 0, 0),
    }
