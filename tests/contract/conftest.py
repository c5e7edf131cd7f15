"""The API as its own descriptors tell it, and the packages as a user gets them."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).parents[2]
_KINDS = {4: "message_type", 5: "enum_type", 6: "service"}  # field numbers of FileDescriptorProto
_INSIDE = {
    "message_type": {2: "field", 3: "nested_type", 4: "enum_type", 8: "oneof_decl"},
    "nested_type": {2: "field", 3: "nested_type", 4: "enum_type", 8: "oneof_decl"},
    "enum_type": {2: "value"},
    "service": {2: "method"},
}


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> list[descriptor_pb2.FileDescriptorProto]:
    """The files of kokuban.v1, with their comments."""
    target = tmp_path_factory.mktemp("api") / "descriptors"
    sources = [str(path) for path in sorted((ROOT / "proto/kokuban/v1").glob("*.proto"))]
    bundled = files("grpc_tools") / "_proto"
    arguments = [
        f"-I{ROOT / 'proto'}",
        f"-I{bundled}",
        f"--descriptor_set_out={target}",
        "--include_source_info",
        *sources,
    ]
    assert protoc.main(["protoc", *arguments]) == 0
    return list(descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file)


@pytest.fixture(scope="session")
def comments(api: list[descriptor_pb2.FileDescriptorProto]) -> dict[str, str]:
    """What stands above each message, field, enum, value, service and method, on one line, by name: `Put.metadata`."""
    found: dict[str, str] = {}
    for file in api:
        for location in file.source_code_info.location:
            path = list(location.path)
            if not path or len(path) % 2 or path[0] not in _KINDS:
                continue
            kind, names, here = "", [], file
            for number, place in zip(path[::2], path[1::2], strict=True):
                kind = (_INSIDE[kind] if kind else _KINDS).get(number, "")
                if not kind:
                    break
                here = getattr(here, kind)[place]
                names.append(here.name)
            if kind:
                found[".".join(names)] = " ".join(location.leading_comments.split())
    return found


@pytest.fixture(scope="session")
def reasons(api: list[descriptor_pb2.FileDescriptorProto]) -> set[str]:
    """Every reason that a server may give."""
    names = {
        value.name for file in api for enum in file.enum_type if enum.name == "ErrorReason" for value in enum.value
    }
    return {name.removeprefix("ERROR_REASON_") for name in names} - {"UNSPECIFIED"}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, built once."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=100, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path
