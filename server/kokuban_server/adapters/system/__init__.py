"""What the operating system gives."""

from kokuban_server.adapters.system.clock import SystemClock

__all__ = ["SystemClock"]
