"""The pages as the server renders them: every value is escaped, and an outage is a page too."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable

import httpx
import pytest
import zstandard

import dejaq
from dejaq.web.api.table import operations
from dejaq.web.pages.bodies import HEX_BYTES_MAX, PART_BYTES, shown_body
from dejaq.web.pages.rendering import FOLDER
from tests.integration.web.serving import serving

MARKUP = "<img src=x onerror=alert(1)>\"'`{{7*7}}</script>"
PAGES = [
    *("", "/messages", "/due", "/produce", "/consume", "/dead-letters", "/schedules", "/lateness", "/log"),
    "/messages/one",
]


@pytest.mark.parametrize("tail", PAGES)
async def test_markup_from_producers_is_text(api: httpx.AsyncClient, tail: str) -> None:
    """S9: in bodies, headers, owners, and the address."""
    await api.put(
        "/api/v1/topics/mail/messages/one",
        params={"group": MARKUP},
        json={"body": MARKUP, "headers": {MARKUP: MARKUP}, "delay": 60},
    )
    answer = await api.get(f"/topics/mail{tail}", params={"start": MARKUP} if tail == "" else {})
    assert answer.status_code == 200, answer.text
    assert "<img src=x" not in answer.text
    assert "{{7*7}}</script>" not in answer.text
    assert not re.search(r"\son\w+=|javascript:|style=", re.sub(r"&[^;]+;", "", answer.text.replace("onerror", "")))
    if tail == "/messages/one":
        assert "&lt;img src=x onerror=alert(1)&gt;" in answer.text


@pytest.mark.parametrize("path", ["/", "/topics", "/topics?q=ma", "/clients", "/api", "/static/app.js"])
async def test_every_page_is_served(api: httpx.AsyncClient, path: str) -> None:
    answer = await api.get(path)
    assert answer.status_code == 200
    assert "nosniff" in answer.headers["x-content-type-options"]


async def test_the_api_page_lists_the_whole_table(web: httpx.AsyncClient) -> None:
    text = (await web.get("/api")).text
    assert all(one.path in text for one in operations())


WRONG = ["/topics/nothing", "/topics/mail/messages?start=soon", "/topics/mail/messages/no%20id"]


@pytest.mark.parametrize("path", WRONG)
async def test_an_error_is_a_page(api: httpx.AsyncClient, path: str) -> None:
    answer = await api.get(path)
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"].startswith("text/html")
    assert re.search(r"<h1>[A-Z_]+</h1>", answer.text)


async def test_pages_follow_one_another(api: httpx.AsyncClient) -> None:
    rows = [{"id": f"m{n:03}", "delay": 60 + n} for n in range(150)]
    await api.post("/api/v1/topics/mail/messages", json=rows)
    first = await api.get("/topics/mail/messages?status=waiting")
    link = re.search(r'rel="next" href="([^"]+)"', first.text)
    assert link is not None
    second = await api.get(f"/topics/mail/messages{link[1].replace('&amp;', '&')}")
    found = re.findall(r"/messages/(m\d+)", first.text + second.text)
    assert found == [row["id"] for row in rows]


@pytest.mark.usefixtures("no_wait_for_brokers")
async def test_without_a_broker_the_page_says_what_to_do() -> None:
    async with (
        serving(dejaq.connect("dejaq://127.0.0.1:1", deadline=0.2, timeout=0.2)) as address,
        httpx.AsyncClient(base_url=address, timeout=60, verify=False, trust_env=False) as web,
    ):
        answer = await web.get("/")
        assert answer.status_code == 503
        assert "NO_BROKER" in answer.text
        assert "data-again" in answer.text
        assert (await web.get("/static/style.css")).status_code == 200


def test_the_scripts_of_the_pages_are_small() -> None:
    """At most 80 kB in all, without compression; programs load `dejaq.js` instead."""
    sizes = {path.name: path.stat().st_size for path in (FOLDER / "static").glob("*.js")}
    assert sum(size for name, size in sizes.items() if name != "dejaq.js") <= 80_000
    assert sizes["dejaq.js"] <= 20_000


def test_a_body_is_shown_in_every_form_that_suits_it() -> None:
    assert shown_body(b'{"a":[1]}', 0, whole=True).pretty == '{\n  "a": [\n    1\n  ]\n}'
    assert shown_body(b"{broken", 0, whole=True).pretty == ""
    binary = shown_body(b"\xff\x00A", 0, whole=True)
    assert (binary.text, binary.pretty, binary.unpacked) == ("", "", "")
    assert binary.hex.startswith("00000000  ff 00 41 ")
    assert binary.hex.endswith("..A")
    middle = shown_body("ä".encode()[1:] + "ä".encode() * 20_000 + "ä".encode()[:1], 65_536, whole=False)
    assert set(middle.text) == {"ä"}
    assert middle.hex.startswith("00010000  ")
    assert len(middle.hex.splitlines()) == HEX_BYTES_MAX // 16
    assert shown_body(b"[" * 60_000, 0, whole=True).pretty == ""


@pytest.mark.parametrize(("packing", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_a_compressed_body_is_shown_decompressed_up_to_a_limit(packing: str, pack: Callable[[bytes], bytes]) -> None:
    shown = shown_body(pack(b'{"a": 1}'), 0, whole=True)
    assert (shown.packing, shown.unpacked) == (packing, '{\n  "a": 1\n}')
    bomb = shown_body(pack(b"x" * 50_000_000), 0, whole=True)
    assert 0 < len(bomb.unpacked) <= PART_BYTES
    assert shown_body(pack(b"abc")[:4] + b"\xff" * 30, 0, whole=True).unpacked == ""


async def test_a_large_body_is_shown_in_parts(web: httpx.AsyncClient, broker: dejaq.Broker) -> None:
    async with dejaq.connect(broker) as client:
        await client.create_topic("files", max_body_bytes=1 << 26)
        async with client.producer("files") as producer:
            await producer.send(b"".join(b"%015d\n" % n for n in range(400_000)), id="big", delay=600)
            await producer.send(b"y" * 200_000, id="middle", delay=600)
    page = (await web.get("/topics/files/messages/big?part=50")).text
    assert "Part 51 of 98" in page
    assert f"{50 * 65_536 // 16:015d}" in page
    assert "Part 4 of 4" in (await web.get("/topics/files/messages/middle?part=99")).text
