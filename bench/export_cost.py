"""What an export costs without Spark: processor time per row in the broker and in the exporting process.

    python -m bench.export_cost --rows 500000 --rounds 5

The rows have natural ids, 100-byte bodies that look random, and times that follow each other at `--rate` per second, in
64 buckets, as in `bench.connector`. In each round, one process exports the whole topic for a query, as one file. The
medians go to `bench/results/export_cost.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import dejaq.sync
from bench.figures import keep
from dejaq.testing.servers.process import BrokerProcess
from pyspark_dejaq.exporting import columns_written, export_range, planned

BATCH = 5_000
BASE_MS = 1_900_000_000_000


def main() -> None:
    """Fill a topic, export it in rounds, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=int, default=1_000, help="messages due per second")
    parser.add_argument("--name", default="export_cost", help="the name under which the figures are kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dejaq-export-") as folder:
        asyncio.run(_measure(Path(folder), arguments))


async def _measure(home: Path, arguments: argparse.Namespace) -> None:
    async with BrokerProcess(home / "data", options=["--log-level", "warning"]) as broker:
        await asyncio.to_thread(_fill, broker.url, arguments.rows, arguments.rate)
        taken = [
            await asyncio.to_thread(_export, broker, home / str(n), arguments.rows) for n in range(-1, arguments.rounds)
        ]
        # Before the broker ends: its end fails when anything blocked its event loop for too long.
        keep(
            arguments.name,
            {
                "rows": arguments.rows,
                "cpu_ns_per_row": {name: round(median(one[name] for one in taken[1:])) for name in taken[0]},
                "rounds": taken[1:],
                "load": round(os.getloadavg()[0], 1),
            },
        )


def _fill(url: str, rows: int, rate: int) -> None:
    with dejaq.sync.connect(url) as client:
        client.create_topic("rows")
        with client.producer("rows", group="bench") as producer:
            for first in range(0, rows, BATCH):
                numbers = range(first, min(rows, first + BATCH))
                producer.send_batch(
                    [hashlib.sha256(b"%d" % number).hexdigest().encode().ljust(100, b"x") for number in numbers],
                    at=[BASE_MS + number * 1_000 // rate for number in numbers],
                    ids=[f"customer-{number}" for number in numbers],
                )


def _export(broker: BrokerProcess, directory: Path, rows: int) -> dict[str, int]:
    directory.mkdir()
    (part,) = planned(broker.url, "rows", files=1)
    before, broker_s = time.process_time(), _cpu_s(broker.pid)
    exported = export_range(part, str(directory), columns_written(()), durable=False)
    assert exported.rows == rows, exported
    found = {
        "exporting": round((time.process_time() - before) / rows * 1e9),
        "broker": round((_cpu_s(broker.pid) - broker_s) / rows * 1e9),
    }
    Path(exported.path).unlink()
    print(found, file=sys.stderr, flush=True)
    return found


def _cpu_s(process: int) -> float:
    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
