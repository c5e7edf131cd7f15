"""Client certificates, as far as they say who calls."""

from __future__ import annotations

from cryptography import x509

from kokuban_server.core.refusals import Unauthenticated
from kokuban_server.ports.credentials import Certificate


def read_certificate(pem: bytes) -> Certificate:
    """Give what a certificate says, whose chain the connection has verified. Raises `Unauthenticated`."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise Unauthenticated("CREDENTIAL_INVALID", "the certificate cannot be read") from None
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = tuple(names.get_values_for_type(x509.UniformResourceIdentifier))
    except x509.ExtensionNotFound:
        uris = ()
    return Certificate(uris, int(certificate.not_valid_after_utc.timestamp() * 1000))
