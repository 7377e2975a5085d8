"""The pages where things are not ideal: a slow network, fingers, two tabs, hidden tabs, and while data move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect

import dejaq.sync
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import patient, wait_until
from tests.acceptance.browsing import IMAGES, Tab, broker_apart, browser, gateway, tab_of

expect.set_options(timeout=patient(10_000))
# Sums what Chromium reports as shifts of the layout, without those right after an input of the user.
SHIFTS = """
    window.shifts = [];
    new PerformanceObserver((list) => { for (const one of list.getEntries()) if (!one.hadRecentInput)
        window.shifts.push([one.value, ...one.sources.map((source) => source.node?.nodeName + "." + source.node?.id)]);
    }).observe({ type: "layout-shift", buffered: true });
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def broker(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_apart(tmp_path_factory.mktemp("data") / "broker") as serving:
        yield serving


@pytest.fixture(scope="module")
def address(broker: BrokerProcess) -> Iterator[str]:
    with gateway(broker) as serving:
        yield serving


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[dejaq.sync.Client]:
    with dejaq.sync.connect(broker.url) as connected:
        connected.create_topic("shop", max_attempts=2)
        with connected.producer("shop") as producer:
            producer.send_batch([b"x"] * 300, delay=[30.0 + n * 10 for n in range(300)])
        yield connected


def tab_with(chromium: Browser, address: str, **options: Any) -> Tab:
    tab = tab_of(chromium, address, **options)
    tab.page.add_init_script(SHIFTS)
    return tab


def end(tab: Tab) -> None:
    tab.check()
    tab.page.context.close()


def devtools(page: Page) -> CDPSession:
    return page.context.new_cdp_session(page)


def span_of(page: Page) -> float:
    """How many milliseconds the timeline shows, by its own text."""
    first, last = page.locator("#range").inner_text().partition(",")[0].split(" to ")
    return float(page.evaluate("([a, b]) => new Date(b) - new Date(a)", [first, last]))


def test_a_slow_network_delays_a_page_and_breaks_nothing(
    chromium: Browser, address: str, client: dejaq.sync.Client
) -> None:
    """300 ms per round trip and 60 kB/s: the page works, and does not jump when its parts arrive late."""
    tab = tab_with(chromium, address)
    slow = {"offline": False, "latency": 300, "downloadThroughput": 60_000, "uploadThroughput": 30_000}
    devtools(tab.page).send("Network.emulateNetworkConditions", slow)
    tab.go("/topics/shop")
    expect(tab.page.locator("#connection")).to_have_text("live", timeout=patient(30_000))
    expect(tab.page.locator("#bins tbody tr").first).to_be_attached()
    tab.page.locator("#timeline").focus()
    before = span_of(tab.page)
    tab.page.keyboard.press("+")
    assert span_of(tab.page) == pytest.approx(before / 2, rel=0.01)
    tab.go("/topics/shop/produce")
    tab.page.get_by_label("Time").fill("+2h")
    tab.page.get_by_role("button", name="Send").click()
    expect(tab.page.locator(".outcome")).to_contain_text("1 of 1 accepted", timeout=patient(30_000))
    assert sum(value for value, *_ in tab.page.evaluate("shifts")) < 0.02
    end(tab)


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_no_page_jumps_when_live_data_arrive(
    chromium: Browser, address: str, client: dejaq.sync.Client, size: tuple[int, int]
) -> None:
    tab = tab_with(chromium, address, viewport={"width": size[0], "height": size[1]})
    for path in ("/", "/topics", "/topics/shop", "/topics/shop/messages", "/clients", "/lateness", "/cluster"):
        tab.go(path)
        if path in ("/", "/topics/shop", "/lateness"):
            expect(tab.page.locator("#connection")).to_have_text("live")
        # On a narrow screen the links scroll; the one of this page is in sight.
        boxes = tab.page.locator("nav [aria-current=page]").evaluate_all(
            "links => links.map((link) => link.getBoundingClientRect()).map(({ left, right }) => [left, right])"
        )
        assert boxes
        assert all(0 <= left < right <= size[0] for left, right in boxes), (path, boxes)
        shifts = tab.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(shifts))))")
        assert sum(value for value, *_ in shifts) < 0.02, (path, shifts)
    end(tab)


