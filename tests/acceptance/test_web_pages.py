"""The pages of `dejaq web` in a real browser, on a real broker, with the mouse and the keyboard."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

import dejaq.sync
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import patient, wait_until
from tests.acceptance.browsing import Tab, apart, broker_apart, browser, gateway, tab_of

MARKUP = "<img src=x onerror=alert(1)>"
expect.set_options(timeout=patient(10_000))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def broker(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_apart(tmp_path_factory.mktemp("data") / "broker") as serving:
        yield serving


@pytest.fixture(scope="module")
def address(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    lake = tmp_path_factory.mktemp("lake")
    keep_results(lake)
    with gateway(broker, "--lake", str(lake)) as serving:
        yield serving


def keep_results(lake: Path) -> None:
    """What the jobs on a lake leave, as docs/pipeline.md describes it."""
    now = time.time_ns() // 1_000_000 // 60_000 * 60_000
    minutes = [
        {
            "topic": "shop",
            "minute_ms": now + n * 60_000,
            "due": round(60 * (1 + math.sin(n / 20)) * math.exp(-n / 150)),
            "expected": round(25 * (1 - math.exp(-n / 60)), 1),
            "consumers": 1 + (n // 40) % 3,
        }
        for n in range(240)
    ]
    audit: dict[str, Any] = {
        "created": 2_004,
        "deleted": 0,
        "cancelled": 0,
        "dead_lettered": 3,
        "dropped": 0,
        "pending": 2_001,
    }
    audit |= {"lost": 0, "doubled": 0, "early": 0, "unexplained": 0, "missing_records": 0, "verdict": "balanced"}
    balance = [{"topic": "shop", "created": 2_001, "deleted": 0, "pending": 2_001, "difference": 0}]
    results: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "audit": (audit, {"balance": balance, "findings": []}),
        "forecast": ({"due": 2_001, "expected": 3_900.5, "consumers_max": 3, "hours": 4}, {"minutes": minutes}),
        "traffic": ({"created": 2_004, "groups": 2}, {"groups": [{"topic": "shop", "owner": MARKUP, "created": 3}]}),
    }
    (lake / "_results").mkdir()
    for job, (figures, tables) in results.items():
        content = {"format": 1, "made_ms": now, "job": job, "failed": False, "version": 3, "newest_ms": now}
        (lake / "_results" / f"{job}.json").write_text(json.dumps({**content, "figures": figures, "tables": tables}))


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[dejaq.sync.Client]:
    with dejaq.sync.connect(broker.url) as connected:
        yield connected


@pytest.fixture
def tab(chromium: Browser, address: str) -> Iterator[Tab]:
    opened = tab_of(chromium, address)
    yield opened
    opened.check()
    opened.page.context.close()


def test_a_topic_from_its_creation_to_its_deletion(tab: Tab, client: dejaq.sync.Client, tmp_path: Path) -> None:
    """Create, produce by hand, see the future, move a stretch of it after a dry run, list it, delete the topic."""
    page = tab.page
    tab.go("/topics")
    page.get_by_label("Name", exact=True).fill("journey")
    page.get_by_role("button", name="Create", exact=True).click()
    page.wait_for_url("**/topics/journey")
    page.get_by_role("link", name="Produce").click()
    page.get_by_label("Time").fill("+30m")
    page.get_by_label("Copies").fill("40")
    page.get_by_label("Owner").fill("billing")
    expect(page.locator("[data-as=cli]")).to_contain_text("dejaq produce journey")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".outcome")).to_have_text("40 of 40 accepted.")
    page.get_by_role("link", name="Timeline").click()
    expect(page.locator("#bins tbody tr")).to_have_count(1)
    assert page.locator("#bins tbody tr td").nth(1).text_content() == "40"
    drag(tab, 0.03, 0.97)
    expect(page.locator("#selected-count")).to_have_text("40")
    page.get_by_label("Action").select_option("move")
    expect(page.locator("#change [data-as=cli]")).to_contain_text("--group billing --where from=")
    expect(page.locator("#change [data-as=cli]")).to_contain_text("--at +1h")
    page.get_by_label("Action").select_option("shift")
    expect(page.locator("#change [data-as=python]")).to_contain_text("move_where")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("#change .outcome")).to_have_text("40 would be changed. Nothing was changed.")
    (before,) = {message.ts for message in next(client.browse("journey"))}
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#change .outcome")).to_have_text("40 of 40 changed.")
    assert {message.ts for message in next(client.browse("journey"))} == {before + 3_600_000}
    page.get_by_role("link", name="List them").click()
    expect(page.locator("main tbody")).to_contain_text("No message matches.")
    tab.go("/topics/journey")
    page.get_by_label("Name", exact=True).fill("journe")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Type journey to confirm.")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("journey")
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/topics")
    assert "journey" not in {topic.name for topic in client.topics()}


def drag(tab: Tab, start: float, end: float) -> None:
    box = tab.page.locator("#timeline").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    tab.page.mouse.move(box["x"] + box["width"] * start, y)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * (start + end) / 2, y, steps=3)
    tab.page.mouse.move(box["x"] + box["width"] * end, y, steps=3)
    tab.page.mouse.up()


def test_the_timeline_is_used_by_keyboard_and_wheel_down_to_a_millisecond(tab: Tab, client: dejaq.sync.Client) -> None:
    client.create_topic("zoomed")
    with client.producer("zoomed") as producer:
        producer.send_batch([b"x"] * 3, delay=[3_000.0, 3_000.001, 3_000.01])
    page = tab.page
    tab.go("/topics/zoomed")
    line, shown = page.locator("#timeline"), page.locator("#range")
    line.focus()
    wide = shown.text_content()
    page.keyboard.press("+")
    expect(shown).not_to_have_text(wide or "")
    for _ in range(30):
        page.keyboard.press("+")
    expect(shown).to_contain_text("one bar per 1 ms")
    page.keyboard.press("0")
    expect(shown).to_contain_text("one bar per 30 s")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator("#selection")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#selection")).to_be_hidden()
    page.get_by_role("button", name="1 y", exact=True).click()
    expect(shown).to_contain_text("one bar per 2 d")
    line.hover()
    page.mouse.wheel(0, -2_000)
    expect(shown).not_to_contain_text("one bar per 2 d")


def test_two_tabs_change_one_message_and_one_is_refused(tab: Tab, client: dejaq.sync.Client) -> None:
    client.create_topic("edited")
    with client.producer("edited", group="billing") as producer:
        producer.send(b'{"a": 1}', id="one", delay=3_600)
    page = tab.page
    tab.go("/topics/edited/messages/one")
    other = page.context.new_page()
    other.goto(page.url)
    page.get_by_label("Priority").fill("7")
    page.get_by_role("button", name=re.compile("Change version")).click()
    expect(page.locator("dt:text-is('Priority') + dd")).to_have_text("7")
    tab.expected = ("412",)
    other.get_by_label("Priority").fill("8")
    other.get_by_role("button", name=re.compile("Change version")).click()
    expect(other.get_by_text("VERSION_CONFLICT")).to_be_visible()
    other.close()
    tab.go("/topics/edited/messages/one")
    page.get_by_role("button", name="Cancel the message").click()
    expect(page.get_by_text("No message of this id is in edited now.")).to_be_visible()
    assert [text.split()[0] for text in page.locator(".life li").all_text_contents()] == [
        "created",
        "edited",
        "cancelled",
    ]


def test_a_message_is_consumed_by_hand(tab: Tab, client: dejaq.sync.Client) -> None:
    client.create_topic("byhand")
    with client.producer("byhand") as producer:
        producer.send_batch([b"first", b"second"])
    page = tab.page
    # The time left is that of the broker's clock: the browser's is an hour ahead.
    page.add_init_script("const now = Date.now; Date.now = () => now() + 3600000;")
    tab.go("/topics/byhand/consume")
    page.get_by_role("spinbutton", name="Messages").fill("2")
    page.get_by_role("button", name="Lease", exact=True).click()
    expect(page.locator("#leases li")).to_have_count(2)
    expect(page.locator("#leases li").first).to_contain_text(re.compile(r"attempt 1, [56]\d s left"))
    page.get_by_role("button", name="Extend by a minute").first.click()
    page.get_by_role("button", name="Delete").first.click()
    expect(page.locator("#leases li")).to_have_count(1)
    page.get_by_role("button", name="Reject").click()
    expect(page.locator("#leases li")).to_have_count(0)
    wait_until(lambda: client.count("byhand") == 0, within=10, what="both are settled")
    tab.go("/topics/byhand/dead-letters")
    expect(page.locator("main tbody")).to_contain_text("rejected by hand")
    page.get_by_role("button", name=re.compile("Redrive [0-9a-z]{20}")).click()
    wait_until(lambda: client.count("byhand") == 1, within=10, what="it is back")


def test_schedules_are_previewed_over_a_change_of_the_clock(tab: Tab, client: dejaq.sync.Client) -> None:
    client.create_topic("jobs", kind="cron")
    page = tab.page
    tab.go("/topics/jobs/schedules")
    page.get_by_label("Expression").fill("30 2 1 * *")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#times li")).to_have_count(10)
    assert page.locator("#times li", has_text="the clock has changed").count() >= 1
    page.get_by_label("Name", exact=True).fill("monthly")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("main tbody")).to_contain_text("monthly")
    page.get_by_role("button", name="Pause monthly").click()
    expect(page.get_by_role("button", name="Resume monthly")).to_be_visible()


def test_a_page_is_ready_and_zooms_within_its_goals(chromium: Browser, address: str, client: dejaq.sync.Client) -> None:
    """Less than a second from a cold start to a page that reacts; a new zoom level is drawn soon after the key."""
    fill(client)
    ready: list[float] = []
    for _ in range(3):
        # A new context has no cache.
        tab = tab_of(chromium, address)
        tab.go("/topics/shop")
        expect(tab.page.locator("#connection")).to_have_text("live")
        ready.append(tab.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
        tab.check()
        tab.page.context.close()
    assert min(ready) < patient(1_000), ready
    tab = tab_of(chromium, address)
    tab.go("/topics/shop")
    shown = tab.page.locator("#range")
    expect(shown).to_contain_text("one bar per")
    tab.page.locator("#timeline").focus()
    # From the key to the bars and the table with the broker's numbers for the new stretch.
    took = tab.page.evaluate(
        """async () => {
            const rows = document.querySelector("#bins tbody"), found = [];
            for (const key of ["+", "-", "+", "-", "+"]) {
                await new Promise((done) => setTimeout(done, 200));
                const changed = new Promise((done) => new MutationObserver(done).observe(rows, { childList: true }));
                const began = performance.now();
                document.querySelector("#timeline").dispatchEvent(new KeyboardEvent("keydown", { key }));
                await changed;
                found.push(performance.now() - began);
            }
            return found;
        }"""
    )
    assert sorted(took)[2] < patient(50), took
    tab.page.context.close()


def test_a_phone_and_a_page_at_400_percent_show_everything(
    chromium: Browser, address: str, client: dejaq.sync.Client
) -> None:
    """320 pixels wide is a phone, and a screen of 1,280 pixels at 400 %: nothing is beyond the side of the page."""
    fill(client)
    tab = tab_of(chromium, address, viewport={"width": 320, "height": 640})
    for path in ("/", "/topics/shop", "/topics/shop/messages/invoice-1", "/topics/clicks/log", "/access", "/pipeline"):
        tab.go(path)
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    tab.check()
    tab.page.context.close()


def test_a_log_is_used_by_hand(tab: Tab, client: dejaq.sync.Client) -> None:
    """Append, look at the tail, and set the offsets of a group after a dry run."""
    client.create_topic("events", kind="log", buckets=2)
    log = client.log("events")
    log.append_batch([b"first"] * 4, bucket=0)
    with log.group("readers") as group:
        next(iter(group))
        group.commit()
    page = tab.page
    tab.go("/topics/events")
    expect(page.get_by_role("heading", name="Settings")).to_be_visible()
    tab.go("/topics/events/log")
    page.get_by_label("Body").fill("by hand")
    page.get_by_role("button", name="Append").click()
    expect(page.locator("main tbody").first).to_contain_text("by hand")
    tab.go("/topics/events/log")
    page.get_by_label("To", exact=True).fill("latest")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator(".outcome", has_text="Nothing was changed")).to_be_visible()
    (before,) = log.groups()
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator(".outcome", has_text="Reads on from")).to_be_visible()
    (after,) = log.groups()
    assert (before.lag, after.lag) == (4, 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_and_keeps_its_policy(
    chromium: Browser, address: str, client: dejaq.sync.Client, tmp_path: Path, scheme: str
) -> None:
    """S9: markup in ids' neighbours (bodies, headers, owners) is text; axe-core finds nothing serious; pictures."""
    fill(client)
    tab = tab_of(chromium, address, color_scheme=scheme)
    suffix = "" if scheme == "light" else "-dark"
    pages = {
        "overview": "/",
        "topics": "/topics",
        "timeline": "/topics/shop",
        "messages": "/topics/shop/messages?header=kind:invoice",
        "message": "/topics/shop/messages/invoice-1",
        "due-next": "/topics/shop/due",
        "produce": "/topics/shop/produce",
        "consume": "/topics/shop/consume",
        "dead-letters": "/topics/orders/dead-letters",
        "schedules": "/topics/reports/schedules",
        "clients": "/clients",
        "cluster": "/cluster",
        "lateness": "/lateness",
        "log": "/topics/clicks/log",
        "pipeline": "/pipeline",
        "api": "/api",
        "markup": "/topics/shop/messages/markup",
        "missing": "/topics/nothing",
    }
    tab.expected = ("404",)
    for name, path in pages.items():
        tab.go(path)
        if name in ("overview", "timeline", "due-next"):
            expect(tab.page.locator("#connection")).to_have_text("live")
        if name == "timeline":
            drag(tab, 0.3, 0.45)
            expect(tab.page.locator("#selected-count")).not_to_have_text("…")
        tab.axe()
        tab.check()
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} scrolls sideways"
        if name not in ("markup", "missing", "lateness") and (scheme == "light" or name == "timeline"):
            tab.shoot(f"web-{name}{suffix}", tmp_path)
    assert tab.page.locator("img[src=x]").count() == 0
    tab.page.context.close()


