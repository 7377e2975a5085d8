"""The lake's files: listing, reading, and writing one file whole. Those of this machine need no Spark."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlparse

from dejaq.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files(Protocol):
    """The files below one directory."""

    address: str
    # The same place as a path of this machine; None when it is elsewhere.
    local: Path | None

    def path(self, name: str) -> str:
        """The address of a file."""

    def make(self, name: str) -> None:
        """Make a directory and those above it."""

    def list(self, name: str) -> list[str]:
        """The names in a directory; none when it is not there."""

    def size(self, name: str) -> int:
        """The bytes of a file."""

    def read(self, name: str) -> bytes:
        """The content of a small file."""

    def write_new(self, name: str, content: bytes) -> None:
        """Write a file that must not exist yet; it appears whole or not at all."""

    def put(self, name: str, content: bytes) -> None:
        """Write a file, in place of the one of that name."""

    def copy_in(self, path: Path, name: str) -> None:
        """Copy a file of this machine to below the directory."""

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all it holds."""

    def sync(self, name: str) -> None:
        """Make a directory's files durable, where the file system does not by itself."""

    def locked(self, name: str) -> AbstractContextManager[None]:
        """Hold the lake as its only writer, as far as the file system knows of locks."""


def files_of(root: str, spark: SparkSession) -> Files:
    """The files of a lake, through the file system of its address (file:, hdfs:, s3a: and so on)."""
    path = local_path(root)
    if path is not None:
        return LocalFiles(path)
    from dejaq.pipeline.lake.hadoop_files import HadoopFiles

    return HadoopFiles(spark, root)


class LocalFiles:
    """The files below a directory of this machine, or of a file system that is mounted here."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.abspath(root))
        self.local: Path | None = self._root
        self.address = f"file:{self._root}"

    def path(self, name: str) -> str:
        """The address of a file."""
        return f"{self.address}/{name}"

    def make(self, name: str) -> None:
        """Make a directory and those above it."""
        try:
            (self._root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineError(f"the lake {self.address} cannot be written: {error.strerror}") from None

    def list(self, name: str) -> list[str]:
        """The names in a directory; none when it is not there."""
        try:
            return sorted(os.listdir(self._root / name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PipelineError(f"{self.path(name)} cannot be listed: {error.strerror}") from None

    def size(self, name: str) -> int:
        """The bytes of a file."""
        try:
            return (self._root / name).stat().st_size
        except OSError as error:
            raise PipelineError(f"{self.path(name)} cannot be read: {error.strerror}") from None

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        try:
            return (self._root / name).read_bytes()
        except OSError as error:
            raise PipelineError(f"{self.path(name)} cannot be read: {error.strerror}") from None

    def write_new(self, name: str, content: bytes) -> None:
        """Write a file that must not exist yet; it appears whole or not at all."""
        path = self._root / name
        aside = _aside(path)
        try:
            _write(aside, content)
            os.link(aside, path)
        except FileExistsError:
            raise PipelineError(f"{path} is there already: another pipeline writes to this lake") from None
        except OSError as error:
            raise PipelineError(f"{path} cannot be written: {error.strerror}") from None
        finally:
            aside.unlink(missing_ok=True)
        _sync(path.parent)

    def put(self, name: str, content: bytes) -> None:
        """Write a file, in place of the one of that name."""
        path = self._root / name
        try:
            _write(_aside(path), content)
            _aside(path).replace(path)
        except OSError as error:
            raise PipelineError(f"{path} cannot be written: {error.strerror}") from None
        _sync(path.parent)

    def copy_in(self, path: Path, name: str) -> None:
        """Copy a file of this machine to below the directory."""
        try:
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self._root / name)
        except OSError as error:
            raise PipelineError(f"{path} cannot be copied to {self.path(name)}: {error.strerror}") from None

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all it holds."""
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def sync(self, name: str) -> None:
        """Make a directory's files durable."""
        for directory, _, names in os.walk(self._root / name):
            for file in names:
                _sync(Path(directory) / file)
            _sync(Path(directory))
        _sync((self._root / name).parent)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lake as its only writer."""
        try:
            file = (self._root / name).open("w")
        except OSError as error:
            raise PipelineError(f"the lake {self.address} cannot be written: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PipelineError(f"another pipeline writes to the lake {self.address}; wait for its end") from None
            yield


def local_path(address: str) -> Path | None:
    """The path of a plain or file: address; None for any other."""
    parts = urlparse(address)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else address)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