def test_two_fingers_zoom_the_timeline(chromium: Browser, address: str, client: dejaq.sync.Client) -> None:
    tab = tab_with(chromium, address, viewport={"width": 390, "height": 844}, has_touch=True)
    page = tab.page
    tab.go("/topics/shop")
    expect(page.locator("#bins tbody tr").first).to_be_attached()
    page.locator("#timeline").scroll_into_view_if_needed()
    box = page.locator("#timeline").bounding_box()
    assert box is not None
    session, before = devtools(page), span_of(page)

    def touch(kind: str, *places: float) -> None:
        y = box["y"] + 100
        points = [{"x": box["x"] + box["width"] * x, "y": y, "id": number} for number, x in enumerate(places)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 0.45, 0.55)
    for step in range(1, 6):
        touch("touchMove", 0.45 - step * 0.03, 0.55 + step * 0.03)
    touch("touchEnd")
    # The fingers were 10 % of the width apart, and are 40 % apart.
    wait_until(lambda: span_of(page) == pytest.approx(before / 4, rel=0.2), within=10, what="four times as close")
    assert page.locator("#selection").is_hidden()
    end(tab)


def test_a_change_in_one_tab_is_seen_in_another_and_a_hidden_tab_asks_nothing(
    chromium: Browser, address: str, client: dejaq.sync.Client
) -> None:
    client.create_topic("twins")
    first, second = tab_with(chromium, address), tab_with(chromium, address)
    sent: list[dict[str, Any]] = []
    second.page.on(
        "websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(str(frame))))
    )
    for tab in (first, second):
        tab.go("/topics/twins")
        expect(tab.page.locator("#connection")).to_have_text("live")
    waiting = second.page.locator("[data-topic-live] [data-of=waiting]")
    expect(waiting).to_have_text("0")
    with client.producer("twins") as producer:
        producer.send_batch([b"x"] * 7, delay=600)
    expect(waiting).to_have_text("7")
    first.page.get_by_label("Name", exact=True).fill("twins")
    assert sent[-1]["views"]
    second.page.evaluate(
        """Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
        document.dispatchEvent(new Event("visibilitychange"))"""
    )
    wait_until(lambda: _pumped(second.page) and sent[-1]["views"] == [], within=10, what="the hidden tab asks nothing")
    second.page.evaluate("delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))")
    first.page.get_by_role("button", name="Delete").click()
    first.page.wait_for_url("**/topics")
    expect(second.page.locator("#connection")).to_contain_text("TOPIC_NOT_FOUND")
    for tab in (first, second):
        end(tab)


def _pumped(page: Page) -> bool:
    """Let Playwright deliver events."""
    page.evaluate("0")
    return True


def test_dead_letters_that_match_are_redriven_and_purged(
    chromium: Browser, address: str, client: dejaq.sync.Client
) -> None:
    client.create_topic("letters", max_attempts=3)
    with client.producer("letters") as producer:
        producer.send_batch([b"%d" % n for n in range(9)])
    with client.consumer("letters", name="worker", max_messages=9) as consumer:
        for number, lease in enumerate(consumer):
            lease.reject(("bad address", "no customer", "late")[number % 3])
    tab = tab_with(chromium, address)
    page = tab.page
    tab.go("/topics/letters/dead-letters")
    match = page.locator("section", has=page.get_by_role("heading", name="All that match"))
    match.get_by_label("Reason").fill("bad address")
    match.get_by_role("button", name="Count").click()
    expect(match.locator(".outcome")).to_have_text("3 would be changed. Nothing was changed.")
    match.locator("summary").click()
    expect(match.locator("[data-as=cli]")).to_have_text("dejaq dlq redrive letters --reason 'bad address'")
    match.get_by_role("button", name="Redrive them").click()
    expect(page.locator("main > p").first).to_contain_text("6 messages")
    assert client.count("letters") == 3
    match.get_by_label("Reason").fill("late")
    match.get_by_role("button", name="Purge them").click()
    expect(page.locator("main > p").first).to_contain_text("3 messages")
    tab.ready()
    # The keyboard alone: the action in focus shows what it would run.
    button = page.locator("button.letter").first
    button.focus()
    identity = button.get_attribute("data-id")
    page.locator("[data-focused] summary").click()
    expect(page.locator("[data-focused] [data-as=cli]")).to_have_text(f"dejaq dlq redrive letters {identity}")
    expect(page.locator("[data-focused] [data-as=curl]")).to_contain_text(f'{{"ids":["{identity}"]}}')
    button.focus()
    page.keyboard.press("Enter")
    wait_until(lambda: client.count("letters") == 4, within=10, what="the letter is back")
    end(tab)


