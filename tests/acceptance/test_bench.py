"""`dejaq bench` as a user types it."""

from __future__ import annotations

from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import dejaq

RATES = ("create_per_s", "lease_delete_per_s", "end_to_end_per_s")


def test_throughput_is_measured_on_a_broker_of_its_own() -> None:
    done = dejaq("bench", "throughput", "--messages", "2000", "--json")
    assert (done.code, done.err) == (0, "")
    (figures,) = done.objects
    assert figures["messages"] == 2_000
    assert all(figures[rate] > 0 for rate in RATES)
    assert figures["fsyncs"] > 0


def test_throughput_on_a_running_broker_leaves_no_messages_there(broker: BrokerProcess) -> None:
    done = dejaq("bench", "throughput", "--messages", "1500", "--natural-ids", "--url", broker.url)
    assert done.code == 0
    assert all(rate in done.out for rate in RATES)
    topics = dejaq("topic", "list", "--json", url=broker.url).objects
    assert [topic for topic in topics if topic["name"].startswith("bench-") and topic["state"] == "live"] == []


def test_a_phase_that_does_not_end_in_time_reports_its_progress() -> None:
    done = dejaq("bench", "throughput", "--messages", "5000000", "--body-bytes", "1000", "--seconds-max", "1")
    assert done.code == 1
    assert "of 5,000,000 messages went through in 1 s" in done.err
