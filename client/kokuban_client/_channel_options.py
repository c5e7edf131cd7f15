"""How channels are set up, the same for event loops and threads."""

from __future__ import annotations

_LOOPBACK = ("127.", "localhost", "[::1]", "ipv4:127.", "ipv6:[::1]", "unix:")

_OPTIONS: tuple[tuple[str, int], ...] = (
    # A channel of its own: two clients in one process share neither connection nor fate, and a client's streams do not
    # compete with its short calls for one connection's streams.
    ("grpc.use_local_subchannel_pool", 1),
    # A peer that vanished without a word is noticed within 40 s of a call in flight.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A restarted server is found again within 2 s, not within grpc's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A commit's answer may hold 32 computed values of 512 KiB; grpc's own limit is 4 MiB.
    ("grpc.max_receive_message_length", 32 * 1024 * 1024),
    # Retries are ours, by reason; transparent ones of grpc would hide attempts.
    ("grpc.enable_retries", 0),
)


def options_for(address: str) -> list[tuple[str, int]]:
    """Give the options of a channel to an address."""
    # A proxy from the environment cannot reach this machine's own loopback.
    proxy = [("grpc.enable_http_proxy", 0)] if address.startswith(_LOOPBACK) else []
    return [*_OPTIONS, *proxy]
