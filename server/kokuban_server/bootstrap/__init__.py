"""Puts a server together: the only room that knows both the use cases and what they run on."""

from kokuban_server.bootstrap.process import Server, configure_logging, serve
from kokuban_server.bootstrap.stores import StartError, backup, open_store, restore

__all__ = ["Server", "StartError", "backup", "configure_logging", "open_store", "restore", "serve"]
