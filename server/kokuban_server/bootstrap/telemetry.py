"""Telemetry that settings ask for. What it needs is imported only then."""

from __future__ import annotations

import importlib.metadata
import logging
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import structlog

from kokuban_server.bootstrap.stores import StartError
from kokuban_server.core.rates import Bucket, Rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.adapters.telemetry import MetricsPage, MetricsPush
    from kokuban_server.app.gauges import Reading
    from kokuban_server.app.measures import Measures
    from kokuban_server.ports.tracing import Tracer
    from kokuban_server.settings import TracingSettings

_EXPORT_S: Final = 5.0
_QUEUE_SPANS: Final = 4_096
_log = structlog.get_logger()


def open_tracer(settings: TracingSettings, digest_key: bytes) -> Tracer | None:
    """Give what makes spans and sends them, or nothing if they are not asked for. Raises `StartError`."""
    if not settings.endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        from kokuban_server.adapters.telemetry import OtelTracer, Places  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise StartError(f"tracing needs {error.name}: pip install 'kokuban[telemetry]'") from error
    _tell_of_exports()
    exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=_EXPORT_S)
    return OtelTracer(
        BatchSpanProcessor(exporter, max_queue_size=_QUEUE_SPANS, export_timeout_millis=_EXPORT_S * 1000),
        server_id=secrets.token_hex(8),
        version=importlib.metadata.version("kokuban"),
        sample_ratio=settings.sample_ratio,
        always_conflicts=settings.always_conflicts,
        places=Places(settings.places),
        # The same at every server of the store, so that one place has one name; and not the key of anything else.
        place_key=blake2b(b"places of spans", key=digest_key).digest(),
    )


def open_metrics(listen: str, measures: Measures | None, read: Callable[[], Reading]) -> MetricsPage | None:
    """Give the page of what is measured, or nothing if it is not asked for. Raises `StartError`."""
    if not listen or measures is None:
        return None
    try:
        from kokuban_server.adapters.telemetry import MetricsPage  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise StartError(f"metrics need {error.name}: pip install 'kokuban[telemetry]'") from error
    return MetricsPage(measures, read)


def open_push(
    endpoint: str, measures: Measures | None, read: Callable[[], Reading], server_id: str
) -> MetricsPush | None:
    """Give what sends what is measured, or nothing if it is not asked for. Raises `StartError`."""
    if not endpoint or measures is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415

        from kokuban_server.adapters.telemetry import MetricsPush  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise StartError(f"metrics need {error.name}: pip install 'kokuban[telemetry]'") from error
    _tell_of_exports()
    exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_EXPORT_S)
    return MetricsPush(exporter, measures, read, server_id=server_id, version=importlib.metadata.version("kokuban"))


class _ExportLog(logging.Handler):
    """Tells in this server's own log what the SDK says of its exports, a line a minute."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._rate = Bucket(Rate(60.0, 1))

    def emit(self, record: logging.LogRecord) -> None:
        """Log one line. It comes from the exporter's thread; the worst of a race is a second line."""
        if not self._rate.wait_s(record.created):
            self._rate.take(record.created)
            _log.warning("telemetry.export_failed", detail=record.getMessage())


def _tell_of_exports() -> None:
    logger = logging.getLogger("opentelemetry")
    logger.handlers = [_ExportLog()]
    logger.propagate = False
