"""Shows where a server's time goes under one workload.

    python tests/bench/profile.py unary_commits --store etcd:
    python tests/bench/profile.py unary_commits --set puts=32 --sort cumulative

Counting costs time too, most where functions are small: read the shares, and take the totals from run.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pstats
import signal
import sys

from .load import WORKLOADS
from .processes import ROOT, Workplace, cpu_seconds

_WARM_UP_OPERATIONS = 500


async def profile(
    workload: str, store: str, operations: int, parameters: dict[str, object], sort: str, lines: int
) -> None:
    """Run the workload against a server that counts, and print what took most."""
    async with Workplace(ROOT / "build" / "bench-data" / "profile") as place:
        if store == "etcd:":
            store = f"etcd://{(await place.etcd()).address}"
        result = place.folder / "result"
        server = await place.kokuban(store, python=("-m", "bench.profiled", str(result)))
        load = await place.load(workload, server.address, **parameters)
        await load.run(_WARM_UP_OPERATIONS)
        server.process.send_signal(signal.SIGUSR1)
        before = cpu_seconds(server.process)
        measurement = await load.run(operations)
        spent = cpu_seconds(server.process) - before
        await place.stop(server.process)
        sys.stdout.write(
            f"{measurement.operations} operations in {measurement.seconds:.2f} s; the server computed {spent:.2f} s,"
            f" {spent / measurement.operations * 1e6:.0f} µs each, counting included\n"
        )
        pstats.Stats(str(result)).strip_dirs().sort_stats(sort).print_stats(lines)


def main() -> None:
    """Read the command line and profile."""
    parser = argparse.ArgumentParser(
        prog="profile.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("workload", choices=sorted(WORKLOADS), metavar="WORKLOAD", help=", ".join(sorted(WORKLOADS)))
    parser.add_argument("--store", default="sqlite:", help="sqlite: (in a new folder), memory: or etcd: (a new one)")
    parser.add_argument("--operations", type=int, default=5_000, help="how many (5000)")
    parser.add_argument("--sort", default="tottime", choices=["tottime", "cumulative", "ncalls"])
    parser.add_argument("--lines", type=int, default=40, help="how many functions to print (40)")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER", help="parameters of the workload")
    asked = parser.parse_args()
    pairs = (setting.partition("=") for setting in asked.set)
    parameters: dict[str, object] = {name: json.loads(value) for name, _, value in pairs}
    asyncio.run(profile(asked.workload, asked.store, asked.operations, parameters, asked.sort, asked.lines))


if __name__ == "__main__":
    main()
