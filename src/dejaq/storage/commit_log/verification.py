"""Reading a whole log to verify it, without changing anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dejaq.errors import DejaqError
from dejaq.storage.commit_log.files import DiskFiles
from dejaq.storage.commit_log.operations import Operations
from dejaq.storage.commit_log.reader import SUFFIX, LogRecord
from dejaq.storage.commit_log.record import FILE_HEADER_BYTES, FileHeader, frame_lengths, read_file_header
from dejaq.storage.commit_log.recovery import Recovery


@dataclass(slots=True)
class LogReport:
    """What a whole log has, and what is wrong with it."""

    files: int = 0
    records: int = 0
    frames: int = 0
    bytes: int = 0
    last: int = 0
    problems: list[str] = field(default_factory=list)


class _FilesFrom(DiskFiles):
    """The files of a directory from one on."""

    def __init__(self, directory: Path, first: str) -> None:
        super().__init__(directory)
        self._first = first

    def list(self) -> list[str]:
        """The names from the first on."""
        return [name for name in super().list() if name >= self._first]


def log_names(directory: Path) -> list[str]:
    """The files of a log, oldest first."""
    return sorted(path.name for path in directory.glob(f"*{SUFFIX}"))


def header_of(path: Path) -> FileHeader | None:
    """The header of a file, or None where it is damaged."""
    with path.open("rb") as file:
        return read_file_header(file.read(FILE_HEADER_BYTES))


def verify_log(directory: Path, *, applied: int, watermark: int, on_bytes: Callable[[int], None]) -> LogReport:
    """Read and check every record and frame. Behind a damaged file, reading continues with the next one.

    Files that end before `applied` may be missing: whether a frame in them is needed is known to the database.
    """
    names = log_names(directory)
    report = LogReport(files=len(names), bytes=sum((directory / name).stat().st_size for name in names))
    headers = {name: header_of(directory / name) for name in names}
    oldest = headers[names[0]] if names else None
    if oldest is not None and oldest.first > applied + 1:
        report.problems.append(f"{names[0]} begins with record {oldest.first}; the database ends with {applied}")
    while names:
        header = headers[names[0]]
        files = _FilesFrom(directory, names[0])
        try:
            first = header.first - 1 if header is not None else 0
            recovery = Recovery(files, applied=first, watermark=max(watermark, applied), trimmed=applied)
            for record in recovery.records():
                _check(record, report)
                on_bytes(len(record.body))
        except DejaqError as error:
            report.problems.append(f"{error.message}: {error.details}" if error.details else error.message)
            names = [name for name in names if name > _place(error, names[0])]
        else:
            names = []
        finally:
            files.close()
    return report


def _check(record: LogRecord, report: LogReport) -> None:
    report.records += 1
    report.last = record.header.sequence
    where = f"record {record.header.sequence} at {record.offset} of file {record.file}"
    frames = frame_lengths(record.frames)
    if frames is None:
        report.problems.append(f"{where} has a damaged frame")
    else:
        report.frames += len(frames)
    try:
        Operations.decode(record.operations)
    except ValueError as cause:
        report.problems.append(f"{where}: {cause}")


def _place(error: DejaqError, first: str) -> str:
    """The file that an error is about; the first one where it names none."""
    name = error.message.partition(" ")[0]
    return name if name.endswith(SUFFIX) else first
