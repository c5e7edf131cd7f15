"""Metrics as Prometheus scrapes them, in the OpenMetrics format, which has exemplars."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PrometheusExemplar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import Metric

    from kokuban_server.app.gauges import Reading
    from kokuban_server.app.measures import Measures
    from kokuban_server.core.distribution import Distribution, Exemplar

_REQUEST_S: Final = 5.0
_REQUEST_LINES_MAX: Final = 100
_SCRAPES_MAX: Final = 8
_Counted = TypeVar("_Counted")


class MetricsPage:
    """The page that is scraped."""

    def __init__(self, measures: Measures, read: Callable[[], Reading]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(measures, read))
        self._server: asyncio.Server | None = None
        self._open = 0

    def render(self) -> bytes:
        """Give the page."""
        page: bytes = generate_latest(self._registry)  # type: ignore[no-untyped-call]  # it has no annotations
        return page

    async def start(self, listen: str) -> int:
        """Answer `GET /metrics` on `host:port`; give the port. Raises `OSError` if it cannot be had."""
        host, _, port = listen.rpartition(":")
        self._server = await asyncio.start_server(self._answer, host.strip("[]"), int(port), limit=8 * 1024)
        taken: int = self._server.sockets[0].getsockname()[1]
        return taken

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and hang up. Whoever asks slowly, long or by the dozen is hung up on."""
        self._open += 1
        try:
            if self._open <= _SCRAPES_MAX:
                async with asyncio.timeout(_REQUEST_S):
                    line = await reader.readline()
                    for _ in range(_REQUEST_LINES_MAX):
                        if await reader.readline() in {b"\r\n", b"\n", b""}:
                            break
                    is_known = line.startswith((b"GET /metrics ", b"GET /metrics?"))
                    body = self.render() if is_known else b""
                    status = "200 OK" if is_known else "404 Not Found"
                    head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\n"
                    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                    writer.write(head.encode() + body)
                    await writer.drain()
        except (TimeoutError, OSError, ValueError):  # too slow, gone, or a line that is too long
            pass
        finally:
            self._open -= 1
            writer.close()


class _Collector(Collector):
    """Turns what was counted into families of metrics."""

    def __init__(self, measures: Measures, read: Callable[[], Reading]) -> None:
        self._measures = measures
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Give every family, as things stand now."""
        measures = self._measures
        for one in measures.histograms():
            name = one.name.replace(".", "_") + ("_seconds" if one.unit else "")
            yield _histogram(name, one.told, one.labels, one.found)
        commits = _keyed({(end,): count for end, count in measures.commits.items()})
        yield _counter("kokuban_commits", "Commits by what became of them.", ("result",), commits)
        yield _counter("kokuban_commit_retries", "Commits that are the retry of another.", (), {(): measures.retries})
        yield _counter(
            "kokuban_conflicts",
            "Requests that lost, by reason and kind of region.",
            ("reason", "region_kind"),
            _keyed(measures.conflicts),
            _keyed(measures.conflict_exemplars),
        )
        reading = self._read()
        for name, value in reading.gauges.items():
            yield GaugeMetricFamily(name, "See deploy/README.md.", value=value)
        for name, value in reading.counters.items():
            yield CounterMetricFamily(name, "See deploy/README.md.", value=value)


def _keyed(counted: Mapping[Any, _Counted]) -> dict[tuple[str, ...], _Counted]:
    """Give what was counted as it is now, by tuples of labels."""
    return {tuple(labels): value for labels, value in counted.items()}


def _counter(
    name: str,
    told: str,
    labels: Sequence[str],
    counts: Mapping[tuple[str, ...], int],
    exemplars: Mapping[tuple[str, ...], Exemplar] | None = None,
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, told, labels=labels)
    for values, count in counts.items():
        exemplar = (exemplars or {}).get(values)
        family.add_metric(values, count, exemplar=None if exemplar is None else _told(exemplar))
    return family


def _histogram(
    name: str,
    told: str,
    labels: Sequence[str],
    found: Mapping[tuple[str, ...], Distribution],
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, told, labels=labels)
    for values, distribution in found.items():
        count = 0
        buckets = []
        for place, bound in enumerate((*map(str, distribution.bounds), "+Inf")):
            count += distribution.counts[place]
            exemplar = distribution.exemplars.get(place)
            buckets.append([bound, count, None if exemplar is None else _told(exemplar)])
        family.add_metric(values, buckets, distribution.total)  # type: ignore[arg-type]  # as its documentation has it
    return family


def _told(exemplar: Exemplar) -> PrometheusExemplar:
    return PrometheusExemplar({"trace_id": exemplar.trace_id}, exemplar.value)
