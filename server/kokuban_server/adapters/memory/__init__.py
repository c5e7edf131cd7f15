"""The store in memory: reference model, and what tests and simulations run on."""

from kokuban_server.adapters.memory.store import MemoryStore

__all__ = ["MemoryStore"]
