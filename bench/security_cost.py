"""The cost of TLS, tokens and rights together: the same load through a plain broker and a protected one, in turns.

    python -m bench.security_cost --rounds 5 --messages 100000

The protected broker has TLS, accepts tokens of an issuer, and checks rights. Writes the medians of both and of the
ratios of pairs to `bench/results/security_cost.json`: batches of 1,000 bodies of 100 bytes, and the time from the send
of a message that is due at once to its receipt. The processor time per message is that of the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from joserfc import jwt
from joserfc.jwk import ECKey

import dejaq
from bench.encryption_cost import run_batches
from bench.figures import keep
from dejaq.security.certificates import make_trial_set
from dejaq.security.client import ClientSecurity
from dejaq.security.tls import ClientTls, TlsFiles
from dejaq.testing.servers.process import BrokerProcess

NAMES = ("create_per_s", "create_us", "lease_delete_per_s", "lease_delete_us", "latency_p50_ms", "latency_p99_ms")
TOPIC = "~/load"


def main() -> None:
    """Run the rounds and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--single", type=int, default=1_000)
    arguments = parser.parse_args()
    figures: dict[str, object] = vars(arguments).copy()
    keep("security_cost", figures | asyncio.run(_compared(arguments.messages, arguments.single, arguments.rounds)))


async def _compared(messages: int, single: int, rounds: int) -> dict[str, dict[str, float]]:
    runs: dict[str, list[dict[str, float]]] = {"plain": [], "protected": []}
    with tempfile.TemporaryDirectory(prefix="dejaq-security-cost-") as text, _issuer() as (issuer, token):
        folder = Path(text)
        files = make_trial_set(folder / "tls", ("127.0.0.1",), "bench")
        auth = folder / "auth.toml"
        auth.write_text(
            f'[[issuers]]\nalias = "bench"\nissuer = "{issuer}"\naudience = ["dejaq"]\njwks = "{issuer}/keys"\n'
        )
        tls = ["--tls-cert", str(files["server.pem"]), "--tls-key", str(files["server-key.pem"])]
        protected = [*tls, "--auth", str(auth), "--admins", "user:root"]
        ca, quiet = str(files["ca.pem"]), ["--log-level", "warning"]
        trusting = ClientSecurity(ClientTls(TlsFiles(ca=ca)))
        async with (
            BrokerProcess(folder / "plain", options=quiet) as first,
            BrokerProcess(folder / "protected", options=[*protected, *quiet], security=trusting) as second,
            dejaq.connect(first.url) as plain,
            dejaq.connect(second.url, ca=ca, token=token) as known,
        ):
            sides = {"plain": (plain, first.pid, "load"), "protected": (known, second.pid, TOPIC)}
            for client, _, topic in sides.values():
                await client.create_topic(topic)
            for number in range(rounds + 1):
                for name in list(sides)[:: 1 if number % 2 else -1]:
                    client, pid, topic = sides[name]
                    figures = await run_batches(client, pid, topic, 100, messages)
                    figures |= await _latency(client, topic, single)
                    if number:
                        runs[name].append(figures)
                        print(f"round {number}, {name}: {figures}", file=sys.stderr, flush=True)
    compared = {}
    for name in NAMES:
        without, with_ = [[run[name] for run in runs[side]] for side in runs]
        ratio = median(b / a for a, b in zip(without, with_, strict=True))
        more = median(b - a for a, b in zip(without, with_, strict=True))
        both = {"plain": median(without), "protected": median(with_), "difference": more}
        compared[name] = {side: round(value, 3) for side, value in both.items()} | {"ratio": round(ratio, 3)}
    return compared


async def _latency(client: dejaq.Client, topic: str, count: int) -> dict[str, float]:
    """Milliseconds from the send of one message, due at once, to its receipt; one after the other."""
    taken = []
    async with client.producer(topic) as producer, client.consumer(topic) as consumer:
        messages = aiter(consumer)
        for _ in range(count):
            began = time.monotonic()
            send = asyncio.ensure_future(producer.send(os.urandom(100)))
            lease = await anext(messages)
            taken.append((time.monotonic() - began) * 1_000)
            await send
            await lease.delete()
    taken.sort()
    return {"latency_p50_ms": taken[len(taken) // 2], "latency_p99_ms": taken[len(taken) * 99 // 100]}


@contextmanager
def _issuer() -> Iterator[tuple[str, str]]:
    """The keys of an issuer on loopback, and a token of it for a user, which is valid for a day."""
    key = ECKey.generate_key("P-256", parameters={"kid": "one", "use": "sig"})
    keys = json.dumps({"keys": [key.as_dict(private=False)]}).encode()

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(keys)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address, now = f"http://127.0.0.1:{server.server_port}", int(time.time())
    claims = {"iss": address, "aud": "dejaq", "preferred_username": "bench", "iat": now, "exp": now + 86_400}
    try:
        yield address, jwt.encode({"alg": "ES256", "kid": "one"}, claims, key, algorithms=["ES256"])
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
