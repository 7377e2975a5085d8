"""A browser with the gateway and a broker as processes, and what a page must never do."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from dejaq.testing.servers.process import BrokerProcess, free_port
from dejaq.testing.waiting import patient
from tests.acceptance.process import DEJAQ, environment, serve

Result = TypeVar("Result")
AXE = Path(__file__).parent / "axe"
# Where screenshots go; without it they are made and thrown away.
IMAGES = os.environ.get("DEJAQ_IMAGES")
IMAGE_BYTES_MAX = 150_000
# Collects violations of the page's policy, from its first line on.
LISTEN = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) =>
        window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


def browser_path() -> str:
    """The browser of the tests; skips where there is none."""
    found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if found is None:
        pytest.skip("no Chromium is installed; `make system` installs Debian's chromium-headless-shell")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser_path())
        yield started
        started.close()


def apart(work: Callable[[], Result]) -> Result:
    """Run work in a thread: Playwright's own event loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


@contextmanager
def broker_apart(data: Path, *options: str) -> Iterator[BrokerProcess]:
    """A broker on a directory."""
    serving = serve(data, "--broker", "broker-1", *options)
    broker = apart(serving.__enter__)
    try:
        yield broker
    finally:
        apart(lambda: serving.__exit__(None, None, None))


@contextmanager
def gateway(broker: BrokerProcess, *options: str, listen: str = "") -> Iterator[str]:
    """The address of `dejaq web` in front of a broker."""
    listen = listen or f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [DEJAQ, "web", "--listen", listen, "--rate", "0", "--url", broker.url, *options],
        env=environment(""),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert b"serving" in process.stdout.readline()
        yield f"http://{listen}"
    finally:
        process.terminate()
        assert process.wait(patient(20)) == 0


@dataclass
class Tab:
    """A page of the browser that reports what went wrong in it."""

    page: Page
    address: str
    faults: list[str] = field(default_factory=list)
    # Answers that the test itself provokes.
    expected: tuple[str, ...] = ()

    def go(self, path: str) -> None:
        self.page.goto(self.address + path, wait_until="load")

    def ready(self) -> None:
        """Wait until the page does what its buttons say; a page that loads itself again is shown earlier."""
        expect(self.page.locator("html[data-ready]")).to_be_attached()

    def check(self) -> None:
        """No error in the console, and no violation of the policy: strict CSP and Trusted Types."""
        assert self.page.evaluate("window.violations") == []
        unexpected = [fault for fault in self.faults if not any(one in fault for one in self.expected)]
        assert unexpected == []

    def axe(self) -> None:
        """S9's page is usable by everyone: axe-core finds nothing serious."""
        self.page.evaluate(axe_source())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            (one["id"], node["html"][:200], node["failureSummary"][:300])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"][:3]
        ]
        assert serious == [], self.page.url

    def shoot(self, name: str, folder: Path) -> None:
        """A picture for the docs."""
        target = Path(IMAGES) if IMAGES else folder
        with Image.open(BytesIO(self.page.screenshot())) as picture:
            picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                target / f"{name}.png", optimize=True
            )
        assert (target / f"{name}.png").stat().st_size < IMAGE_BYTES_MAX


def tab_of(browser: Browser, address: str, **options: Any) -> Tab:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, "color_scheme": "light", **options})
    context.add_init_script(LISTEN)
    tab = Tab(context.new_page(), address)
    tab.page.set_default_timeout(patient(10_000))
    tab.page.on("pageerror", lambda error: tab.faults.append(f"error: {error}"))
    tab.page.on("console", lambda one: tab.faults.append(one.text) if one.type in ("error", "warning") else None)
    return tab


def axe_source() -> str:
    source = gzip.decompress((AXE / "axe.min.js.gz").read_bytes())
    known = re.search(r"is ([0-9a-f]{64})\.", (AXE / "README.md").read_text())
    assert known is not None
    assert hashlib.sha256(source).hexdigest() == known[1]
    return source.decode()
