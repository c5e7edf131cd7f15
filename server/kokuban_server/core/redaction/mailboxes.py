"""What tells a person's mail address from one that leads nowhere, to an office or to a machine, and from what is none.

Each rule is a standard's, or a custom that no person's address follows. Where none of them says so, an address is somebody's:
also one that was made up, at a domain that somebody may have.
"""

from __future__ import annotations

import re
from typing import Final

_URL_BYTES: Final = 160
_COMMAND_BYTES: Final = 96
_LINE_BYTES: Final = 998
"""The longest line that a mail may have (RFC 5322, 2.1.1)."""

# Domains.

_RESERVED: Final = frozenset({"test", "example", "invalid", "localhost", "example.com", "example.net", "example.org"})
"""Nobody has these, nor what lies below them (RFC 2606, 2 and 3; RFC 6761, 6). `.internal` and the like somebody has."""
_NOT_TOP: Final = frozenset({"png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js", "py", "html", "json", "md"})
"""How files' names end, and no domains that are seen in addresses."""
_VERSION = re.compile(r"v?[0-9]+\.[0-9]+\.[0-9]")
"""How a version begins (Semantic Versioning 2.0, 2): `package@1.2.0-beta.rc`."""
_NAMERS: Final = frozenset({"openssh.com", "libssh.org"})
"""Who names methods of SSH `method@domain`, which need be no addresses (RFC 4251, 6): `hmac-sha2-256-etm@openssh.com`."""
_OF_METHOD = re.compile(r"[0-9\-]")

# Users.

_OFFICES: Final = frozenset({
    # RFC 2142, 3 to 5
    "info", "marketing", "sales", "support", "abuse", "noc", "security", "postmaster", "hostmaster", "usenet", "news",
    "webmaster", "www", "uucp", "ftp",
    # likewise: a house as a whole, or what is done there, whoever does it
    "admin", "administrator", "billing", "compliance", "contact", "customer-service", "enquiries", "feedback", "hello", "help",
    "helpdesk", "hr", "inquiries", "jobs", "legal", "listmaster", "newsletter", "notification", "notifications", "office",
    "orders", "press", "privacy", "root", "service", "services", "sysadmin", "team", "unsubscribe",
})  # fmt: skip
_AUTOMATIC = re.compile(
    # RFC 3834, 2, and RFC 2142, 6: what answers by itself, and who looks after lists
    r"mailer-daemon|owner-.+|.+-(?:request|owner|bounces?)|bounces?"
    # nobody reads what is sent there
    r"|(?:.+[._\-])?(?:no|do[._\-]?not)[._\-]?reply(?:[._\-].+)?"
)
_ANYBODY = re.compile(
    # masked, or named so because it stands for somebody's (RFC 3092 for `foo`)
    r"x{3,}|your?[._\-]?(?:name|e?mail|user)|user(?:name)?|some(?:one|body)|example|foo(?:bar)?"
)
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)
"""What makes ids that are each used once has made this one (RFC 9562, 4)."""

# What stands around.

_AUTHORITY = re.compile(rb"://[^\s/?#:\"'<>]*(?::(?![0-9]{1,5}[/?#])[^\s\"'<>]*)?\Z")
"""What stands before a URL's host. A password may have any sign in it where its percent signs are undone; a port has digits."""
_LOGIN = re.compile(
    rb"(?:\A|[\s;&|`$(\"'])(?:ssh|scp|sftp|rsync|mosh|ssh-copy-id)(?:[ \t]+-[A-Za-z]+(?:[ \t]+[^\s@\-][^\s@]*)?){0,4}[ \t]+\Z"
)
_PATHS: Final = frozenset({b":/", b":~"})
_ID_URLS: Final = (b"cid:", b"mid:")
"""URLs of parts of a mail and of mails, by their ids (RFC 2392)."""
_ID_FIELDS = re.compile(
    rb"(?im)^(?:(?:resent-)?message-id|in-reply-to|references|content-id)[ \t]*:[^\n]*+(?:\n[ \t][^\n]*+)*+\Z"
)
"""Fields of a mail's head that have ids in them (RFC 5322, 3.6.4; RFC 2045, 7), and go on in lines that begin empty."""


def is_persons(raw: bytes, start: int, end: int) -> bool:
    """Say whether what has the form of a mail address in the bytes of a text may be a person's."""
    user, _, host = raw[start:end].decode().lower().partition("@")
    return not (_is_nobodys(user, host) or _is_no_address(user, host) or _names_something_else(raw, start, end))


def _is_nobodys(user: str, host: str) -> bool:
    """Say so of a domain that is kept free for examples, of an office's address, and of one that stands for any address."""
    labels = host.split(".")
    name = user.partition("+")[0]  # what follows is the user's own business (RFC 5233)
    return (
        labels[-1] in _RESERVED
        or ".".join(labels[-2:]) in _RESERVED
        or name in _OFFICES
        or _AUTOMATIC.fullmatch(name) is not None
        or _ANYBODY.fullmatch(name) is not None
    )


def _is_no_address(user: str, host: str) -> bool:
    """Say so of a file's name, a version, an id and the name of a method."""
    return (
        user == "git"
        or host.rpartition(".")[2] in _NOT_TOP
        or _VERSION.match(host) is not None
        or _UUID.fullmatch(user) is not None
        or (host in _NAMERS and _OF_METHOD.search(user) is not None)
    )


def _names_something_else(raw: bytes, start: int, end: int) -> bool:
    """Say by what stands around it whether it is who logs in to a machine, a name on a network, or a message's id."""
    before = raw[max(0, start - 2) : start]
    return (
        # `@user@host`, as networks of networks name their users
        (before[-1:] == b"@" and not before[:-1].isalnum())
        # Of a URL only what stands before its host (RFC 3986, 3.2.1): in its path or query there may be an address.
        or _AUTHORITY.search(raw, max(0, start - _URL_BYTES), start) is not None
        or raw[max(0, start - 4) : start].lower() in _ID_URLS
        or raw[end : end + 2] in _PATHS
        or _LOGIN.search(raw, max(0, start - _COMMAND_BYTES), start) is not None
        or (before[-1:] == b"<" and _ID_FIELDS.search(raw, max(0, start - _LINE_BYTES), start) is not None)
    )
