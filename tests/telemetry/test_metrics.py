"""Metrics: what is scraped, that its labels are few, and that alerts and dashboard speak of what there is."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.adapters.telemetry import MetricsPush, OtelTracer, Places
from kokuban_server.app.watches import _Subscriber
from kokuban_server.bootstrap import Server
from kokuban_server.core import keys
from kokuban_server.core.change_set import AtRevision, ChangeSet
from kokuban_server.core.refusals import TokenAheadOfStore
from kokuban_server.ports.board_store import AtLeast, CommitRefused, LeaseLost
from kokuban_server.settings import Settings
from tests.etcd_server import free_ports
from tests.wire.calls import (
    Agent,
    SettableClock,
    acquire_request,
    commit_request,
    connected,
    eventually,
    new_id,
    put,
    refused,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from prometheus_client import Metric

OBSERVABILITY = Path(__file__).parents[2] / "deploy/observability"
TRACE = ("traceparent", "00-" + "a" * 32 + "-" + "1" * 16 + "-01")


class Scraped:
    """A server that is measured, and an agent that is connected to it."""

    def __init__(self, server: Server, agent: Agent, clock: SettableClock) -> None:
        self.server = server
        self.agent = agent
        self.clock = clock

    async def page(self, path: str = "/metrics") -> str:
        return await asyncio.to_thread(self._get, path)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.metrics_port}{path}", timeout=10) as answer:
            assert "openmetrics-text" in answer.headers["content-type"]
            body: bytes = answer.read()
            return body.decode()

    async def families(self) -> dict[str, Metric]:
        page = await self.page()
        return {family.name: family for family in text_string_to_metric_families(page)}  # type: ignore[no-untyped-call]

    async def value(self, name: str, **labels: str) -> float:
        """Give a sample's value; 0 if there is no such sample."""
        for family in (await self.families()).values():
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0


@pytest.fixture
async def scraped() -> AsyncIterator[Scraped]:
    clock = SettableClock()
    tracer = OtelTracer(
        SimpleSpanProcessor(InMemorySpanExporter()),
        server_id="s",
        version="1",
        sample_ratio=0.0,
        always_conflicts=False,
        places=Places.NONE,
        place_key=b"key",
    )
    chosen = Settings(
        store="memory:", listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", drain_grace_s=0.0, upkeep_interval_s=60.0
    )
    server = Server(chosen, MemoryStore(clock), clock, b"k" * 32, None, tracer)
    port = await server.start()
    async with connected(port) as channel:
        yield Scraped(server, Agent(channel), clock)
    await server.stop()


async def work(scraped: Scraped) -> None:
    """Do something of everything that is counted."""
    agent = scraped.agent
    await agent.commit(put("e"))
    await agent.commit(put("f"), retry_of=new_id())
    again = commit_request(put("g"))
    await agent.send(again)
    await agent.send(again)
    with refused("ALREADY_EXISTS"):
        await agent.send(commit_request(put("e")), TRACE)
    session, other = await agent.session(), await agent.session()
    await agent.acquire(session, "locked")
    with refused("LOCK_WAIT_EXPIRED"):
        await agent.grant(acquire_request(other, "locked", wait_s=0.05))


async def test_what_happens_is_counted_by_what_became_of_it(scraped: Scraped) -> None:
    await work(scraped)
    value = scraped.value
    assert await value("kokuban_commits_total", result="committed") == 3
    assert await value("kokuban_commits_total", result="replayed") == 1
    assert await value("kokuban_commits_total", result="ALREADY_EXISTS") == 1
    assert await value("kokuban_commit_retries_total") == 1
    assert await value("kokuban_conflicts_total", reason="ALREADY_EXISTS", region_kind="shared") == 1
    assert await value("kokuban_conflicts_total", reason="LOCK_WAIT_EXPIRED", region_kind="shared") == 1
    assert await value("kokuban_lock_wait_seconds_count", end="LOCK_WAIT_EXPIRED") == 1
    method = "kokuban.v1.BoardService.Commit"
    assert await value("kokuban_rpc_duration_seconds_count", method=method, code="OK") == 4
    assert await value("kokuban_rpc_duration_seconds_count", method=method, code="ALREADY_EXISTS") == 1
    assert await value("kokuban_rpc_duration_seconds_bucket", method=method, code="OK", le="+Inf") == 4
    assert await value("kokuban_sessions") == 2
    assert await value("kokuban_locks_held") == 1

    async def is_known() -> bool:
        return await value("kokuban_store_up") == 1 and await value("kokuban_conflicts_written_total") == 2

    await eventually(is_known)


