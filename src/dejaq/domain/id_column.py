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
ID_TAG = b"\x22"
# A length that was not looked at.
_UNKNOWN = -1


class IdColumn(Sequence[str]):
    """Ids, none of which has a line break. Each form is created when it is first needed."""

    __slots__ = ("_count", "_ids", "_length", "_text", "_wire", "are_distinct", "are_valid", "hashes")

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids: Sequence[str] | None = ids
        self._count = len(ids)
        self._text: str | None = None
        self._wire: bytes | None = None
        self._length: int | None = _UNKNOWN
        # Whether all are known to have the form of an id, and to differ from each other.
        self.are_valid = self.are_distinct = False
        # The hash of each id, when a store has computed them.
        self.hashes: Any = None

    @classmethod
    def of_cells(cls, wire: bytes, count: int) -> IdColumn:
        """Ids of one length, at most 64, encoded; they become objects when one of them is needed."""
        column = cls(())
        column._ids, column._wire, column._count, column._length = None, wire, count, wire[len(ID_TAG)]
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

    def cut(self, start: int, end: int) -> IdColumn:
        """Ids start to end-1; as a part of the encoded column, if the ids are no objects and have one length."""
        if self._ids is not None or self.length is None or start >= end:
            return IdColumn(self._listed[start:end])
        width = len(self.wire) // self._count
        return IdColumn.of_cells(self.wire[start * width : end * width], end - start)

    @property
    def text(self) -> str:
        """One id per line."""
        if self._text is None:
            self._text = SEPARATOR.join(self._ids) if self._ids is not None else self._unpacked()
        return self._text

    def _unpacked(self) -> str:
        """The text of ids of one length: a line break takes the place of each prefix."""
        lines, width = bytearray(self.wire), len(self.wire) // self._count
        lines[len(ID_TAG) :: width] = SEPARATOR.encode() * self._count
        del lines[::width]
        return lines.decode()[len(SEPARATOR) :]

    @property
    def wire(self) -> bytes:
        """The encoded column of a frame or a run."""
        if self._wire is None:
            self._wire = self._packed()
        return self._wire

    @property
    def length(self) -> int | None:
        """The length that all have in bytes; None where they differ, or there are none."""
        if self._length == _UNKNOWN:
            width = line_width(self.text.encode(), self._count)
            self._length = None if width is None else width - 1
        return self._length

    @property
    def lengths(self) -> set[int]:
        """The lengths that occur."""
        return set(map(len, self._listed)) if self.length is None else {self.length}

    @property
    def _listed(self) -> Sequence[str]:
        if self._ids is None:
            self._ids = self.text.split(SEPARATOR) if self._count else ()
        return self._ids

    def _packed(self) -> bytes:
        if self.length is not None:
            # The common case: all ids have one length, and therefore the same prefix.
            head = ID_TAG + varint(self.length)
            return head + self.text.encode().replace(SEPARATOR.encode(), head)
        ids = list(map(str.encode, self._listed))
        return b"".join(chain.from_iterable((ID_TAG, varint(len(one)), one) for one in ids))


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
