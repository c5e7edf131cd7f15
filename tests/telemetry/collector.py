"""An OTLP collector on a loopback port: keeps what it is sent, or is as bad as a test wants it."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from opentelemetry.proto.trace.v1 import trace_pb2


class Collector:
    """Takes spans by OTLP over HTTP. `status` is what it answers; while `answers` is not set it does not."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[trace_pb2.Span] = []
        self.requests = 0
        self.status = status
        self.answers = threading.Event()
        self.answers.set()
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="collector", daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    raw = gzip.decompress(raw)
                collector.take(raw)
                collector.answers.wait(60)
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the base class's
                return

        return Handler

    def take(self, raw: bytes) -> None:
        message = trace_service_pb2.ExportTraceServiceRequest.FromString(raw)
        with self._news:
            self.requests += 1
            if self.status == 200:
                for resource in message.resource_spans:
                    for scope in resource.scope_spans:
                        self.spans += scope.spans
            self._news.notify_all()

    def wait_for(self, *wanted: bytes, within_s: float = 30.0) -> dict[bytes, trace_pb2.Span]:
        """Give the spans of these ids, once they are there."""
        with self._news:
            assert self._news.wait_for(lambda: {*wanted} <= {span.span_id for span in self.spans}, within_s)
            return {span.span_id: span for span in self.spans}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