async def test_the_store_is_measured_by_operation_and_by_batch(scraped: Scraped) -> None:
    await work(scraped)
    value = scraped.value
    counted = "kokuban_store_operation_seconds_count"
    assert await value(counted, operation="commit", outcome="ok") >= 6  # three commits, two sessions, a lock
    assert await value(counted, operation="grant_lease", outcome="ok") >= 2
    assert await value(counted, operation="read", outcome="ok") >= 1
    # Of one page: more batches may be sent between two.
    samples = {sample.name: sample.value for family in (await scraped.families()).values() for sample in family.samples}
    batches = samples["kokuban_store_batch_members_count"]
    assert (
        samples["kokuban_store_batch_members_sum"] >= batches == samples["kokuban_store_batch_duration_seconds_count"]
    )
    assert batches >= 1
    assert await value("kokuban_store_commits_waiting") == 0
    store = scraped.server._store
    with pytest.raises(CommitRefused):
        await store.commit(ChangeSet((AtRevision(b"e/none/", 1),)), 1.0)
    with pytest.raises(LeaseLost):
        await store.renew_lease(4711, 1.0)
    with pytest.raises(TokenAheadOfStore):
        await store.read([b"e/none/"], AtLeast(10**12), 1.0)
    assert await value(counted, operation="commit", outcome="guard_failed") >= 1
    assert await value(counted, operation="renew_lease", outcome="lease_lost") == 1
    assert await value(counted, operation="read", outcome="TOKEN_AHEAD_OF_STORE") == 1


async def test_how_long_locks_were_held_is_counted_however_they_end(scraped: Scraped) -> None:
    agent = scraped.agent
    session, other = await agent.session(), await agent.session()
    fence = await agent.acquire(session, "released")
    await agent.acquire(session, "ended")
    await agent.acquire(other, "kept")
    asking = agent.ask(acquire_request(session, "kept", wait_s=60))
    await asking.queued()
    assert await scraped.value("kokuban_lock_hold_seconds_count") == 0
    assert await scraped.value("kokuban_lock_queue_length_max") == 1
    assert await scraped.value("kokuban_leases") == 3  # two sessions, and the server, for which a request waits
    await agent.release(fence)
    await agent.close(session)
    assert await scraped.value("kokuban_lock_hold_seconds_count") == 2
    assert await scraped.value("kokuban_lock_queue_length_max") == 0
    asking.cancel()


async def test_heartbeats_are_measured_of_sessions_that_are_kept_alive_here(scraped: Scraped) -> None:
    pulse = await scraped.agent.keep_alive(await scraped.agent.session())
    sessions = scraped.server._sessions
    assert await scraped.value("kokuban_sessions_kept_alive") == 1
    before = sessions.oldest_heartbeat_s()
    await until(lambda: sessions.oldest_heartbeat_s() > before)
    aged = sessions.oldest_heartbeat_s() + 1.0
    sessions._renewed_at = {vigil: at - 100.0 for vigil, at in sessions._renewed_at.items()}
    assert await scraped.value("kokuban_session_heartbeat_age_seconds") > 100.0
    await pulse.renew()
    assert await scraped.value("kokuban_session_heartbeat_age_seconds") < 100.0 + aged
    assert sessions.oldest_heartbeat_s() < 100.0
    pulse.call.cancel()
    await until(lambda: sessions.kept_alive_count == 0)
    assert await scraped.value("kokuban_session_heartbeat_age_seconds") == 0


async def test_how_late_watches_are_is_measured(scraped: Scraped) -> None:
    feed = scraped.server._watches.feed
    await feed.start()
    reader = _Subscriber((keys.HEAD + b"dev/main/",), feed.revision, 10, 10_000)
    assert feed.join(reader)
    assert await scraped.value("kokuban_watch_lag_seconds") == 0
    await scraped.agent.commit(put("e"))
    await until(lambda: bool(reader.waiting))
    scraped.clock.pass_ms(3_000)
    assert await scraped.value("kokuban_watch_lag_seconds") == 3
    assert await scraped.value("kokuban_watch_feed_delay_seconds_count") >= 1
    reader.take()
    assert await scraped.value("kokuban_watch_lag_seconds") == 0


async def test_texts_are_counted_by_what_was_made_of_them(scraped: Scraped) -> None:
    await scraped.agent.commit(put("e"))
    await scraped.agent.screen("The weather is fine.")
    await scraped.agent.redact("Write to jane.doe@mail.internal.")
    await scraped.agent.redact("Nothing here.")
    counted = "kokuban_screening_duration_seconds_count"
    assert await scraped.value(counted, asked="screen", outcome="ADMIT") == 1
    assert await scraped.value(counted, asked="redact", outcome="FOUND") == 1
    assert await scraped.value(counted, asked="redact", outcome="CLEAN") == 1
    assert await scraped.value("kokuban_screenings_waiting") == 0
    for figure in ("waiting", "kept", "lowered", "withheld"):
        assert await scraped.value(f"kokuban_rescreening_{figure}") == 0


