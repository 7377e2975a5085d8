"""Ids in the forms in which they are copied as a whole: an encoded column, and one text with one id per line.

`CreateBatch`, `Run` and `Push` have their ids under one field number, so the bytes of that column are the same in all
three; the journal takes the text. Adding a thousand ids to a record one by one costs 65 us, and reading them costs
the same; as a whole it costs one or two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload

from dejaq.domain.bodies.body_block import varint

SEPARATOR = "\n"
# Of the field `ids` of those messages: its number is 4, its type text.
_ID_TAG = b"\x22"


class IdColumn(Sequence[str]):
    """Ids, none of which has a line break. Each form is created when it is first needed."""

    __slots__ = ("_count", "_ids", "_text", "_wire", "hashes")

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids: Sequence[str] | None = ids
        self._count = len(ids)
        self._text: str | None = None
        self._wire: bytes | None = None
        # The hash of each id, when a store has computed them.
        self.hashes: Any = None

    @classmethod
    def of_text(cls, text: str, count: int, wire: bytes | None = None) -> IdColumn:
        """The ids that `text` has one per line, and `wire` encoded; they become objects when one of them is needed."""
        column = cls(())
        column._ids, column._text, column._wire, column._count = None, text, wire, count
        return column

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self._listed) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        return self._listed[at]

    @property
    def text(self) -> str:
        """One id per line."""
        if self._text is None:
            self._text = SEPARATOR.join(self._listed)
        return self._text

    @property
    def wire(self) -> bytes:
        """The encoded column of a frame or a run."""
        if self._wire is None:
            self._wire = self._packed()
        return self._wire

    @property
    def lengths(self) -> set[int]:
        """The lengths that occur."""
        width = line_width(self.text.encode(), self._count)
        return set(map(len, self._listed)) if width is None else {width - 1}

    @property
    def _listed(self) -> Sequence[str]:
        if self._ids is None:
            self._ids = self.text.split(SEPARATOR) if self._count else ()
        return self._ids

    def _packed(self) -> bytes:
        packed = self.text.encode()
        width = line_width(packed, self._count)
        if width is not None:
            # The common case: all ids have one length, and therefore the same prefix.
            head = _ID_TAG + varint(width - 1)
            return head + packed.replace(SEPARATOR.encode(), head)
        ids = list(map(str.encode, self._listed))
        return b"".join(chain.from_iterable((_ID_TAG, varint(len(one)), one) for one in ids))


def line_width(packed: bytes, count: int) -> int | None:
    """How many bytes each of so many ids takes with its separator; None unless all take the same."""
    if not count:
        return None
    width, rest = divmod(len(packed) + 1, count)
    if rest or packed.count(b"\n") != count - 1:
        return None
    return width if packed[width - 1 :: width] == b"\n" * (count - 1) else None


def joined(ids: Sequence[str]) -> str:
    """The ids as one text."""
    return ids.text if isinstance(ids, IdColumn) else SEPARATOR.join(ids)
