"""The generated code in proto/gen is what the .proto files say."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_the_stubs_are_fresh(root: Path) -> None:
    check = [sys.executable, str(root / "proto/generate.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stubs_run_on_the_oldest_libraries_that_the_packages_accept(root: Path) -> None:
    """Generated code refuses to be imported with libraries older than its generator (the pins in pyproject.toml)."""
    for stub in sorted((root / "proto/gen/kokuban").rglob("*_pb2.py")):
        assert "ValidateProtobufRuntimeVersion" in stub.read_text(), stub
        assert "# Protobuf Python Version: 6.31." in stub.read_text(), stub
    for stub in sorted((root / "proto/gen/kokuban").rglob("*_pb2_grpc.py")):
        assert "GRPC_GENERATED_VERSION = '1.80." in stub.read_text(), stub
