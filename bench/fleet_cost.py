"""Processor time of the assignment of buckets and of sharing among many consumers, in this process alone.

python -m bench.fleet_cost [consumers] [buckets]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Mapping

from dejaq.broker.assignment.assignment import Assignment, Seat
from dejaq.broker.assignment.seating import Seating

CHANGES = 200
# The share of the consumers without free credit while sharing is measured.
SHARING = 0.2


def change(seating: Seating, seats: Mapping[str, Seat], gone: Iterable[str] = ()) -> tuple[float, float, int, int]:
    """Apply a change: milliseconds, those of the longest step, steps of work, and the consumers that are concerned."""
    before, longest = seating.steps, 0.0
    began = step = time.process_time()
    for _ in seating.change(seats, gone):
        now = time.process_time()
        longest, step = max(longest, now - step), now
    end = time.process_time()
    return 1e3 * (end - began), 1e3 * max(longest, end - step), seating.steps - before, len(seating.take_touched())


def print_line(name: str, results: list[tuple[float, float, int, int]]) -> None:
    """Print the mean of some changes, and the longest step of all."""
    count = len(results)
    total, work, touched = (sum(result[place] for result in results) / count for place in (0, 2, 3))
    longest = max(result[1] for result in results)
    print(f"{name:<34} {total:9.2f} ms {longest:9.2f} ms longest {work:9.0f} steps {touched:7.1f} consumers")


def main(consumers: int, buckets: int) -> None:
    """Print what one change costs."""
    chance, seating = random.Random(1), Seating(buckets)
    names = [f"consumer-{number}" for number in range(consumers)]
    print(f"{consumers} consumers, {buckets} buckets")
    print_line("the first assignment", [change(seating, {name: Seat(name) for name in names})])
    more = [f"consumer-{consumers + number}" for number in range(CHANGES)]
    print_line("one joins", [change(seating, {name: Seat(name)}) for name in more])
    print_line("one leaves", [change(seating, {}, [name]) for name in more])
    sharing = {name: chance.random() < SHARING for name in names}
    print_line("a fifth has no free credit", [change(seating, {n: Seat(n, sharing=s) for n, s in sharing.items()})])
    flips = []
    for name in chance.choices(names, k=5 * CHANGES):
        sharing[name] = not sharing[name]
        flips.append(change(seating, {name: Seat(name, sharing=sharing[name])}))
    print_line("one loses or gets free credit", flips)
    print_line("a fifth leaves at once", [change(seating, {}, names[: consumers // 5])])


if __name__ == "__main__":
    # The positions of the buckets are computed once per process.
    for _ in Assignment(1024).change({"a": 1, "b": 1}):
        pass
    main(*(int(argument) for argument in [*sys.argv[1:], *["1000", "1024"][len(sys.argv) - 1 :]]))
