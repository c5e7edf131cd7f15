"""A server that keeps count of where its time goes, on every thread: `python -m bench.profiled RESULT serve …`.

SIGUSR1 forgets what was counted so far (start, warm-up). When the server ends, the counts are in RESULT, for `pstats`.
"""

from __future__ import annotations

import cProfile
import pstats
import runpy
import signal
import sys
import threading
from typing import Any


def main() -> None:
    """Run the server under a profile for each thread."""
    result = sys.argv.pop(1)
    profiles: list[cProfile.Profile] = []

    def begin(*_event: Any) -> None:  # noqa: ANN401 - as threading gives them
        profile = cProfile.Profile()
        profiles.append(profile)
        profile.enable()

    def forget(*_signal: Any) -> None:  # noqa: ANN401 - as signal gives them
        for profile in profiles:
            profile.clear()

    signal.signal(signal.SIGUSR1, forget)
    threading.setprofile(begin)
    begin()
    try:
        runpy.run_module("kokuban_server", run_name="__main__", alter_sys=True)
    finally:
        profiles[0].disable()
        whole = pstats.Stats(profiles[0])
        for profile in profiles[1:]:
            profile.create_stats()
            if profile.stats:
                whole.add(profile)
        whole.dump_stats(result)


if __name__ == "__main__":
    main()
