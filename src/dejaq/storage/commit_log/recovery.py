"""Opening a log: every record behind a sequence is read and checked, and the torn end of the last file is cut.

A crash may leave any part of the writes that were not synced. So a broken record is legal at the end of the last file,
unless something says that it was durable: the watermark, a later record's `synced`, or a later file. Then it is
damage, and the log is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.commit_log.files import FileOperations
from dejaq.storage.commit_log.reader import (
    CHUNK_BYTES,
    SUFFIX,
    FileReader,
    LogRecord,
    file_name,
    file_number,
    record_at,
)
from dejaq.storage.commit_log.record import (
    FILE_HEADER_BYTES,
    FORMAT,
    HEADER_BYTES,
    MAGIC,
    FileHeader,
    read_file_header,
    read_header,
)
from dejaq.storage.commit_log.writer import FILE_BYTES, CommitLog, LogFile


class Recovery:
    """Reads a log once: iterate over `records` to the end, then `begin` the next epoch."""

    def __init__(self, files: FileOperations, *, applied: int, watermark: int, trimmed: int = 0) -> None:
        self._files = files
        self._applied = applied
        # Records up to this one may be missing: files without frames that are needed were removed.
        self._trimmed = max(applied, trimmed)
        self._watermark = watermark
        # The last file, where it got no whole header.
        self._begun: str | None = None
        self._headers = self._read_headers()
        # The last record, and the highest epoch of any file.
        self.sequence = applied
        self.epoch = max((header.epoch for _, header in self._headers), default=0)
        # Records of the last file that nothing proves durable: sequence and offset.
        self._unproven: deque[tuple[int, int]] = deque()
        self._end = FILE_HEADER_BYTES
        # Whether something has to be cut off behind the last record.
        self._torn = False

    @property
    def empty(self) -> bool:
        """Whether the log has no file."""
        return not self._headers

    @property
    def bytes(self) -> int:
        """How many bytes `records` reads."""
        return sum(self._files.size(file_name(number)) for number, _ in self._needed())

    def records(self) -> Iterator[LogRecord]:
        """Every record behind `applied`, in order; raises STORE_CORRUPT for damage."""
        needed = self._needed()
        for place, (number, header) in enumerate(needed):
            if place == 0:
                if header.first > self._applied + 1:
                    raise self._damaged(number, f"it begins with record {header.first}, after {self._applied + 1}")
                self.sequence = header.first - 1
            elif self.sequence + 1 < header.first <= self._trimmed + 1:
                self.sequence = header.first - 1
            elif header.first != self.sequence + 1:
                raise self._damaged(number, f"it begins with record {header.first}, not {self.sequence + 1}")
            # A file is begun when the one before it is durable, also if the new one has no whole header yet.
            last = place == len(needed) - 1 and self._begun is None
            for record in self._read(number, header, last=last):
                if record.header.sequence > self._applied:
                    yield record
        if self.sequence < max(self._watermark, self._applied):
            known = max(self._watermark, self._applied)
            raise error_of(
                Code.STORE_CORRUPT,
                "the commit log ends before what was acknowledged; restore the data directory from a backup",
                details=f"last record {self.sequence}, acknowledged {known}",
            )

    def begin(self, epoch: int, *, salt: Callable[[], int], file_bytes: int = FILE_BYTES) -> CommitLog:
        """Make durable what was read, and begin a file of the new epoch. Call it after the last record was read."""
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not after {self.epoch}")
        try:
            if self._begun is not None:
                self._remove(self._begun)
            if self._headers:
                self._settle(self._headers[-1][0])
            opened = CommitLog(
                self._files,
                self._known_files(),
                number=self._next_number,
                epoch=epoch,
                sequence=self.sequence,
                salt=salt,
                file_bytes=file_bytes,
            )
            if self._last_is_empty:
                # Only now, because its epoch must not be forgotten.
                self._remove(file_name(self._headers[-1][0]))
        except OSError as cause:
            raise error_of(Code.STORE_FAILED, "cannot open the commit log", details=str(cause)) from None
        return opened

    @property
    def _last_is_empty(self) -> bool:
        """Whether the last file has no record."""
        return bool(self._headers) and self._headers[-1][1].first > self.sequence

    def _remove(self, name: str) -> None:
        self._files.remove(name)
        self._files.sync_directory()

    def _settle(self, number: int) -> None:
        """Cut what is torn, and write again what nothing proves durable.

        After a failed sync, the system may show bytes that never reached the disk and count them as written. Only a
        write of the same bytes makes them reach it.
        """
        name = file_name(number)
        if self._torn:
            self._files.truncate(name, self._end)
        start = self._unproven[0][1] if self._unproven else self._end
        if self._last_is_empty:
            start = 0
        if start < self._end:
            self._files.overwrite(name, start, self._files.read(name, start, self._end - start))
        # Always: an earlier start may have cut the file and failed to sync that.
        self._files.sync(name)

    def _known_files(self) -> list[LogFile]:
        headers = self._headers[:-1] if self._last_is_empty else self._headers
        return [LogFile(number, header.first, self._files.size(file_name(number))) for number, header in headers]

    def _read_headers(self) -> list[tuple[int, FileHeader]]:
        """The number and the header of each file, oldest first."""
        names = sorted(name for name in self._files.list() if name.endswith(SUFFIX))
        self._next_number = file_number(names[-1]) + 1 if names else 1
        found: list[tuple[int, FileHeader]] = []
        for name in names:
            number = file_number(name)
            header = read_file_header(self._files.read(name, 0, FILE_HEADER_BYTES))
            if header is None:
                # A file gets its first record after its header is durable.
                if name != names[-1] or self._files.size(name) > FILE_HEADER_BYTES:
                    raise self._damaged(number, "its header cannot be read")
                self._begun = name
                continue
            if header.format > FORMAT:
                raise error_of(Code.STORE_NEWER, f"{name} has format {header.format}; this release reads {FORMAT}")
            if found and header.epoch < found[-1][1].epoch:
                raise self._damaged(number, f"its epoch {header.epoch} is before that of the file before it")
            found.append((number, header))
        return found

    def _needed(self) -> list[tuple[int, FileHeader]]:
        """The files from the one on that has the first record to be read."""
        start = 0
        for place, (_, header) in enumerate(self._headers):
            if header.first <= self._applied + 1:
                start = place
        return self._headers[start:]

    def _read(self, number: int, header: FileHeader, *, last: bool) -> Iterator[LogRecord]:
        """The records of a file; a broken one ends the last file, and is damage in any other."""
        reader = FileReader(self._files, file_name(number))
        at = FILE_HEADER_BYTES
        while True:
            record = record_at(reader, at, number, header)
            if record is None:
                break
            if record.header.sequence != self.sequence + 1:
                raise self._damaged(number, f"record {record.header.sequence} follows record {self.sequence}")
            self.sequence += 1
            if last:
                self._prove(record)
            at += HEADER_BYTES + record.header.length
            yield record
        if at < reader.size:
            if not last:
                raise self._damaged(number, f"record {self.sequence + 1} at {at} cannot be read")
            self._check_torn(reader, at, number, header)
            self._torn = True
        self._end = at

    def _prove(self, record: LogRecord) -> None:
        """Keep in mind a record that nothing proves durable so far, and forget those that this one proves."""
        proven = max(record.header.synced, self._watermark)
        self._unproven.append((record.header.sequence, record.offset))
        while self._unproven and self._unproven[0][0] <= proven:
            self._unproven.popleft()

    def _check_torn(self, reader: FileReader, at: int, number: int, file: FileHeader) -> None:
        """Raise STORE_CORRUPT when a record behind a broken one says that the broken one was durable."""
        while at < reader.size:
            data = reader.take(at, min(CHUNK_BYTES, reader.size - at))
            found = data.find(MAGIC)
            while found >= 0:
                header = read_header(reader.take(at + found, HEADER_BYTES), 0, file.salt)
                if header is not None and header.epoch == file.epoch and header.synced > self.sequence:
                    raise self._damaged(number, f"record {self.sequence + 1} was durable, and cannot be read")
                found = data.find(MAGIC, found + 1)
            # A header may begin in one chunk and end in the next.
            at += max(len(data) - len(MAGIC) + 1, 1)

    def _damaged(self, number: int, why: str) -> DejaqError:
        return error_of(
            Code.STORE_CORRUPT,
            f"{file_name(number)} of the commit log is damaged; restore the data directory from a backup",
            details=why,
        )