def fill(client: dejaq.sync.Client) -> None:
    """A shop with a future."""
    if "shop" in {topic.name for topic in client.topics()}:
        return
    client.create_topic("shop")
    client.create_topic("orders", max_attempts=3)
    client.create_topic("reports", kind="cron")
    client.cron("reports").add("nightly", "30 2 * * *", "report of {date}", zone="Europe/Berlin")
    with client.producer("shop", group="billing") as producer:
        spread = [(n * n % 3_571) ** 1.1 % 3_600 for n in range(2_000)]
        bodies = [b'{"to": "customer-%d@example.com"}' % n for n in range(2_000)]
        producer.send_batch(bodies, delay=spread, headers={"kind": "invoice"})
        producer.send(
            b'{"to": "ann@example.com", "amount": 12.5}', id="invoice-1", delay=900, headers={"kind": "invoice"}
        )
        producer.move("invoice-1", delay=1_800)
        producer.edit("invoice-1", priority=3)
    with client.producer("shop", group=MARKUP) as producer:
        producer.send(MARKUP.encode(), id="markup", delay=600, headers={MARKUP: MARKUP})
    with client.producer("orders") as producer:
        producer.send_batch([b'{"order": %d}' % n for n in range(3)])
    client.create_topic("clicks", kind="log", buckets=4)
    log = client.log("clicks")
    log.append_batch([b'{"page": "/%d"}' % n for n in range(60)], keys=[b"user-%d" % (n % 7) for n in range(60)])
    with log.group("dashboard") as group:
        for n, _ in enumerate(group, 1):
            if n == 40:
                break
        group.commit()
    with client.consumer("orders", name="worker-1", max_messages=3) as consumer:
        for lease in consumer:
            lease.reject("no such customer", error="customer 77 is unknown")


