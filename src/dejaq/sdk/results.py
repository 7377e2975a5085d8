"""What became of each item of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dejaq.errors import MEANINGS, Code, DejaqError, error_of


class Results:
    """The outcome of every item of a batch, in the order they were given.

    `results[i]` is the `Code` of item i. `ids` are made when they are first asked for.
    """

    __slots__ = ("_codes", "_count", "_ids", "_make_ids")

    def __init__(self, count: int, codes: Mapping[int, Code], ids: Sequence[str] | Callable[[], Sequence[str]]) -> None:
        self._count = count
        self._codes = dict(codes)
        self._ids: Sequence[str] | None = None if callable(ids) else ids
        self._make_ids = ids if callable(ids) else None

    @property
    def ids(self) -> Sequence[str]:
        """The id of every item; empty for one that was refused before it had an id."""
        if self._ids is None:
            assert self._make_ids is not None
            self._ids = self._make_ids()
        return self._ids

    @property
    def codes(self) -> list[Code]:
        """The code of every item."""
        return list(self)

    @property
    def ok(self) -> bool:
        """Whether every item now stands as asked."""
        return not self.failed

    @property
    def failed(self) -> dict[int, Code]:
        """The items that do not stand as asked: position and code."""
        return {row: code for row, code in self._codes.items() if not code.succeeded}

    def raise_for_failures(self) -> None:
        """Raise the error of the first item that failed, saying how many did."""
        failed = self.failed
        if failed:
            first = min(failed)
            raise self._error(first, failed[first], len(failed))

    def _error(self, row: int, code: Code, failures: int) -> DejaqError:
        ids = self.ids
        name = ids[row] if row < len(ids) and ids[row] else f"item {row}"
        if self._count == 1:
            return error_of(code, details=name)
        return error_of(code, details=f"{name}; {failures} of {self._count} items failed")

    def items(self) -> Iterator[tuple[str, Code]]:
        """Each id with its code."""
        return zip(self.ids, self, strict=True)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Code:
        if not -self._count <= row < self._count:
            raise IndexError(row)
        return self._codes.get(row % self._count, Code.OK)

    def __iter__(self) -> Iterator[Code]:
        codes = self._codes
        return (codes.get(row, Code.OK) for row in range(self._count))

    def __repr__(self) -> str:
        return f"<Results: {self._count} items, {len(self.failed)} failed>"


@dataclass(frozen=True, slots=True)
class FanOut:
    """One message in several topics: its id, the same in each, and the outcome in each."""

    id: str
    codes: Mapping[str, Code]

    @property
    def ok(self) -> bool:
        """Whether it stands in every topic."""
        return all(code.succeeded for code in self.codes.values())

    @property
    def failed(self) -> dict[str, Code]:
        """The topics it does not stand in: name and code."""
        return {topic: code for topic, code in self.codes.items() if not code.succeeded}

    def raise_for_failures(self) -> None:
        """Raise the error of the first topic that refused it."""
        for topic, code in self.failed.items():
            raise error_of(code, f"{MEANINGS[code]}", details=f"{self.id} in topic {topic}")
