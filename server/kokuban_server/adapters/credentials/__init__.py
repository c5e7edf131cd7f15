"""Whom credentials belong to: a registry file of tokens and certificates, and issuers of JWTs.

`JwtIssuer` is imported from its own module, by servers that have issuers: it loads what verifies signatures.
"""

from kokuban_server.adapters.credentials.book import CredentialBook
from kokuban_server.adapters.credentials.registry import (
    Entry,
    Registry,
    RegistryRefused,
    new_token,
    parse_entry,
    time_text,
    token_sha256,
)
from kokuban_server.adapters.credentials.registry_file import RegistryFile, edit, read_entries

__all__ = [
    "CredentialBook",
    "Entry",
    "Registry",
    "RegistryFile",
    "RegistryRefused",
    "edit",
    "new_token",
    "parse_entry",
    "read_entries",
    "time_text",
    "token_sha256",
]
