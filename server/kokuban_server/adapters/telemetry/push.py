"""Metrics by OTLP: the same counts that are scraped, sent now and then by the SDK's exporter.

They are given to the exporter as they stand. The SDK's own instruments would count everything a second time, call by call.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    DataPointT,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.metrics.export import MetricExporter

    from kokuban_server.app.gauges import Reading
    from kokuban_server.app.measures import Histogram as Distributions
    from kokuban_server.app.measures import Measures

_PAUSE_S: Final = 15.0


class MetricsPush:
    """Sends what was counted to a collector."""

    def __init__(
        self,
        exporter: MetricExporter,
        measures: Measures,
        read: Callable[[], Reading],
        *,
        server_id: str,
        version: str,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._exporter = exporter
        self._measures = measures
        self._read = read
        self._resource = Resource.create(
            {"service.name": "kokuban", "service.version": version, "service.instance.id": server_id}
        )
        self._scope = InstrumentationScope("kokuban_server", version)
        self._begun_ns = time.time_ns()
        self._pause_s = pause_s

    async def run(self) -> None:
        """Send until cancelled. What a collector does not take is in what is sent next, as all counts are totals."""
        while True:
            await asyncio.sleep(self._pause_s)
            # In a thread, as it waits for the collector; the exporter itself bounds how long.
            await asyncio.to_thread(self._exporter.export, self.render())

    def render(self) -> MetricsData:
        """Give everything as it stands now."""
        measures, reading = self._measures, self._read()
        told = [
            *map(self._histogram, measures.histograms()),
            self._sum("kokuban.commits", ("result",), {(end,): count for end, count in measures.commits.items()}),
            self._sum("kokuban.commit.retries", (), {(): measures.retries}),
            self._sum("kokuban.conflicts", ("reason", "region_kind"), measures.conflicts),
        ]
        told += [self._sum(_dotted(name), (), {(): value}) for name, value in reading.counters.items()]
        told += [
            Metric(_dotted(name), "", "", Gauge([self._number((), (), value)]))
            for name, value in reading.gauges.items()
        ]
        scope = ScopeMetrics(self._scope, told, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _sum(self, name: str, labels: Sequence[str], counts: Mapping[Any, float]) -> Metric:
        points: list[DataPointT] = [self._number(labels, values, count) for values, count in counts.items()]
        return Metric(name, "", "", Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True))  # type: ignore[arg-type]

    def _number(self, labels: Sequence[str], values: Sequence[str], value: float) -> NumberDataPoint:
        return NumberDataPoint(dict(zip(labels, values, strict=True)), self._begun_ns, time.time_ns(), value)

    def _histogram(self, one: Distributions) -> Metric:
        points = [
            HistogramDataPoint(
                attributes=dict(zip(one.labels, values, strict=True)),
                start_time_unix_nano=self._begun_ns,
                time_unix_nano=time.time_ns(),
                count=sum(distribution.counts),
                sum=distribution.total,
                bucket_counts=list(distribution.counts),
                explicit_bounds=list(distribution.bounds),
                # Of a running total the least and the most are not known.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
            for values, distribution in one.found.items()
        ]
        return Metric(one.name, one.told, one.unit, Histogram(points, AggregationTemporality.CUMULATIVE))


def _dotted(name: str) -> str:
    """Give a metric's name as OpenTelemetry spells it."""
    return name.replace("kokuban_", "kokuban.", 1)
