"""Client processes: each with its own interpreter, started together, waited for with a deadline."""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from bench.harness.orders import Done, Order
from bench.harness.worker import run_worker

READY_SECONDS = 120.0


class WorkerFailed(Exception):
    """A client process failed; the message is its traceback."""


class Crew:
    """The client processes of one run against one server."""

    def __init__(self, system: str, address: str) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._system = system
        self._address = address
        self.delivered = self._context.Value("q", 0)
        self._members: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, pipe in self._members:
            if process.is_alive():
                process.kill()
            process.join()
            pipe.close()

    def add(self, *orders: Order) -> list[int]:
        """Start a process per order and return their numbers once all are ready."""
        numbers = []
        for order in orders:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=run_worker, args=(self._system, self._address, order, theirs, self.delivered), daemon=True
            )
            process.start()
            theirs.close()
            numbers.append(len(self._members))
            self._members.append((process, ours))
        for number in numbers:
            self._receive(number, READY_SECONDS)
        return numbers

    def go(self, numbers: Sequence[int]) -> None:
        """Let processes begin."""
        for number in numbers:
            self._members[number][1].send("go")

    def wait(self, numbers: Sequence[int], seconds_max: float) -> list[Done]:
        """The results of processes; raises when one failed or does not answer in time."""
        deadline = time.monotonic() + seconds_max
        results = []
        for number in numbers:
            answer = self._receive(number, max(0.0, deadline - time.monotonic()))
            assert isinstance(answer, Done)
            results.append(answer)
        return results

    def work(self, *orders: Order, seconds_max: float) -> list[Done]:
        """Start processes, let them begin, and wait for their results."""
        numbers = self.add(*orders)
        self.go(numbers)
        return self.wait(numbers, seconds_max)

    def finished(self, number: int) -> bool:
        """Whether a process has answered."""
        return self._members[number][1].poll(0)

    def _receive(self, number: int, seconds: float) -> object:
        pipe = self._members[number][1]
        if not pipe.poll(seconds):
            raise WorkerFailed(f"a client process of {self._system} did not answer within {seconds:.0f} s")
        try:
            answer = pipe.recv()
        except EOFError:
            raise WorkerFailed(f"a client process of {self._system} ended without an answer") from None
        if isinstance(answer, str) and answer != "ready":
            raise WorkerFailed(answer)
        return answer


def late_us_of(results: Sequence[Done]) -> array[int]:
    """The lateness samples of all consumers."""
    late = array("q")
    for result in results:
        late.frombytes(result.late_us)
    return late


def span_ns(results: Sequence[Done]) -> int:
    """From the first start to the last end."""
    return max(result.end_ns for result in results) - min(result.start_ns for result in results)
