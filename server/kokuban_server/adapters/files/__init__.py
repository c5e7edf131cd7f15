"""Files that commands and operators change while servers follow them."""

from kokuban_server.adapters.files.edits import edit_file
from kokuban_server.adapters.files.watched_file import WatchedFile

__all__ = ["WatchedFile", "edit_file"]