def test_a_file_of_lines_and_a_template_are_produced(
    chromium: Browser, address: str, client: dejaq.sync.Client, tmp_path: Path
) -> None:
    """One line that is wrong is refused, and the others are sent; each copy of a template has its number."""
    client.create_topic("filed", max_attempts=4)
    lines = tmp_path / "messages.ndjson"
    lines.write_text('{"id": "a", "body": "1", "delay": 600}\n{"id": "no id"}\n{"id": "b", "body": "2", "at": "+1h"}\n')
    tab = tab_with(chromium, address)
    page = tab.page
    tab.go("/topics/filed/produce")
    page.get_by_label("Or a file of lines").set_input_files(lines)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".outcome")).to_have_text("2 of 3 accepted.")
    tab.go("/topics/filed/produce")
    for label, text in (
        ("Time", "+10m"),
        ("Id", "copy"),
        ("Copies", "3"),
        ("Headers, one name:value per line", "k: v"),
    ):
        page.get_by_label(label, exact=True).fill(text)
    page.get_by_label("Body, with {n}").fill('{"n": {n}}')
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Send").press("Enter")
    expect(page.locator(".outcome")).to_have_text("3 of 3 accepted.")
    found = client.get("filed", ["a", "b", "copy-3"])
    assert [one is not None and one.body for one in found] == [b"1", b"2", b'{"n": 3}']
    assert found[2] is not None
    assert found[2].headers == {"k": "v"}
    end(tab)


def test_lateness_is_drawn_from_deliveries(
    chromium: Browser, address: str, client: dejaq.sync.Client, tmp_path: Path
) -> None:
    """Messages are delivered between two readings of the broker's metrics; the page shows them by itself."""
    client.create_topic("timed")
    tab = tab_with(chromium, address)
    page = tab.page
    tab.go("/topics/timed/lateness")
    expect(page.locator("#connection")).to_have_text("live")
    rows = page.locator("#lateness-table tbody tr")
    # For the picture of the docs, deliveries go on for most of a minute.
    count = 4_000 if IMAGES else 120
    with client.producer("timed") as producer, client.consumer("timed", name="worker", max_messages=count) as consumer:
        producer.send_batch([b"x"] * count, delay=[n * 0.01 for n in range(count)])
        for lease in consumer:
            lease.delete()
        expect(rows).not_to_have_count(0, timeout=patient(20_000))
    total = page.evaluate(
        """[...document.querySelectorAll("#lateness-table tbody tr")].reduce((sum, row) => sum + Number(row.cells[1].textContent), 0)"""  # noqa: E501
    )
    assert 1 <= total <= count
    drawn = page.evaluate(
        """(() => { const one = document.querySelector("#lateness"), pen = one.getContext("2d");
        return pen.getImageData(60, 0, one.width - 80, one.height - 30).data.filter((value, n) => n % 4 === 3 && value).length; })()"""  # noqa: E501
    )
    assert drawn > 200
    expect(page.locator("#rates-table")).to_contain_text("timed")
    tab.axe()
    tab.go("/lateness")
    expect(rows).not_to_have_count(0)
    tab.shoot("web-lateness", tmp_path)
    end(tab)


def test_an_owner_cannot_smuggle_a_command_into_what_is_copied(
    chromium: Browser, address: str, client: dejaq.sync.Client
) -> None:
    """S9: commands are quoted, also for owners with a shell's own characters and a template's."""
    owner = "$(touch x); {priority} [ --at {at}] 'a"
    with client.producer("shop", group=owner) as producer:
        producer.send(b"x", id="quoted", delay=3_600)
    tab = tab_with(chromium, address)
    tab.go("/topics/shop/messages/quoted")
    shown = tab.page.locator("section", has=tab.page.get_by_role("heading", name="Cancel")).locator("[data-as=cli]")
    quoted = "'" + owner.replace("'", "'\"'\"'") + "'"
    assert shown.text_content() == f"dejaq cancel shop quoted --group {quoted}"
    tab.page.get_by_role("button", name="Cancel the message").click()
    expect(tab.page.get_by_text("No message of this id")).to_be_visible()
    end(tab)
