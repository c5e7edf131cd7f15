"""Points in time as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_AGO = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def instant(text: str) -> datetime:
    """Give a point in time: RFC 3339, or how long ago."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        given = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a time like 2026-11-30T08:00:00Z nor how long ago, like 90s, 15m, 2h or 7d"
        ) from None
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)
