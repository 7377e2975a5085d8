"""The report of the pipeline in a real browser: one file that loads nothing, with charts that can be zoomed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from dejaq.pipeline.reporting.findings import Findings
from dejaq.pipeline.reporting.report import page as report_page
from tests.acceptance.browsing import IMAGES, LISTEN, axe_source, browser

MARKUP = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
LONG = "a-topic-with-a-name-that-is-so-long-that-a-picture-would-have-cut-it-off"
START_MS = 1_800_000_000_000
MINUTES = 600


def _rows() -> list[Findings]:
    """What the jobs find, in their form, without a lake."""

    def never() -> Any:
        raise AssertionError("the report draws no picture")

    at = [START_MS + n * 60_000 for n in range(MINUTES)]
    hours = [START_MS + n * 3_600_000 for n in range(24)]
    balance = [
        {"topic": topic, "created": 100, "deleted": 90, "cancelled": 2, "dead_lettered": 3, "dropped": 0, "pending": 5}
        for topic in ("shop", LONG, MARKUP)
    ]
    lost = [{"finding": "lost", "topic": "shop", "id": f"order-{n}", "detail": "gone"} for n in range(3_000)]
    return [
        Findings(
            "audit", {"balance": balance, "findings": lost}, {"created": 300, "verdict": "unbalanced"}, never, True
        ),
        Findings(
            "accuracy",
            {
                "hours": [
                    {"topic": "shop", "hour_ms": ms, "delivered": 100, "p50_ms": 2.0, "p99_ms": 1_234_567.0 * (n % 5)}
                    for n, ms in enumerate(hours)
                ],
                "histogram": [{"topic": "shop", "from_ms": edge, "count": 10 + edge} for edge in (-1, 0, 50, 10_000)],
            },
            {"delivered": 2_400, "slo_ms": 100.0},
            never,
        ),
        Findings(
            "forecast",
            {
                "minutes": [
                    {"topic": "shop", "minute_ms": ms, "due": n % 60, "expected": 12.5, "consumers": 1 + n % 3}
                    for n, ms in enumerate(at)
                ],
                "arrivals": [
                    {"topic": "shop", "hour_ms": ms, "arrivals": 100.0, "low": 80.0, "high": None} for ms in hours
                ],
            },
            {"due": 17_700},
            never,
        ),
        Findings(
            "retries",
            {
                "attempts": [{"topic": "shop", "attempts": n, "count": 100 // n} for n in (1, 2, 3)],
                "consumers": [{"topic": LONG, "consumer": "worker-1", "held_p99_ms": 12.5, "slow": True}],
            },
            {"retried": 3},
            never,
        ),
        Findings(
            "traffic",
            {
                "groups": [{"topic": "shop", "owner": MARKUP, "bytes": 1_000, "duplicate_share": 0.25}],
                "created_by_minute": [{"topic": "shop", "minute_ms": ms, "created": 7} for ms in at],
            },
            {"created": 300},
            never,
        ),
    ]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def opened(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    """The report in a tab that allows no request but the one for the file."""
    path = tmp_path / "report.html"
    path.write_text(report_page(_rows(), lake=f"/lake/{MARKUP}", made_ms=START_MS, newest_ms=START_MS))
    context = chromium.new_context(viewport={"width": 1100, "height": 900}, color_scheme="light")
    tab = context.new_page()
    requests: list[str] = []
    faults: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    tab.add_init_script(LISTEN)
    tab.goto(path.as_uri())
    yield tab
    violations = tab.evaluate("window.violations")
    context.close()
    assert (requests, faults, violations) == ([path.as_uri()], [], [])


def _range(tab: Page) -> tuple[float, float]:
    chart = tab.locator("#forecast svg").first
    return float(chart.get_attribute("data-low") or 0), float(chart.get_attribute("data-high") or 0)


def test_every_job_is_shown_and_no_text_is_clipped(opened: Page) -> None:
    assert opened.locator("section").count() == 5
    assert opened.locator("section.failed").count() == 1
    for width in (1100, 420):
        opened.set_viewport_size({"width": width, "height": 900})
        opened.wait_for_load_state()
        outside = opened.evaluate(
            """() => [...document.querySelectorAll("svg text")].filter((text) => {
                const inner = text.getBoundingClientRect(), outer = text.ownerSVGElement.getBoundingClientRect();
                return inner.left < outer.left - 1 || inner.right > outer.right + 1;
            }).map((text) => text.textContent)"""
        )
        assert outside == []
        cut = opened.evaluate(
            """() => [...document.querySelectorAll(".bars .name, .bars .value, .legend li, .cards li")]
                .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""
        )
        assert cut == []
    expect(opened.locator("#audit .bars")).to_contain_text(LONG)
    # What looks like markup is text.
    expect(opened.locator("#traffic .bars")).to_contain_text(MARKUP)
    assert opened.locator("img").count() == 0
    if IMAGES:
        opened.set_viewport_size({"width": 1100, "height": 900})
        opened.screenshot(path=os.path.join(IMAGES, "report.png"), full_page=True)
        opened.evaluate("document.getElementById('theme').click()")
        opened.screenshot(path=os.path.join(IMAGES, "report-dark.png"), full_page=True)


def test_a_table_is_searched_to_its_end_and_sorted(opened: Page) -> None:
    table = opened.locator("#audit details").nth(1)
    expect(table.locator(".rows")).to_have_text("1 to 25 of 3,000 rows")
    table.get_by_role("searchbox").fill("order-2999")
    expect(table.locator(".rows")).to_have_text("1 to 1 of 1 rows")
    expect(table.locator("tbody")).to_contain_text("order-2999")
    table.get_by_role("searchbox").fill("")
    table.get_by_role("button", name="next").click()
    expect(table.locator(".rows")).to_have_text("26 to 50 of 3,000 rows")
    minutes = opened.locator("#forecast details").first
    minutes.locator("summary").click()
    for _ in range(2):
        minutes.get_by_role("button", name="due").click()
    expect(minutes.locator("tbody tr").first).to_contain_text("59")


def test_a_timeline_is_zoomed_with_the_mouse_and_the_keyboard(opened: Page) -> None:
    chart = opened.locator("#forecast svg").first
    chart.scroll_into_view_if_needed()
    whole = _range(opened)
    assert whole == (START_MS, START_MS + MINUTES * 60_000)
    box = chart.bounding_box()
    assert box is not None
    opened.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 100)
    opened.mouse.down()
    opened.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 100)
    opened.mouse.up()
    near = _range(opened)
    assert whole[0] < near[0] < near[1] < whole[1]
    assert (near[1] - near[0]) / (whole[1] - whole[0]) == pytest.approx(0.2, abs=0.05)
    chart.focus()
    opened.keyboard.press("+")
    nearer = _range(opened)
    assert nearer[1] - nearer[0] == pytest.approx((near[1] - near[0]) / 2)
    opened.keyboard.press("ArrowRight")
    assert _range(opened)[0] > nearer[0]
    for _ in range(30):
        opened.keyboard.press("+")
    low, high = _range(opened)
    assert high - low == pytest.approx(120_000)
    opened.locator("#forecast").get_by_role("button", name="whole time").first.click()
    assert _range(opened) == whole


def test_both_colours_pass_the_check_of_accessibility(opened: Page) -> None:
    opened.evaluate(axe_source())
    for theme in ("light", "dark"):
        assert opened.locator("html").get_attribute("data-theme") == theme
        found = opened.evaluate("async () => (await axe.run(document, {runOnly: ['wcag2a', 'wcag2aa']})).violations")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
        opened.evaluate("document.getElementById('theme').click()")
