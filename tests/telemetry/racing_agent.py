"""An agent that wants to write the plan first: a program of its own, in a trace of its own.

Called with a server's address, the agent's name and where spans are sent. Says on its standard output when it is ready,
begins when a line tells it to, and says at last whether it lost and in which trace that was. Who loses reads what there is
and goes on from that.
"""

from __future__ import annotations

import asyncio
import json
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import kokuban_client
from kokuban_client import errors

REGION, PATH = "shared:plan", "task_1/step_2"
_BOUND_S = 30.0


async def race(address: str, agent: str) -> dict[str, object]:
    """Write the plan in a trace; give what came of it."""
    async with kokuban_client.connect(address, agent=agent, timeout_s=_BOUND_S) as client:
        board = client.board("main")
        await board.find(REGION, PATH)  # so that the connection stands
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        with trace.get_tracer("racing_agent").start_as_current_span(f"{agent}: write the plan") as span:
            lost = False
            try:
                await board.put(REGION, PATH, f"{agent}'s plan", must_not_exist=True, reason=f"{agent} was here first")
            except errors.AlreadyExists as refusal:
                lost = True
                found = await board.get(REGION, PATH)
                merged = f"{found.value}, then {agent}'s"
                await board.put(REGION, PATH, merged, at=found.revision, retry_of=refusal.request_id)
        return {"lost": lost, "trace_id": f"{span.get_span_context().trace_id:032x}"}


def main(address: str, agent: str, endpoint: str) -> None:
    """Race, and see to it that all spans are sent."""
    provider = TracerProvider(resource=Resource.create({"service.name": agent}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    trace.set_tracer_provider(provider)
    outcome = asyncio.run(race(address, agent))
    provider.shutdown()
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
