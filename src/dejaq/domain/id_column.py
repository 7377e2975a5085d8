"""Ids in the forms in which they are copied as a whole: an encoded column, and one text with one id per line.

`CreateBatch`, `Run` and `Push` have their ids under one field number, so the bytes of that column are the same in all
three; the journal takes the text. Adding a thousand ids to a record one by one costs 65 us, and reading them costs
the same; as a whole it costs one or two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from dejaq.domain.bodies.body_block import varint

SEPARATOR = "\n"
# Of the field `ids` of those messages: its number is 4, its type text.
_ID_TAG = b"\x22"


class IdColumn(Sequence[str]):
    """Ids, none of which has a line break. Each form is created when it is first needed."""

    __slots__ = ("_ids", "_text", "_wire")

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids
        self._text: str | None = None
        self._wire: bytes | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self._ids) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        return self._ids[at]

    @property
    def text(self) -> str:
        """One id per line."""
        if self._text is None:
            self._text = SEPARATOR.join(self._ids)
        return self._text

    @property
    def wire(self) -> bytes:
        """The encoded column of a frame or a run."""
        if self._wire is None:
            self._wire = self._packed()
        return self._wire

    def _packed(self) -> bytes:
        sizes = set(map(len, self._ids))
        packed = self.text.encode()
        if len(sizes) == 1 and len(packed) == len(self.text):
            # The common case: all ids have one length, and therefore the same prefix.
            head = _ID_TAG + varint(sizes.pop())
            return head + packed.replace(SEPARATOR.encode(), head)
        ids = list(map(str.encode, self._ids))
        return b"".join(chain.from_iterable((_ID_TAG, varint(len(one)), one) for one in ids))


def joined(ids: Sequence[str]) -> str:
    """The ids as one text."""
    return ids.text if isinstance(ids, IdColumn) else SEPARATOR.join(ids)
