"""The examples of docs/http.md, run with curl in the order of the page."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from dejaq.testing.servers.process import free_port
from dejaq.testing.waiting import wait_until
from tests.acceptance.process import DEJAQ, SECONDS_MAX, dejaq, environment, serve

PAGE = Path(__file__).resolve().parents[2] / "docs/http.md"
EXAMPLES = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
WEB = "127.0.0.1:7480"


def run(example: str, address: str, **variables: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example.replace(WEB, address)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**environment(""), **variables},
        check=False,
    )
    assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_example_of_the_page_works() -> None:
    with serve(None) as broker:
        address = f"127.0.0.1:{free_port()}"
        gateway = subprocess.Popen(
            [DEJAQ, "web", "--listen", address, "--url", broker.url], env=environment(""), stdout=subprocess.PIPE
        )
        try:
            assert gateway.stdout is not None
            assert f"serving http://{address}" in gateway.stdout.readline().decode()
            wait_until(lambda: answers(address), within=20, what="the gateway answers")
            create, put, read, change, receive, delete, _, lines, pages, count, move, *_ = EXAMPLES
            assert '"name":"mail"' in run(create, address)
            assert json.loads(run(put, address))["code"] == "OK"
            assert json.loads(run(put, address))["ok"] is True
            version = re.search(r'etag: "(\d+)"', run(read, address))
            assert version is not None
            assert json.loads(run(change, address, VERSION=version[1]))["id"] == "invoice-1"
            (held,) = json.loads(run(receive, address))["leases"]
            assert held["body"] == "Your invoice"
            run(delete, address, LEASE=held["lease"])
            outcomes = [json.loads(line) for line in run(lines, address).splitlines()]
            assert [one["code"] for one in outcomes] == ["OK", "OK"]
            again = [json.loads(line) for line in run(lines, address).splitlines()]
            assert [one["id"] for one in again] == [one["id"] for one in outcomes]
            assert len(json.loads(run(pages, address))["messages"]) == 2
            assert json.loads(run(count, address)) == {"count": 2}
            assert '"matched":2,"done":2' in run(move, address)
            use_together(address)
            # The history needs a journal, which a broker without a directory does not keep.
            assert "the journal is off" in run(EXAMPLES[6], address)
            gateway.terminate()
            assert gateway.wait(SECONDS_MAX) == 0
        finally:
            gateway.kill()
            gateway.wait()


def use_together(address: str) -> None:
    """The examples of several messages, a transaction, a fan-out and a request with its reply."""
    edit, transact, fan_out, request, reply = EXAMPLES[11:]
    with httpx.Client(base_url=f"http://{address}/api/v1", trust_env=False, verify=False, timeout=30) as api:

        def lease(topic: str) -> str:
            answer = api.post(f"/topics/{topic}/leases", json={"wait": 20}).json()
            return str(answer["leases"][0]["lease"])

        for topic in ("audit", "sums"):
            assert api.post("/topics", json={"name": topic}).status_code == 201
        assert json.loads(run(edit, address))["results"][0]["code"] == "NOT_FOUND"
        api.put("/topics/mail/messages/input", json={"body": "x"})
        assert len(json.loads(run(transact, address, LEASE=lease("mail")))["ids"]) == 2
        assert json.loads(run(fan_out, address))["codes"] == {"audit": "OK", "mail": "OK"}
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(run, request, address)
            run(reply, address, LEASE=lease("sums"))
            assert json.loads(asked.result())["body"] == "42"


def answers(address: str) -> bool:
    with socket.socket() as probe:
        host, _, port = address.rpartition(":")
        return probe.connect_ex((host, int(port))) == 0


def test_wrong_options_are_one_clear_sentence() -> None:
    """S11: without users the gateway serves this machine only."""
    done = dejaq("web", "--listen", "0.0.0.0:0")
    assert done.code == 1
    assert "give the gateway TLS and users" in done.err
    assert "Traceback" not in done.err
    assert dejaq("web", "--listen", "nonsense").code == 1
