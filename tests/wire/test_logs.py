"""A fault's log names it without what agents wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import structlog

from kokuban_server.bootstrap import configure_logging
from kokuban_server.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _own_configuration() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_the_log_of_a_fault_shows_no_local_variables(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings(log_format=log_format))  # type: ignore[arg-type]  # one of its literals

    def at_fault(value: str) -> None:
        raise RuntimeError(len(value))

    try:
        at_fault("hunter2")
    except RuntimeError as fault:
        structlog.get_logger().error("rpc.fault", exc_info=fault)
    written = capsys.readouterr().err
    assert "RuntimeError" in written
    if log_format == "json":
        assert json.loads(written)["exception"]
    assert "hunter2" not in written.replace('at_fault("hunter2")', "")
