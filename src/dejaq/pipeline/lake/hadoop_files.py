"""The files of a lake that only Spark can reach: hdfs:, s3a: and so on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError, Py4JJavaError

from dejaq.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """The files below one directory, through the file system that Hadoop has for its address."""

    local: Path | None = None

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

    def path(self, name: str) -> str:
        """The address of a file."""
        return f"{self.address}/{name}"

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name) if name else self.address)

    def make(self, name: str) -> None:
        """Make a directory and those above it."""
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

    def size(self, name: str) -> int:
        """The bytes of a file."""
        try:
            return int(self._system.getFileStatus(self._at(name)).getLen())
        except Py4JJavaError as error:
            raise PipelineError(f"{self.path(name)} cannot be read: {told(error)}") from None

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
        aside = f"{name}.tmp"
        try:
            self._create(aside, content)
            done = not self._system.exists(self._at(name)) and self._system.rename(self._at(aside), self._at(name))
        except Py4JJavaError as error:
            raise PipelineError(f"{self.path(name)} cannot be written: {told(error)}") from None
        if not done:
            raise PipelineError(f"{self.path(name)} is there already: another pipeline writes to this lake")

    def put(self, name: str, content: bytes) -> None:
        """Write a file, in place of the one of that name."""
        try:
            self._create(name, content)
        except Py4JJavaError as error:
            raise PipelineError(f"{self.path(name)} cannot be written: {told(error)}") from None

    def _create(self, name: str, content: bytes) -> None:
        stream = self._system.create(self._at(name), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def copy_in(self, path: Path, name: str) -> None:
        """Copy a file of this machine to below the directory."""
        try:
            source = self._jvm.org.apache.hadoop.fs.Path(path.absolute().as_uri())
            self._system.copyFromLocalFile(False, True, source, self._at(name))
        except Py4JJavaError as error:
            raise PipelineError(f"{path} cannot be copied to {self.path(name)}: {told(error)}") from None

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all it holds."""
        self._system.delete(self._at(name), True)

    def sync(self, name: str) -> None:
        """Nothing: these file systems make files durable by themselves."""

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Nothing: these file systems know no locks; of two writers the second commit is refused."""
        yield


def told(error: Py4JError) -> str:
    """What the JVM said, in one line."""
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage() or error.java_exception.getClass().getSimpleName())
    else:
        message = str(error)
    return message.strip().splitlines()[0][:300]
