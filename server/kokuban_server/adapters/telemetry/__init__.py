"""Telemetry by OpenTelemetry. Imported only where it is asked for."""

from kokuban_server.adapters.telemetry.metrics import MetricsPage
from kokuban_server.adapters.telemetry.push import MetricsPush
from kokuban_server.adapters.telemetry.tracing import OtelTracer, Places

__all__ = ["MetricsPage", "MetricsPush", "OtelTracer", "Places"]
