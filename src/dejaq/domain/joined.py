"""Ids as one text, an id a line: what is copied as a whole need not be taken apart.

A thousand ids as a column of a frame or a record cost 50 to 100 us each time they are put in or taken out; as one text
they cost less than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

SEPARATOR = "\n"


class JoinedIds(Sequence[str]):
    """Ids that are taken apart when somebody looks at one of them. No id has a line break."""

    __slots__ = ("_count", "_ids", "text")

    def __init__(self, text: str, count: int, ids: Sequence[str] | None = None) -> None:
        self.text = text
        self._count = count
        self._ids = ids

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._apart())

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        return self._apart()[at]

    def _apart(self) -> Sequence[str]:
        if self._ids is None:
            self._ids = self.text.split(SEPARATOR)
        return self._ids


def joined(ids: Sequence[str]) -> str:
    """The ids as one text."""
    return ids.text if isinstance(ids, JoinedIds) else SEPARATOR.join(ids)