def test_a_broker_that_is_killed_and_comes_back_is_seen_by_the_page(chromium: Browser, tmp_path: Path) -> None:
    with broker_apart(tmp_path / "data") as broker, gateway(broker) as own:
        tab = tab_of(chromium, own)
        tab.go("/")
        expect(tab.page.locator("#connection")).to_have_text("live")
        broker.kill()
        expect(tab.page.locator("#connection")).to_contain_text("NO_BROKER", timeout=patient(30_000))
        other = tab_of(chromium, own)
        other.go("/topics")
        expect(other.page.locator("h1")).to_have_text("NO_BROKER")
        apart(lambda: asyncio.run(broker.restart()))
        expect(tab.page.locator("#connection")).to_have_text("live", timeout=patient(30_000))
        expect(other.page.locator("h1")).to_have_text("Topics", timeout=patient(30_000))
        tab.check()
        for one in (tab, other):
            one.page.context.close()


def test_a_read_only_page_offers_no_change(chromium: Browser, broker: BrokerProcess, client: dejaq.sync.Client) -> None:
    fill(client)
    with gateway(broker, "--read-only") as own:
        tab = tab_of(chromium, own)
        for path in ("/topics", "/topics/shop", "/topics/shop/messages/invoice-1", "/topics/orders/dead-letters"):
            tab.go(path)
            assert tab.page.locator("form.api, button.letter, button.danger").count() == 0
            expect(tab.page.get_by_text("read-only")).to_be_visible()
        tab.check()
        tab.page.context.close()
