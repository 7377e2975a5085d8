"""Install Kafka's server with Maven into the virtual environment: `install_kafka.py`.

scripts/kafka_server.xml names the server, and scripts/kafka_jars.txt has each of its jars with the checksum. Maven is
not called when all jars exist. The exit code is 0 when they exist at the end.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
TRIES = 3
SECONDS_MAX = 300.0


def checksums() -> dict[str, str]:
    """The SHA-256 of each jar, by file name."""
    found = {}
    for line in (SCRIPTS / "kafka_jars.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            coordinates, checksum = line.split()
            _, artifact, version = coordinates.split(":")
            found[f"{artifact}-{version}.jar"] = checksum
    return found


def faults_of(folder: Path) -> list[str]:
    """The jars that are missing or have another content."""
    return [
        name
        for name, checksum in checksums().items()
        if not (folder / name).exists() or hashlib.sha256((folder / name).read_bytes()).hexdigest() != checksum
    ]


def copy_jars(folder: Path) -> str:
    """Have Maven copy the jars into a folder; what it said if it failed."""
    command = ["mvn", "-B", "-q", "-f", str(SCRIPTS / "kafka_server.xml"), f"{PLUGIN}:copy-dependencies"]
    options = [f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stdout.strip() or done.stderr.strip()


def main() -> int:
    """Install the jars that are missing, and remove those of another list."""
    folder = Path(sys.prefix) / "kafka"
    folder.mkdir(exist_ok=True)
    for path in set(folder.iterdir()) - {folder / name for name in checksums()}:
        path.unlink()
    why = ""
    for _ in range(TRIES):
        if not (faults := faults_of(folder)):
            return 0
        for name in faults:
            (folder / name).unlink(missing_ok=True)
        why = copy_jars(folder)
    if faults := faults_of(folder):
        print(f"dejaq: missing or with another checksum: {', '.join(faults)}", file=sys.stderr)
        print(f"dejaq: going on without Kafka; what needs it says so. {why}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
