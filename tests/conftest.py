"""What all tests share: properties are tried on the same examples every time.

`KOKUBAN_PROPERTIES=search` looks for new examples instead, more of them, and prints how to repeat a failure.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.wire.calls", "tests.replicas.lock_calls")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background job: the processes that tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,  # a busy machine is no fault
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],  # as above
)
settings.register_profile(
    "search", parent=settings.get_profile("same"), derandomize=False, max_examples=5_000, print_blob=True
)
settings.load_profile(os.environ.get("KOKUBAN_PROPERTIES", "same"))
