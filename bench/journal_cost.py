"""The cost of the journal: the same throughput run with and without it, in turns, each on a broker of its own.

    python -m bench.journal_cost --rounds 5 --messages 200000

Writes the medians of both, and of the ratios of pairs, to `bench/results/journal_cost.json`: runs one after the other
have similar noise of the machine. The broker's CPU time per message is measured too, because it depends less on other
processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.figures import keep
from dejaq.testing.servers.process import BrokerProcess

RATES = ("create_per_s", "lease_delete_per_s", "end_to_end_per_s")
CPU = "broker_us_per_message"


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--natural-ids", action="store_true")
    arguments = parser.parse_args()
    on: list[dict[str, float]] = []
    off: list[dict[str, float]] = []
    for number in range(arguments.rounds):
        # The order changes from round to round, so that neither side profits from its position.
        for runs, options in ((on, []), (off, ["--journal", "off"]))[:: 1 if number % 2 else -1]:
            runs.append(asyncio.run(_run(options, arguments.messages, arguments.natural_ids)))
        print(f"round {number + 1}: on {on[-1]}, off {off[-1]}", file=sys.stderr, flush=True)
    figures: dict[str, dict[str, float]] = {}
    for name in (*RATES, CPU):
        without, with_it = [median(run[name] for run in runs) for runs in (off, on)]
        ratio = median(a[name] / b[name] for a, b in zip(on, off, strict=True))
        figures[name] = {"off": round(without, 1), "on": round(with_it, 1), "ratio": round(ratio, 3)}
    keep("journal_cost", {"messages": arguments.messages, "rounds": arguments.rounds, **figures})


async def _run(options: list[str], messages: int, natural: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="dejaq-journal-cost-") as folder:
        async with BrokerProcess(Path(folder) / "data", options=[*options, "--log-level", "warning"]) as broker:
            before = _cpu_seconds(broker.pid)
            command = [sys.executable, "-m", "dejaq", "--url", broker.url, "--json", "bench", "throughput"]
            command += ["--messages", str(messages), *(["--natural-ids"] if natural else [])]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
            spent = _cpu_seconds(broker.pid) - before
    figures = json.loads(done.stdout)
    # The messages of the run go through twice: one phase after the other, then both at once.
    return {**{name: figures[name] for name in RATES}, CPU: round(spent * 1e6 / (2 * messages), 3)}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
