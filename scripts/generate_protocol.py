"""Generate `src/dejaq/protocol/v1` from `proto/`; with --check, fail when it is stale."""

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
TARGET = ROOT / "src/dejaq/protocol/v1"


def generate(target: Path) -> None:
    """Write the generated modules to `target`, importing each other from their place in the package."""
    sources = sorted(str(path) for path in PROTO.glob("dejaq/v1/*.proto"))
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
        (target / "__init__.py").write_text('"""Generated from proto/dejaq/v1 by `make protocol`."""\n')
        for path in sorted(Path(out, "dejaq/v1").glob("*_pb2*")):
            text = re.sub(r"from dejaq\.v1 import", "from dejaq.protocol.v1 import", path.read_text())
            if path.name.endswith("_grpc.py") and "def add_" not in text:
                continue
            (target / path.name).write_text(text)


def main() -> None:
    """Generate, or check what is there."""
    if "--check" not in sys.argv:
        generate(TARGET)
        return
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        names = sorted(path.name for path in Path(fresh).iterdir())
        _, differ, missing = filecmp.cmpfiles(fresh, TARGET, names, shallow=False)
        if differ or missing:
            raise SystemExit(f"stale: {', '.join(differ + missing)}; run `make protocol`")


if __name__ == "__main__":
    main()
