"""Files that commands and operators change while servers follow them."""

from kokuban_server.adapters.files.edits import edit_file
from kokuban_server.adapters.files.rereading import Rereading
from kokuban_server.adapters.files.watched_file import WatchedFile

__all__ = ["Rereading", "WatchedFile", "edit_file"]
