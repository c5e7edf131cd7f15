"""Makes the stubs in proto/gen from the .proto files; with --check, says whether they are up to date.

The only way stubs are ever made: grpcio-tools is pinned exactly, because its generated code is the floor of the grpcio and
protobuf versions that the packages accept.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTO = Path(__file__).parent
OUT = PROTO / "gen"


def generate(out: Path) -> None:
    """Write every stub below `out`."""
    sources = sorted(str(path.relative_to(PROTO)) for path in (PROTO / "kokuban").rglob("*.proto"))
    bundled = Path(grpc_tools.__file__).parent / "_proto"
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # protoc looks up its mypy plugins there
    status = protoc.main(
        [
            "protoc",
            f"-I{PROTO}",
            f"-I{bundled}",
            f"--python_out={out}",
            f"--mypy_out=quiet:{out}",
            f"--grpc_python_out={out}",
            f"--mypy_grpc_out=quiet:{out}",
            *sources,
        ]
    )
    if status != 0:
        sys.exit(status)
    for path in out.rglob("*_pb2_grpc.py*"):  # files without a service: the generator writes an empty module for them
        stem = path.name.split("_pb2_grpc")[0]
        source = PROTO / path.parent.relative_to(out) / f"{stem}.proto"
        if "\nservice " not in source.read_text(encoding="utf-8"):
            path.unlink()


def files(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*_pb2*.py*") if path.suffix in {".py", ".pyi"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the stubs are not up to date")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        names = files(fresh)
        if check:
            stale = sorted(names ^ files(OUT)) + [
                name for name in sorted(names & files(OUT)) if not filecmp.cmp(fresh / name, OUT / name, shallow=False)
            ]
            if stale:
                sys.exit("stubs are not up to date, run make gen: " + ", ".join(map(str, stale)))
            return
        if OUT.exists():
            for name in files(OUT) - names:
                (OUT / name).unlink()
        for name in names:
            target = OUT / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fresh / name, target)
        (OUT / "kokuban" / "py.typed").touch()


if __name__ == "__main__":
    main()
