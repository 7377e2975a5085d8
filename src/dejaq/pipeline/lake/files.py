"""The lake's files, wherever Spark can reach them: listing, reading, and writing one file whole."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JError, Py4JJavaError

from dejaq.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files:
    """The files below one directory, through the file system of its address (file:, hdfs:, s3a: and so on)."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = cast("Any", spark._jvm)
        jsc = cast("Any", spark._jsc)
        try:
            path = self._jvm.org.apache.hadoop.fs.Path(root)
            self._system = path.getFileSystem(jsc.hadoopConfiguration())
            self._root = self._system.makeQualified(path)
        except Py4JError as error:
            raise PipelineError(f"the lake {root} cannot be used: {told(error)}") from None
        self.address = str(self._root.toString())
        self.local = Path(self._root.toUri().getPath()) if self._root.toUri().getScheme() == "file" else None

    def path(self, name: str) -> str:
        """The address of a file."""
        return f"{self.address}/{name}"

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name) if name else self.address)

    def make(self, name: str) -> None:
        """Make a directory and those above it."""
        if self.local is not None:
            # Java reports only that the call failed; the operating system reports the reason.
            try:
                (self.local / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise PipelineError(f"the lake {self.address} cannot be written: {error.strerror}") from None
            return
        try:
            self._system.mkdirs(self._at(name))
        except Py4JJavaError as error:
            raise PipelineError(f"the lake {self.address} cannot be written: {told(error)}") from None

    def list(self, name: str) -> list[str]:
        """The names in a directory; none when it is not there."""
        try:
            found = self._system.listStatus(self._at(name))
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception.getClass().getName()):
                return []
            raise PipelineError(f"{self.path(name)} cannot be listed: {told(error)}") from None
        return sorted(str(status.getPath().getName()) for status in found)

    def exists(self, name: str) -> bool:
        """Whether there is a file or directory of this name."""
        return bool(self._system.exists(self._at(name)))

    def size(self, name: str) -> int:
        """The bytes of a file."""
        return int(self._system.getFileStatus(self._at(name)).getLen())

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        try:
            stream = self._system.open(self._at(name))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise PipelineError(f"{self.path(name)} cannot be read: {told(error)}") from None

    def write_new(self, name: str, content: bytes) -> None:
        """Write a file that must not exist yet; it appears whole or not at all."""
        if self.local is not None:
            _write_new_locally(self.local / name, content)
            return
        aside = self._at(f"{name}.tmp")
        try:
            stream = self._system.create(aside, True)
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()
            done = not self._system.exists(self._at(name)) and self._system.rename(aside, self._at(name))
        except Py4JJavaError as error:
            raise PipelineError(f"{self.path(name)} cannot be written: {told(error)}") from None
        if not done:
            raise PipelineError(f"{self.path(name)} is there already: another pipeline writes to this lake")

    def copy_in(self, path: Path, name: str) -> None:
        """Copy a file of this machine to below the directory."""
        try:
            if self.local is not None:
                (self.local / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, self.local / name)
            else:
                source = self._jvm.org.apache.hadoop.fs.Path(path.absolute().as_uri())
                self._system.copyFromLocalFile(False, True, source, self._at(name))
        except OSError as error:
            raise PipelineError(f"{path} cannot be copied to {self.path(name)}: {error.strerror}") from None
        except Py4JJavaError as error:
            raise PipelineError(f"{path} cannot be copied to {self.path(name)}: {told(error)}") from None

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all it holds."""
        self._system.delete(self._at(name), True)

    def sync(self, name: str) -> None:
        """Make a directory's files durable, where the file system does not by itself."""
        if self.local is None:
            return
        for directory, _, names in os.walk(self.local / name):
            for file in names:
                _sync(Path(directory) / file)
            _sync(Path(directory))
        _sync((self.local / name).parent)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lake as its only writer, as far as the file system knows of locks."""
        if self.local is None:
            yield
            return
        try:
            file = (self.local / name).open("w")
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


def told(error: Py4JError) -> str:
    """What the JVM said, in one line."""
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage() or error.java_exception.getClass().getSimpleName())
    else:
        message = str(error)
    return message.strip().splitlines()[0][:300]


def _write_new_locally(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
    except FileExistsError:
        raise PipelineError(f"{path} is there already: another pipeline writes to this lake") from None
    except OSError as error:
        raise PipelineError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        aside.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
