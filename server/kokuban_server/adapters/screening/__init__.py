"""Screening in a process apart, so that the server's loop never waits for it."""

from kokuban_server.adapters.screening.process import ProcessScreener

__all__ = ["ProcessScreener"]
