"""Reads spans back from an MLflow server, by MLflow's own client: run by the Python that has it, which is not the project's.

Called with the server's address and the ids of spans to wait for. Prints all spans that there are then, by id, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import mlflow  # type: ignore[import-not-found]  # in an environment of its own

_BOUND_S = 60.0
_EXPERIMENT = "0"


def spans() -> dict[str, Any]:
    """Give every span of the experiment."""
    found = mlflow.search_traces(locations=[_EXPERIMENT], return_type="list")
    return {
        span.span_id: {
            "name": span.name,
            "trace_id": span.trace_id.removeprefix("tr-"),
            "parent_id": span.parent_id,
            "links": [
                {"trace_id": link.trace_id.removeprefix("tr-"), "span_id": link.span_id, "attributes": link.attributes}
                for link in span.links
            ],
            "attributes": dict(span.attributes),
            "events": [event.name for event in span.events],
            "status": str(span.status.status_code),
        }
        for trace in found
        for span in trace.data.spans
    }


def main(address: str, *wanted: str) -> None:
    """Wait until the spans are there, and print all."""
    mlflow.set_tracking_uri(address)
    end = time.monotonic() + _BOUND_S
    pause = threading.Event()
    while not {*wanted} <= (found := spans()).keys():
        if time.monotonic() > end:
            raise SystemExit(f"{sorted({*wanted} - found.keys())} are not there, only {sorted(found)}")
        pause.wait(0.2)
    sys.stdout.write(json.dumps(found, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
