"""Compares ratios to a peer of the same run with the committed ratios; a busy or other machine changes them little."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records import RESULTS, Record, figures_of, peer_shape, shape_text

COMMITTED = RESULTS / "committed.json"
# Our systems and the peer of each.
PEERS = {
    "dejaq": "redis-always",
    "dejaq-natural": "redis-always",
    "dejaq-postgres": "skip-locked",
    "dejaq-postgres-natural": "skip-locked",
    "dejaq-log": "redis-streams",
}
FELL = 0.7
# For figures that are better when they are smaller, the ratio is inverted, so that more is always better.
SMALLER_IS_BETTER = frozenset(
    {
        "broker_cpu_us_per_message",
        "create_cpu_us_per_message",
        "append_cpu_us_per_message",
        "read_cpu_us_per_message",
        "lateness_p50_ms",
        "lateness_p99_ms",
        "latency_p50_ms",
        "latency_p99_ms",
        "ack_p50_ms",
        "ack_p99_ms",
    }
)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of ours divided by the peer's in the same run."""

    name: str
    ours: float
    peer: float
    value: float
    committed: float | None = None

    @property
    def fell(self) -> bool:
        """Whether it is more than 30 % below the committed ratio."""
        return self.committed is not None and self.value < FELL * self.committed


def ratios(records: Sequence[Record], committed: Mapping[str, float]) -> list[Ratio]:
    """The ratios of a run, in its order."""
    peers = {
        (record["system"], record["bench"], peer_shape(record)): figures_of(record)
        for record in records
        if record["system"] in PEERS.values()
    }
    found = []
    for record in records:
        if record["system"] not in PEERS:
            continue
        peer = peers.get((PEERS[record["system"]], record["bench"], peer_shape(record)), {})
        for figure, ours in figures_of(record).items():
            base = peer.get(figure, 0)
            smaller = figure in SMALLER_IS_BETTER
            if not (smaller or figure.endswith("_per_s")) or ours <= 0 or base <= 0:
                continue
            name = " ".join(part for part in (record["bench"], record["system"], shape_text(record), figure) if part)
            value = round(base / ours if smaller else ours / base, 3)
            found.append(Ratio(name=name, ours=ours, peer=base, value=value, committed=committed.get(name)))
    return found


def lines(found: Sequence[Ratio]) -> list[str]:
    """The comparison as text."""
    width = max((len(ratio.name) for ratio in found), default=0)
    shown = [f"{'figure':<{width}} {'dejaq':>12} {'peer':>12} {'ratio':>8} {'committed':>10}"]
    for ratio in found:
        before = f"{ratio.committed:.2f}" if ratio.committed is not None else "-"
        mark = "  FELL" if ratio.fell else ""
        numbers = f"{ratio.ours:>12,.1f} {ratio.peer:>12,.1f} {ratio.value:>8.2f} {before:>10}"
        shown.append(f"{ratio.name:<{width}} {numbers}{mark}")
    fell = sum(ratio.fell for ratio in found)
    known = sum(ratio.committed is not None for ratio in found)
    shown.append(f"{fell} of {known} figures with a committed ratio fell by more than {1 - FELL:.0%}")
    return shown


def compare(records: Sequence[Record], *, commit: bool, path: Path = COMMITTED) -> int:
    """Print the comparison; with `commit`, keep this run's ratios for later comparisons."""
    committed: dict[str, float] = {}
    if path.exists():
        committed = json.loads(path.read_text(encoding="utf-8"))["ratios"]
    found = ratios(records, committed)
    print("\n".join(lines(found)))
    for record in records:
        if "error" in record:
            print(f"{record['bench']} {record['system']}: failed: {record['error']}")
    if commit:
        kept = {"peers": PEERS, "ratios": {ratio.name: ratio.value for ratio in found}}
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(f"committed to {path}")
    return 0 if found else 1
