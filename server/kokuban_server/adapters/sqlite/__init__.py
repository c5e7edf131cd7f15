"""The embedded store: one SQLite file in a folder that one process owns."""

from kokuban_server.adapters.sqlite.copies import CopyRefused, backup, restore
from kokuban_server.adapters.sqlite.ownership import FolderRefused, StoreInUse
from kokuban_server.adapters.sqlite.store import SqliteStore

__all__ = ["CopyRefused", "FolderRefused", "SqliteStore", "StoreInUse", "backup", "restore"]
