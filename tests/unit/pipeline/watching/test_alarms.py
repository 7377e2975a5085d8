"""Alarms are reported once when they begin and once when they end, to every receiver, also through kills."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

import dejaq.sync
from dejaq.errors import InvalidArgument
from dejaq.pipeline.lake.files import LocalFiles
from dejaq.pipeline.watching.alarms import QUIET_MS, AlarmState, Notice
from dejaq.pipeline.watching.conditions import Condition
from dejaq.pipeline.watching.metrics import PipelineMetrics
from dejaq.pipeline.watching.receivers import AlarmTopic, Webhook
from dejaq.trial.ports import free_port

EARLY = Condition("early", "mail", "2 deliveries of mail were before their time")
LOSS = Condition("loss", "a", "gone")


def test_an_alarm_is_reported_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    told: list[Notice] = []
    alarms = AlarmState(LocalFiles(tmp_path), {"list": told.append})
    alarms.update([EARLY], 1_000)
    alarms.update([EARLY], 2_000)
    alarms.update([], 2_000 + QUIET_MS - 1)
    assert [(one.state, one.kind, one.at_ms) for one in told] == [("firing", "early", 1_000)]
    assert list(alarms.firing) == ["early/mail"]
    alarms.update([], 2_000 + QUIET_MS)
    assert [one.state for one in told] == ["firing", "resolved"]
    assert alarms.firing == {}
    assert len({one.id for one in told}) == 2


def test_a_pipeline_that_starts_again_does_not_repeat_what_was_sent(tmp_path: Path) -> None:
    told: list[Notice] = []
    AlarmState(LocalFiles(tmp_path), {"list": told.append}).update([EARLY], 1_000)
    again = AlarmState(LocalFiles(tmp_path), {"list": told.append})
    again.update([EARLY, LOSS], 5_000)
    assert [one.kind for one in told] == ["early", "loss"]
    assert again.firing == {"early/mail": 1_000, "loss/a": 5_000}
    kept = json.loads((tmp_path / "_results" / "alarms.json").read_text())
    assert (kept["format"], len(kept["recent"]), kept["unsent"]) == (1, 2, [])


def test_what_a_receiver_did_not_take_is_sent_again_under_the_same_id(tmp_path: Path) -> None:
    first: list[Notice] = []
    tried: list[str] = []

    def fails(notice: Notice) -> None:
        tried.append(notice.id)
        raise OSError("not there")

    AlarmState(LocalFiles(tmp_path), {"list": first.append, "other": fails}).update([EARLY], 1_000)
    late: list[Notice] = []
    AlarmState(LocalFiles(tmp_path), {"list": first.append, "other": late.append}).update([EARLY], 2_000)
    assert [one.id for one in first] == [one.id for one in late] == tried


def test_a_damaged_state_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "_results").mkdir()
    (tmp_path / "_results" / "alarms.json").write_text("{")
    told: list[Notice] = []
    AlarmState(LocalFiles(tmp_path), {"list": told.append}).update([EARLY], 1_000)
    assert len(told) == 1


def test_a_webhook_gets_the_notice_as_json(tmp_path: Path) -> None:
    taken: list[tuple[str, dict[str, object]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            taken.append((self.headers["Idempotency-Key"], body))
            self.send_response(200 if len(taken) > 1 else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        alarms = AlarmState(LocalFiles(tmp_path), {"hook": Webhook(f"http://127.0.0.1:{server.server_port}/alarms")})
        alarms.update([EARLY], 1_000)
        alarms.update([EARLY], 2_000)
        alarms.update([EARLY], 3_000)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    # The first answer was 503, so it came again, with the same id.
    (key, body), (again, same) = taken
    assert key == again == body["id"]
    assert body == same
    assert (body["state"], body["kind"], body["subject"], body["at_ms"]) == ("firing", "early", "mail", 1_000)
    with pytest.raises(InvalidArgument):
        Webhook("file:///etc/passwd")


def test_a_topic_takes_each_notice_once(tmp_path: Path) -> None:
    with dejaq.sync.Broker(tmp_path / "data") as broker, dejaq.sync.connect(broker.url) as client:
        client.create_topic("alarms")
        send = AlarmTopic(broker.url, "alarms")
        notice = Notice("alarm-1", "firing", "early", "mail", EARLY.text, 1_000)
        send(notice)
        send(notice)
        with client.consumer("alarms", name="person", lease=30.0) as consumer:
            lease = next(iter(consumer))
            assert json.loads(lease.body) == notice.body()
            assert (lease.id, lease.headers) == ("alarm-1", {"alarm": "early", "state": "firing"})
            lease.delete()
        assert client.count("alarms") == 0


def test_metrics_show_the_alarms_that_are_firing() -> None:
    metrics = PipelineMetrics()
    metrics.events.inc(5)
    metrics.show_alarms({"early/mail": 1, "loss/a": 2})
    metrics.show_alarms({"early/mail": 1})
    port = free_port()
    end = metrics.serve("127.0.0.1", port)
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    finally:
        end()
    assert "dejaq_pipeline_events_total 5.0" in text
    assert 'dejaq_pipeline_alarm{kind="early",subject="mail"} 1.0' in text
    assert 'subject="a"' not in text
    assert 'dejaq_pipeline_alarms{kind="loss"} 0.0' in text
