"""How channels are set up, the same for event loops and threads."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from kokuban_client._credentials import Tls

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:]+)\]|(?P<host>[0-9a-z.-]+))(?::[0-9]{1,5})?")

_OPTIONS: tuple[tuple[str, int | str], ...] = (
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


def options_for(address: str, tls: Tls | None) -> list[tuple[str, int | str]]:
    """Give the options of a channel to an address."""
    # A proxy from the environment cannot reach this machine's own loopback.
    proxy = [("grpc.enable_http_proxy", 0)] if is_loopback(address) else []
    named = [("grpc.ssl_target_name_override", tls.server_name)] if tls is not None and tls.server_name else []
    return [*_OPTIONS, *proxy, *named]


def credentials_of(tls: Tls) -> grpc.ChannelCredentials:
    """Give grpc's form of what a connection trusts and shows."""
    return grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)


def is_loopback(address: str) -> bool:
    """Say whether what is sent to an address stays on this machine for certain. Of a list each one must."""
    scheme, _, rest = address.lower().partition(":")
    match scheme:
        case "unix" | "unix-abstract":
            return True
        case "ipv4" | "ipv6":
            return all(_is_loopback_host(one) for one in rest.split(","))
        case _:
            return _is_loopback_host(address.lower().removeprefix("dns:").removeprefix("///"))


def _is_loopback_host(told: str) -> bool:
    # The whole text must fit: a name may begin like an address of this machine and be somebody else's.
    found = _HOST.fullmatch(told)
    if found is None:
        return False
    host = found["six"] or found["host"]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
