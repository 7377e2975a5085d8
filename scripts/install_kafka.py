"""Download Kafka's server from Maven Central into the virtual environment: `install_kafka.py`.

scripts/kafka_jars.txt has each jar with its checksum. A jar that exists with the right checksum is not downloaded
again. The exit code is 0 when all jars exist at the end.
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "scripts" / "kafka_jars.txt"
REPOSITORY = os.environ.get("MAVEN_REPOSITORY", "https://repo.maven.apache.org/maven2")
TRIES = 3
SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar of Maven Central."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def url(self) -> str:
        """Where it is downloaded."""
        return f"{REPOSITORY}/{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


def jars() -> Iterator[Jar]:
    """The jars of the list."""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            coordinates, sha256 = line.split()
            group, artifact, version = coordinates.split(":")
            yield Jar(group, artifact, version, sha256)


def install(jar: Jar, folder: Path) -> str:
    """Download a jar that is missing; why it could not be, or nothing."""
    path = folder / jar.name
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256:
        return ""
    why = ""
    for _ in range(TRIES):
        try:
            with urllib.request.urlopen(jar.url, timeout=SECONDS_MAX) as answer:
                content = answer.read()
        except OSError as error:
            why = f"{jar.url}: {error}"
            continue
        if hashlib.sha256(content).hexdigest() != jar.sha256:
            return f"{jar.url} does not have the checksum of {LIST.name}"
        aside = path.with_suffix(".part")
        aside.write_bytes(content)
        aside.replace(path)
        return ""
    return why


def main() -> int:
    """Install all jars, and remove those of another list."""
    folder = Path(sys.prefix) / "kafka"
    folder.mkdir(exist_ok=True)
    wanted = list(jars())
    with ThreadPoolExecutor(8) as pool:
        faults = [fault for fault in pool.map(lambda jar: install(jar, folder), wanted) if fault]
    for path in folder.iterdir():
        if path.name not in {jar.name for jar in wanted}:
            path.unlink()
    for fault in faults:
        print(f"dejaq: {fault}", file=sys.stderr)
    if faults:
        print("dejaq: going on without Kafka; what needs it says so", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
