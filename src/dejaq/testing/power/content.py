"""The content of a file: as programs see it, and as it would survive a power cut."""

from __future__ import annotations

from random import Random

PAGE_BYTES, SECTOR_BYTES = 4_096, 512


class FileContent:
    """What programs see (`content`), what a power cut leaves (`durable`), and what was written between the two."""

    __slots__ = ("_chance", "_page", "_sector", "content", "dirty", "durable")

    def __init__(self, chance: Random, *, page_bytes: int = PAGE_BYTES, sector_bytes: int = SECTOR_BYTES) -> None:
        self._chance = chance
        self._page, self._sector = page_bytes, sector_bytes
        self.content = bytearray()
        self.durable = bytearray()
        # Start and end of each range that was written since the last sync.
        self.dirty: list[tuple[int, int]] = []

    @property
    def clean(self) -> bool:
        """Whether a power cut changes nothing."""
        return not self.dirty and len(self.content) == len(self.durable)

    def put(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes at an offset."""
        if len(data):
            _place(self.content, offset, data)
            self.dirty.append((offset, offset + len(data)))

    def resize(self, size: int) -> None:
        """Cut the file, or extend it with zeros; until the next sync, a power cut may undo it."""
        if size > len(self.content):
            self.put(len(self.content), bytes(size - len(self.content)))
        del self.content[size:]
        self.dirty = [(start, min(end, size)) for start, end in self.dirty if start < size]

    def sync(self) -> None:
        """Make content and size durable."""
        # Not a copy of the content: what an earlier failure lost is not written by a later sync.
        for start, end in self.dirty:
            _place(self.durable, start, memoryview(self.content)[start:end])
        del self.durable[len(self.content) :]
        self.dirty.clear()

    def fail_sync(self) -> None:
        """A sync that failed: the pages count as written, although each of them may be lost."""
        self.durable = self._survivor()
        self.dirty.clear()

    def cut(self, *, keep_some: bool = True) -> None:
        """Cut the power: what was not synced is lost, or with `keep_some` each page of it is kept, lost or torn."""
        if not self.clean:
            if keep_some:
                self.durable = self._survivor()
            self.content = bytearray(self.durable)
            self.dirty.clear()

    def _survivor(self) -> bytearray:
        """What is left when the dirty pages are written, lost or torn at random."""
        kept = self._chance.random()
        left = bytearray(self.durable)
        if kept < 0.2:
            return left
        for start, end in self.dirty:
            while start < end:
                stop = min(end, start - start % self._page + self._page)
                if kept > 0.8 or self._chance.random() < 0.6:
                    _place(left, start, memoryview(self.content)[start:stop])
                elif self._chance.random() < 0.5:
                    self._tear(left, start, stop)
                start = stop
        # The size is written by itself: it may be that of before, of now, or reach as far as some page did.
        if len(self.content) < len(left):
            if kept > 0.5:
                del left[len(self.content) :]
        elif self._chance.random() < 0.3:
            left.extend(bytes(len(self.content) - len(left)))
        return left

    def _tear(self, left: bytearray, start: int, stop: int) -> None:
        """Write some sectors of a page."""
        while start < stop:
            end = min(stop, start - start % self._sector + self._sector)
            if self._chance.random() < 0.5:
                _place(left, start, memoryview(self.content)[start:end])
            start = end


def _place(content: bytearray, offset: int, data: bytes | bytearray | memoryview) -> None:
    """Put bytes at an offset; a gap before it reads as zeros."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
