"""The browser client of docs/browser.md in a real browser: producer, consumers with leases, outages, other sites."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import dejaq.sync
import dejaq.web
from dejaq.testing.servers.process import BrokerProcess, free_port
from dejaq.testing.waiting import patient, wait_until
from tests.acceptance.browsing import Tab, broker_apart, browser, gateway, tab_of

ROOT = Path(__file__).resolve().parents[2]
MODULE = Path(dejaq.web.__file__).parent / "static/dejaq.js"
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
def site() -> Iterator[str]:
    """A page of another site, with its own copy of the module."""
    with serving_site() as address:
        yield address


@pytest.fixture(scope="module")
def address(broker: BrokerProcess, site: str) -> Iterator[str]:
    with gateway(broker, "--origin", site) as serving:
        yield serving


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[dejaq.sync.Client]:
    with dejaq.sync.connect(broker.url) as connected:
        yield connected


@contextmanager
def serving_site() -> Iterator[str]:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            module = self.path == "/dejaq.js"
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if module else "text/html")
            self.end_headers()
            self.wfile.write(MODULE.read_bytes() if module else b"<!doctype html><title>app</title>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(page: Page, script: str, *arguments: Any, module: str = "/static/dejaq.js") -> Any:
    """Run a program of the page with the module as `dejaq`."""
    return page.evaluate(
        f"async (given) => {{ const dejaq = await import('{module}'); window.dejaq = dejaq; {script} }}", arguments
    )


def open_page(chromium: Browser, address: str) -> Tab:
    tab = tab_of(chromium, address)
    tab.go("/api")
    return tab


def test_a_page_produces_and_consumes_with_leases(chromium: Browser, address: str, client: dejaq.sync.Client) -> None:
    client.create_topic("tasks", max_attempts=2)
    tab = open_page(chromium, address)
    sent = run(
        tab.page,
        """
        window.client = dejaq.connect();
        await client.ready;
        await client.send("tasks", { body: { n: 1 }, headers: { kind: "test" } });
        await client.send("tasks", { body: new Uint8Array([0, 255, 7]), priority: 3 }, { group: "bytes" });
        const rows = await client.send("tasks", [{ body: "text é", id: "own" }, { body: "x", id: "no id" }]);
        return rows.map((one) => [one.id, one.code]);
        """,
    )
    assert sent == [["own", "OK"], ["no id", "INVALID_ID"]]
    seen = run(
        tab.page,
        """
        const seen = [];
        for await (const lease of client.consumer("tasks", { name: "tab", credit: 2 })) {
          seen.push(lease.priority ? [...lease.bytes] : lease.headers.kind ? lease.json().n : lease.text);
          await lease.extend(60);
          if (lease.id === "own") await lease.reject("not wanted"); else await lease.delete();
          if (seen.length === 3) break;
        }
        return seen;
        """,
    )
    assert sorted(map(str, seen)) == ["1", "[0, 255, 7]", "text é"]
    assert client.count("tasks") == 0
    assert client.dead_letters("tasks").count() == 1
    code = run(
        tab.page,
        "try { await client.send('nothing', { body: 'x' }); } catch (error) { return [error.code, error.retryable]; }",
    )
    assert code == ["TOPIC_NOT_FOUND", False]
    tab.check()
    tab.page.context.close()


def test_a_page_changes_watches_and_answers(chromium: Browser, address: str, client: dejaq.sync.Client) -> None:
    """Edits, cancels, transactions with its own leases, requests with replies, and live data."""
    client.create_topic("board")
    tab = open_page(chromium, address)
    seen = run(
        tab.page,
        """
        const client = dejaq.connect(), topic = "board", path = { topic };
        const codeOf = (work) => work.then(() => "", (error) => error.code);
        await client.send(topic, ["a", "b"].map((id) => ({ id, body: id, delay: 3600 })));
        await client.send(topic, { id: "now", body: "z" });
        const edited = await client.edit(topic, "a", { priority: 7 });
        const refused = await codeOf(client.edit(topic, "a", { priority: 8 }, { version: edited.version + 1 }));
        await client.cancel(topic, "b");
        const consumer = client.consumer(topic, { credit: 1 }), { value: lease } = await consumer.next();
        const next = { do: "send", topic, id: "after", body: { of: lease.id }, delay: 60 };
        const ids = await client.transaction([{ do: "delete", lease }, next]);
        const asked = client.request(topic, { body: "6 * 7" });
        const { value: question } = await consumer.next();
        await question.progress("half");
        await question.reply({ answer: 42 });
        const reply = (await asked).json();
        const { count } = await client.call("countMessages", { path, query: { status: "waiting" } });
        const waiting = await new Promise((resolve) => {
          const end = client.watch({ kind: "topic", topic }, (data) => { end(); resolve(data.waiting); });
        });
        const missing = await new Promise((resolve) => {
          client.watch({ kind: "due", topic: "nothing" }, (data, now, error) => resolve(error.code));
        });
        await consumer.close();
        await client.close();
        return [edited.priority, refused, ids, question.wants_reply, reply.answer, count, waiting, missing];
        """,
    )
    assert seen == [7, "VERSION_CONFLICT", ["now", "after"], True, 42, 2, 2, "TOPIC_NOT_FOUND"]
    tab.check()
    tab.page.context.close()


def test_two_tabs_share_a_topic_and_a_closed_tab_loses_nothing(
    chromium: Browser, address: str, client: dejaq.sync.Client
) -> None:
    client.create_topic("shared")
    with client.producer("shared") as producer:
        producer.send_batch([b"x"] * 40)
    first, second = (open_page(chromium, address) for _ in range(2))
    consume = """
        window.seen = []; window.client = dejaq.connect(); await client.ready;
        (async () => {
          for await (const lease of client.consumer("shared", { credit: 50, lease: 600 })) {
            seen.push(lease.id);
            if (given[0]) await lease.delete();
          }
        })();
    """
    run(first.page, consume, False)
    wait_until(lambda: first.page.evaluate("seen.length") == 40, within=20, what="the first tab holds every message")
    run(second.page, consume, True)
    wait_until(lambda: client.describe_topic("shared").consumers == 2, within=20, what="both tabs consume")
    assert second.page.evaluate("seen.length") == 0
    first.page.context.close()
    wait_until(lambda: client.count("shared") == 0, within=30, what="the second tab gets what the first one held")
    assert second.page.evaluate("new Set(seen).size") == 40
    second.check()
    second.page.context.close()


def test_a_page_survives_the_restart_of_its_gateway(
    chromium: Browser, broker: BrokerProcess, site: str, client: dejaq.sync.Client
) -> None:
    client.create_topic("outage")
    listen = f"127.0.0.1:{free_port()}"
    tab = tab_of(chromium, site)
    tab.go("/")
    # The browser reports each connection that fails.
    tab.expected = ("ERR_CONNECTION", "WebSocket")
    with gateway(broker, "--origin", site, listen=listen):
        run(
            tab.page,
            """
            window.client = dejaq.connect(given[0]); await client.ready; window.seen = [];
            (async () => {
              for await (const lease of client.consumer("outage")) { seen.push(lease.text); await lease.delete(); }
            })();
            await client.send("outage", { body: "before" });
            """,
            f"http://{listen}",
            module="/dejaq.js",
        )
        wait_until(lambda: tab.page.evaluate("seen.length") == 1, within=20, what="it is consumed")
    tab.page.evaluate("window.sending = client.send('outage', { body: 'during' }); 0")
    with gateway(broker, "--origin", site, listen=listen):
        assert tab.page.evaluate("sending.then((one) => one.ok)") is True
        wait_until(lambda: tab.page.evaluate("seen.join()") == "before,during", within=30, what="it continues")
        tab.page.evaluate("client.close()")
    tab.check()
    tab.page.context.close()


def test_a_site_that_is_not_named_is_refused(chromium: Browser, address: str) -> None:
    with serving_site() as other:
        tab = tab_of(chromium, other)
        tab.go("/")
        refused = run(
            tab.page,
            """
            const client = dejaq.connect(given[0]);
            try { await client.ready; return "connected"; } catch (error) { client.close(); return error.code; }
            """,
            address,
            module="/dejaq.js",
        )
        assert refused == "NO_BROKER"
        tab.page.context.close()


def test_the_example_of_the_page_works(chromium: Browser, address: str, client: dejaq.sync.Client) -> None:
    """docs/browser.md: the example as it stands, with a shorter delay."""
    found = re.search(r"<script type=\"module\">\n(.*?)</script>", (ROOT / "docs/browser.md").read_text(), re.S)
    assert found is not None
    client.create_topic("mail")
    tab = open_page(chromium, address)
    body = re.sub(r"import \{ connect \} from .*\n", "const { connect } = dejaq;\n", found[1])
    assert body.count("delay: 60") == 1
    tab.page.evaluate("window.logged = []; const log = console.log; console.log = (value) => logged.push(value); 0")
    run(tab.page, f"(async () => {{ {body.replace('delay: 60', 'delay: 0.1')} }})();")
    wait_until(lambda: tab.page.evaluate("logged.length") == 1, within=20, what="the message is consumed")
    assert tab.page.evaluate("logged[0].to") == "ann@example.com"
    tab.check()
    tab.page.context.close()
