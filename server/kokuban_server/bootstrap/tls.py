"""TLS for callers, with certificates that are read again when they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import structlog

from kokuban_server.bootstrap.stores import StartError

if TYPE_CHECKING:
    from pathlib import Path

    from kokuban_server.settings import TlsSettings

_log = structlog.get_logger()


def server_credentials(settings: TlsSettings) -> grpc.ServerCredentials | None:
    """Give what the listener needs, or nothing where TLS is off. Raises `StartError`."""
    if settings.cert_file is None or settings.key_file is None:
        return None
    files = _Files(settings.cert_file, settings.key_file, settings.client_ca_file)
    try:
        first = files.read()
    except OSError as error:
        raise StartError(f"tls: {error}") from error
    return grpc.dynamic_ssl_server_credentials(
        first,
        files.if_changed,  # type: ignore[arg-type]  # nothing means unchanged, says grpc; its type stubs do not
        require_client_authentication=settings.client_ca_file is not None,
    )


class _Files:
    """The files of a listener, and how they were when they were last read."""

    def __init__(self, certificate: Path, key: Path, client_authority: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_authority = client_authority
        self._seen: tuple[tuple[int, int, int], ...] = ()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Read everything. Raises `OSError`."""
        self._seen = self._states()
        authority = self._client_authority.read_bytes() if self._client_authority is not None else None
        pair = (self._key.read_bytes(), self._certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)

    def if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Give what is there now if it has changed, else nothing. Called at each handshake, on a thread of grpc's."""
        try:
            return self.read() if self._states() != self._seen else None
        except OSError as error:  # half replaced, perhaps: the next handshake looks again
            _log.warning("tls.unreadable", fault=str(error))
            return None

    def _states(self) -> tuple[tuple[int, int, int], ...]:
        files = [self._certificate, self._key, *([self._client_authority] if self._client_authority else [])]
        return tuple((state.st_mtime_ns, state.st_ino, state.st_size) for state in [file.stat() for file in files])
