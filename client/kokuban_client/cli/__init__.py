"""The command line `kokuban`. Starts light: gRPC is loaded by the command that needs it."""

from __future__ import annotations

from kokuban_client.cli._main import main

__all__ = ["main"]
