"""The keys that texts are encrypted with, as the settings say."""

from __future__ import annotations

import asyncio
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from kokuban_server.adapters.files import WatchedFile
from kokuban_server.bootstrap.stores import StartError
from kokuban_server.core import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from kokuban_server.ports.sealer import Sealer

_log = structlog.get_logger()
_REFRESH_S: Final = 1.0


class Encryption(NamedTuple):
    """What encrypts, and what keeps it up to date."""

    sealer: Sealer
    follow: Callable[[], Coroutine[None, None, None]]
    """Runs until cancelled."""


def open_encryption(path: Path | None) -> Encryption | None:
    """Give what encrypts with the keys of a file; nothing without one. Raises `StartError` where the keys cannot be read."""
    if path is None:
        return None
    # Imported here: only who encrypts needs the library it stands on.
    from kokuban_server.adapters.encryption import KeyFile, KeysInvalidError  # noqa: PLC0415 - see above

    try:
        file = KeyFile(WatchedFile(path, limits.ENCRYPTION_KEYS_BYTES_MAX).read_if_changed, _report)
        is_open = bool(path.stat().st_mode & stat.S_IROTH)
    except (OSError, KeysInvalidError) as fault:
        raise StartError(f"encryption_keys_file: {path}: {fault}") from None
    if is_open:
        note = "whoever is on this machine can read the keys"
        _log.warning("encryption.keys_readable", file=str(path), note=note)

    async def follow() -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            if await file.refresh():
                _log.info("encryption.keys_read", newest=file.newest)

    return Encryption(file, follow)


def _report(fault: str) -> None:
    _log.error("encryption.keys_unusable", fault=fault, note="the keys of before stay in force")
