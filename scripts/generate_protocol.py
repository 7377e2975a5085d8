"""Generate `src/dejaq/protocol/v1` and `src/dejaq/protocol/etcd` from `proto/`; with --check, fail when stale."""

from __future__ import annotations

import filecmp
import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PROTOCOL = ROOT / "src/dejaq/protocol"
# The folder in proto/ and its package in dejaq.protocol.
FOLDERS = {"dejaq/v1": "v1", "etcd": "etcd"}


def generate(folder: str, target: Path) -> None:
    """Write the generated modules to `target`, with imports from their package."""
    sources = sorted(str(path) for path in PROTO.glob(f"{folder}/*.proto"))
    with tempfile.TemporaryDirectory() as out:
        include = str(Path(grpc_tools.__file__).parent / "_proto")
        code = protoc.main(
            [
                "protoc",
                f"-I{PROTO}",
                f"-I{include}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                *sources,
            ]
        )
        if code:
            raise SystemExit("protoc failed")
        target.mkdir(parents=True, exist_ok=True)
        (target / "__init__.py").write_text(f'"""Generated from proto/{folder} by `make protocol`."""\n')
        for path in sorted(Path(out, folder).glob("*_pb2*")):
            text = re.sub(r"from dejaq\.v1 import", "from dejaq.protocol.v1 import", path.read_text())
            # Only the messages of etcd are used: its server is another program.
            if path.name.endswith("_grpc.py") and (folder == "etcd" or "def add_" not in text):
                continue
            (target / path.name).write_text(text)


def main() -> None:
    """Generate the modules, or check the existing ones."""
    for folder, package in FOLDERS.items():
        if "--check" not in sys.argv:
            generate(folder, PROTOCOL / package)
            continue
        with tempfile.TemporaryDirectory() as fresh:
            generate(folder, Path(fresh))
            names = sorted(path.name for path in Path(fresh).iterdir())
            _, differ, missing = filecmp.cmpfiles(fresh, PROTOCOL / package, names, shallow=False)
            if differ or missing:
                raise SystemExit(f"stale: {', '.join(differ + missing)}; run `make protocol`")


if __name__ == "__main__":
    main()
