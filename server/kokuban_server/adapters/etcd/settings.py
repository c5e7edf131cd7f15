"""Where the cluster is and how to speak to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pathlib import Path

_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
PREFIX_DEFAULT = "kokuban"


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """How to reach an etcd cluster. Raises `ValueError`, naming the field, for what cannot be meant."""

    endpoints: tuple[str, ...]
    """`host:port` of each member."""
    prefix: str = PREFIX_DEFAULT
    """Every key lies below it; several stores can share a cluster under different ones."""
    ca_file: Path | None = None
    """Whom to believe. With it, or with a certificate, connections are TLS."""
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""
    """The name that the members' certificates bear, where it is not the host of the endpoint."""
    user: str = ""
    password: str = field(default="", repr=False)
    attempt_s: float = 4.0
    """How long one attempt may take before another member is tried."""
    connect_s: float = 2.0
    """How long a member may take to greet."""
    reconcile_s: float = 45.0
    """How often what watches delivered is compared with what the store holds."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError("endpoints: at least one is needed")
        for endpoint in self.endpoints:
            if _ENDPOINT.fullmatch(endpoint) is None:
                raise ValueError(f"endpoints: {endpoint!r} is not host:port")
        if _PREFIX.fullmatch(self.prefix) is None:
            raise ValueError(f"prefix: {self.prefix!r} is not words of letters, digits, dots and dashes joined by /")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file, key_file: one is of no use without the other")
        if bool(self.user) != bool(self.password):
            raise ValueError("user, password: one is of no use without the other")

    @property
    def tls(self) -> bool:
        """Connections are encrypted."""
        return self.ca_file is not None or self.cert_file is not None

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        server_name: str | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> EtcdSettings:
        """Read `etcd://host:port,host:port/prefix`; the prefix may be left out. Secrets have no place in it."""
        parts = urlsplit(url)
        if parts.scheme != "etcd" or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("an etcd store is named etcd://host:port,host:port/prefix")
        return cls(
            endpoints=tuple(parts.netloc.split(",")),
            prefix=parts.path.strip("/") or PREFIX_DEFAULT,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            server_name=server_name or "",
            user=user or "",
            password=password or "",
        )
