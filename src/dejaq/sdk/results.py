"""The outcome of each item of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dejaq.errors import MEANINGS, Code, DejaqError, error_of

# How many failed items the text of an error names.
_LISTED_MAX = 10


class Results:
    """The outcome of every item of a batch, in the order they were given.

    `results[i]` is the `Code` of item i. `ids` are computed at the first use.
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
        """Whether the request succeeded for every item."""
        return not self.failed

    @property
    def failed(self) -> dict[int, Code]:
        """The items for which the request failed: position and code."""
        return {row: code for row, code in self._codes.items() if not code.succeeded}

    def raise_for_failures(self) -> None:
        """Raise the error of the first item that failed; its `failed` lists every item that did, by id."""
        failed = self.failed
        if failed:
            first = min(failed)
            raise self._error(first, failed[first])

    def _error(self, row: int, code: Code) -> DejaqError:
        if self._count == 1:
            error = error_of(code, details=self._name(row))
        else:
            failed = self.failed
            listed = ", ".join(f"{self._name(row)}: {failed[row].name}" for row in sorted(failed)[:_LISTED_MAX])
            more = ", ..." if len(failed) > _LISTED_MAX else ""
            done = self._count - len(failed)
            error = error_of(
                code, f"{len(failed)} of {self._count} items failed, {done} were done", details=f"{listed}{more}"
            )
        error.failed = {self._name(row): code for row, code in self.failed.items()}
        return error

    def _name(self, row: int) -> str:
        ids = self.ids
        return ids[row] if row < len(ids) and ids[row] else f"item {row}"

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
        """Whether every topic has the message."""
        return all(code.succeeded for code in self.codes.values())

    @property
    def failed(self) -> dict[str, Code]:
        """The topics that do not have the message: name and code."""
        return {topic: code for topic, code in self.codes.items() if not code.succeeded}

    def raise_for_failures(self) -> None:
        """Raise the error of the first topic that refused it; its `failed` lists every topic that did."""
        failed = self.failed
        for topic, code in failed.items():
            error = error_of(code, f"{MEANINGS[code]}", details=f"{self.id} in topic {topic}")
            error.failed = failed
            raise error
