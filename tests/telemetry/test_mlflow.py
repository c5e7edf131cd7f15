"""A real back end that keeps span links: what it received of a race is read back. `make test-observability` installs it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kokuban_client
from tests.etcd_server import EtcdServer
from tests.replicas.pair import Pair
from tests.telemetry.racing_agent import PATH, REGION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kokuban_client import ConflictRecord

pytestmark = [pytest.mark.observability, pytest.mark.etcd, pytest.mark.timeout(300)]
HOME = Path(__file__).parents[2]
MLFLOW = HOME / "build/mlflow/bin"
BOUND_S = 120.0
"""MLflow takes half a minute to start on a slow machine."""


class Mlflow:
    """An MLflow server on a loopback port, with a database of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.endpoint = f"{self.address}/v1/traces"
        self.log = folder / "mlflow.log"
        command: list[str | Path] = [
            MLFLOW / "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            "1",
        ]
        command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
        command += ["--artifacts-destination", str(folder / "artifacts")]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
                stdout=log,
                stderr=log,
                start_new_session=True,  # it starts processes of its own, which are ended with it
            )

    def start(self) -> None:
        """Come back when it answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        end, pause = time.monotonic() + BOUND_S, threading.Event()
        while True:
            assert self._process.poll() is None, self.log.read_text(encoding="utf-8")
            with contextlib.suppress(urllib.error.URLError, OSError):
                opener.open(f"{self.address}/health", timeout=5).close()
                return
            assert time.monotonic() < end, self.log.read_text(encoding="utf-8")
            pause.wait(0.2)

    def spans(self, *wanted: str) -> dict[str, dict[str, Any]]:
        """Give all spans, once the wanted ones are there."""
        reading = HOME / "tests/telemetry/mlflow_reading.py"
        done = subprocess.run(
            [MLFLOW / "python", reading, self.address, *wanted],
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, dict[str, Any]] = json.loads(done.stdout)
        return found

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[Mlflow]:
    assert (MLFLOW / "mlflow").exists(), "there is no MLflow in build/mlflow: `make test-observability` installs it"
    made = Mlflow(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def pair(mlflow: Mlflow) -> Iterator[Pair]:
    """Two servers of one etcd, whose spans MLflow is sent."""
    etcd = EtcdServer()
    asyncio.run(etcd.start_all())
    made = Pair(
        f"etcd://{etcd.members[0].endpoint}/observed",
        KOKUBAN_TRACING__ENDPOINT=mlflow.endpoint,
        KOKUBAN_TRACING__SAMPLE_RATIO="0",  # what is seen is seen because agents trace it
        KOKUBAN_TRACING__PLACES="plain",
        OTEL_EXPORTER_OTLP_HEADERS="x-mlflow-experiment-id=0",
        OTEL_BSP_SCHEDULE_DELAY="100",
    )
    try:
        made.start()
        yield made
    finally:
        made.close()
        etcd.close()


def raced(pair: Pair, endpoint: str) -> dict[str, dict[str, Any]]:
    """Have two agents race, each a process of its own through a server of its own; give what each says."""
    program = HOME / "tests/telemetry/racing_agent.py"
    racing = {
        agent: subprocess.Popen(
            [sys.executable, program, server.address, agent, endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OTEL_EXPORTER_OTLP_HEADERS": "x-mlflow-experiment-id=0"},
        )
        for agent, server in (("planner", pair.a), ("researcher", pair.b))
    }
    try:
        for process in racing.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in racing.values():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return {agent: json.loads(process.communicate(timeout=BOUND_S)[0]) for agent, process in racing.items()}
    finally:
        for process in racing.values():
            process.kill()
            process.wait()


async def settled(address: str) -> list[ConflictRecord]:
    """Give the conflicts of the race, once it is known what became of it."""
    async with kokuban_client.connect(address, agent="reader", timeout_s=BOUND_S) as reader, asyncio.timeout(BOUND_S):
        board = reader.board("main")
        while True:
            found = [conflict async for conflict in board.conflicts(region=REGION, path=PATH)]
            if found and found[0].outcome is not kokuban_client.ConflictOutcome.OPEN:
                return found
            await asyncio.sleep(0.05)


def test_what_a_back_end_received_of_a_race_joins_loser_and_winner(mlflow: Mlflow, pair: Pair) -> None:
    told = raced(pair, mlflow.endpoint)
    [conflict] = asyncio.run(settled(pair.a.address))
    assert conflict.winner is not None
    assert {agent: outcome["lost"] for agent, outcome in told.items()} == {
        conflict.loser.agent: True,
        conflict.winner.agent: False,
    }
    for party in (conflict.loser, conflict.winner):
        assert party.trace_id == told[party.agent]["trace_id"]
    assert conflict.outcome is kokuban_client.ConflictOutcome.MERGED
    loser_id, winner_id = (party.traceparent.split("-")[2] for party in (conflict.loser, conflict.winner))
    spans = mlflow.spans(loser_id, winner_id)
    loser, winner = spans[loser_id], spans[winner_id]
    assert (loser["trace_id"], winner["trace_id"]) == (conflict.loser.trace_id, conflict.winner.trace_id)
    assert loser["name"] == winner["name"] == "kokuban.v1.BoardService/Commit"
    assert loser["links"] == [
        {"trace_id": winner["trace_id"], "span_id": winner_id, "attributes": {"kokuban.link": "conflicts_with"}}
    ]
    assert winner["links"] == []
    assert loser["attributes"]["kokuban.conflict.winner.trace_id"] == winner["trace_id"]
    assert loser["attributes"]["kokuban.conflict.winner.span_id"] == winner_id
    assert loser["attributes"]["kokuban.conflict.id"] == conflict.id
    assert loser["events"] == ["kokuban.conflict"]
    assert "ERROR" not in loser["status"]
