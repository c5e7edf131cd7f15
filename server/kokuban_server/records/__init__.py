"""The stored message format and its codec."""