async def test_an_exemplar_names_the_trace_of_what_was_sampled_and_no_other(scraped: Scraped) -> None:
    await work(scraped)
    families = await scraped.families()
    exemplars = [
        (family.name, sample.labels, sample.exemplar.labels["trace_id"])
        for family in families.values()
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert {trace_id for _, _, trace_id in exemplars} == {"a" * 32}
    assert {name for name, _, _ in exemplars} == {"kokuban_conflicts", "kokuban_rpc_duration_seconds"}
    assert {labels.get("code", "ALREADY_EXISTS") for _, labels, _ in exemplars} == {"ALREADY_EXISTS"}


async def test_nothing_that_a_caller_chooses_becomes_a_label(scraped: Scraped) -> None:
    secret = "mk-4711"  # noqa: S105 - no password
    agent = Agent(scraped.agent.channel, secret)
    for number in range(20):
        region = f"task:{secret}-{number}"
        await agent.commit(put(f"{secret}/{number}", secret, region=region), reason=secret)
        with refused("ALREADY_EXISTS"):
            await agent.commit(put(f"{secret}/{number}", secret, region=region), reason=secret)
        unknown: Any = agent.channel.unary_unary(f"/kokuban.v1.{secret}/{number}")
        with pytest.raises(grpc.aio.AioRpcError):
            await unknown(b"")
    page = await scraped.page()
    assert secret not in page
    assert set(re.findall(r'(\w+)="', page)) == {
        "method",
        "code",
        "le",
        "result",
        "reason",
        "region_kind",
        "operation",
        "outcome",
    }


async def test_only_the_page_is_served_and_bad_requests_are_hung_up_on(scraped: Scraped) -> None:
    with pytest.raises(urllib.error.HTTPError):
        await scraped.page("/other")
    for raw in (b"\r\n", b"GET /metrics HTTP/1.1\r\n" + b"x" * 100_000, b"\x16\x03\x01\x00"):
        reader, writer = await asyncio.open_connection("127.0.0.1", scraped.server.metrics_port)
        writer.write(raw)
        writer.write_eof()
        async with asyncio.timeout(10):
            answer = await _rest(reader)
        assert b"kokuban_" not in answer
        writer.close()
    assert "kokuban_commits" in await scraped.page()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_alerts_and_dashboard_speak_of_what_is_measured(scraped: Scraped) -> None:
    await work(scraped)
    await scraped.agent.screen("The weather is fine.")

    async def has_store() -> bool:
        return await scraped.value("kokuban_store_up") == 1

    await eventually(has_store)
    names = {sample.name for family in (await scraped.families()).values() for sample in family.samples}
    dashboard: dict[str, Any] = json.loads((OBSERVABILITY / "dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) > 5
    for text in (*asked, (OBSERVABILITY / "alerts.yaml").read_text(encoding="utf-8")):
        assert set(re.findall(r"kokuban_\w+", text)) <= names, text


async def test_the_same_counts_are_sent_by_otlp(scraped: Scraped) -> None:
    await work(scraped)
    taken: list[bytes] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            taken.append(gzip.decompress(raw) if self.headers.get("content-encoding") == "gzip" else raw)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the base class's
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    exporter = OTLPMetricExporter(endpoint=f"http://127.0.0.1:{server.server_address[1]}/v1/metrics", timeout=10)
    measures = scraped.server._wire._calls._measures
    assert measures is not None
    push = MetricsPush(exporter, measures, scraped.server._gauges.read, server_id="s", version="1", pause_s=0.01)
    pushing = asyncio.create_task(push.run())
    await until(lambda: bool(taken))
    pushing.cancel()
    await asyncio.wait([pushing])
    await asyncio.to_thread(server.shutdown)
    server.server_close()
    message = metrics_service_pb2.ExportMetricsServiceRequest.FromString(taken[0])
    ((scope,),) = [resource.scope_metrics for resource in message.resource_metrics]
    told = {metric.name: metric for metric in scope.metrics}
    commits = {
        point.attributes[0].value.string_value: point.as_int for point in told["kokuban.commits"].sum.data_points
    }
    assert commits == {"committed": 3, "replayed": 1, "ALREADY_EXISTS": 1}
    durations = told["kokuban.rpc.duration"].histogram.data_points
    by_method = {tuple(one.value.string_value for one in point.attributes): point for point in durations}
    point = by_method["kokuban.v1.BoardService.Commit", "OK"]
    assert (point.count, sum(point.bucket_counts), len(point.bucket_counts)) == (4, 4, len(point.explicit_bounds) + 1)
    assert not point.HasField("max")
    assert [point.as_double for point in told["kokuban.sessions"].gauge.data_points] == [2.0]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_the_alerts_fire_when_they_should_and_not_before() -> None:
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=OBSERVABILITY, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus")
async def test_prometheus_scrapes_the_page_and_keeps_the_exemplars(scraped: Scraped, tmp_path: Path) -> None:
    await work(scraped)
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "scrape_configs: [{job_name: kokuban, scrape_interval: 1s, static_configs: [{targets:"
        f" ['127.0.0.1:{scraped.server.metrics_port}']}}]}}]\n",
        encoding="utf-8",
    )
    (port,) = free_ports(1)
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def asked(what: str) -> Any:  # noqa: ANN401 - JSON
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{what}", timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:  # not there yet
            return None

    try:
        found: Any = None
        async with asyncio.timeout(60):
            while not found:
                query = "query_exemplars?query=kokuban_conflicts_total&start=0&end=9999999999"
                found = await asyncio.to_thread(asked, query)
        traces = {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}
        assert traces == {"a" * 32}
    finally:
        process.kill()
        await process.wait()
