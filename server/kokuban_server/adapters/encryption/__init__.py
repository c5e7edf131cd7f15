"""Keys in a file, and texts encrypted with them."""

from kokuban_server.adapters.encryption.key_ring import KeyFile, KeyRing, KeysInvalidError, key_line, parse_keys

__all__ = ["KeyFile", "KeyRing", "KeysInvalidError", "key_line", "parse_keys"]
