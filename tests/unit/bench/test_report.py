from __future__ import annotations

from bench.report import number, page

MACHINE = {"cores": 2, "packages": {"redis": "8"}}
RECORD = {
    "bench": "burst",
    "system": "dejaq",
    "durable": True,
    "version": "0.1",
    "settings": {"pending": 1_000, "due": 50, "server": "embedded"},
    "shape": {"burst_messages": 50},
    "early": 0,
    "lateness_p99_ms": 1.25,
}


def test_the_page_shows_machine_goals_figures_and_configuration() -> None:
    text = page(MACHINE, [RECORD], {"burst.png": "a curve"}, notes="## Notes\n\nWhere the time goes.")
    assert "| cores | 2 |" in text
    assert "| packages | redis 8 |" in text
    assert "| **dejaq** | 0 | 1.25 | 1,000 pending, 50 due |" in text
    assert "![a curve](performance/burst.png)" in text
    assert "Where the time goes." in text
    assert "| dejaq | 0.1 | yes | embedded |" in text


def test_a_system_that_failed_is_named_with_its_reason() -> None:
    failed = {**RECORD, "system": "nats", "shape": {"failed": True}, "error": "it did not answer"}
    text = page(MACHINE, [RECORD, failed], {}, notes="")
    assert "nats failed: `it did not answer`" in text


def test_a_bench_that_was_not_run_has_no_section() -> None:
    assert "## Latency" not in page(MACHINE, [RECORD], {}, notes="")


def test_the_realistic_workloads_come_first_with_their_goals_and_figures() -> None:
    sent = {
        **RECORD,
        "bench": "single_sends",
        "system": "dejaq-natural",
        "shape": {"messages": 1_000_000},
        "settings": {"messages": 1_000_000},
        "send_per_s": 30_000.0,
        "ack_p99_ms": 12.5,
    }
    text = page(MACHINE, [RECORD, sent], {}, notes="")
    realistic, friendly = text.split("## Machine")
    assert (
        "| L6 | 1,000,000 single sends: at least 60,000 per second | 30,000/s | **missed by 50% of the goal** |"
        in realistic
    )
    assert "| L6 | 1,000,000 single sends: p99 of an ack at most 20 ms | 12.50 ms | met |" in realistic
    assert "### L6: Single sends" in realistic
    assert "## Bursts" in friendly
    assert "## Goals with friendly workloads" in friendly


def test_numbers_are_short_and_unknown_ones_are_a_dash() -> None:
    assert [number(value) for value in (None, 0, 1.234, 12_345.6, 7)] == ["-", "0", "1.23", "12,346", "7"]
