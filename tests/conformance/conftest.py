"""Puts the suites within reach of their test modules, and names what an adapter may fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are not a package; the suites are imported by name
pytest.register_assert_rewrite("board_store_suite")

EXEMPT: dict[str, dict[str, str]] = {
    "TestMemoryStore": {
        "test_what_was_acknowledged_is_there_after_reopening": "memory forgets when it is closed, by design",
        "test_revisions_go_on_after_reopening": "memory forgets when it is closed, by design",
        "test_the_epoch_is_the_same_after_reopening": "memory forgets when it is closed, by design",
        "test_store_time_does_not_go_back_over_reopening": "memory forgets when it is closed, by design",
        "test_leases_and_their_keys_live_on_after_reopening": "memory forgets when it is closed, by design",
        "test_compaction_holds_after_reopening": "memory forgets when it is closed, by design",
        "test_a_watch_resumes_over_reopening": "memory forgets when it is closed, by design",
    },
}
"""Test class, test, and why it may fail. Each is expected to fail: the day it passes, the build says so."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None:
            reason = EXEMPT.get(item.cls.__name__, {}).get(item.originalname)
            if reason is not None:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
