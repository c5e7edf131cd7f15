"""How a cluster is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kokuban_server.adapters.etcd.settings import EtcdSettings


def test_a_url_names_members_and_prefix() -> None:
    settings = EtcdSettings.from_url("etcd://a.example:2379,127.0.0.1:22379,[::1]:2379/teams/blue")
    assert settings.endpoints == ("a.example:2379", "127.0.0.1:22379", "[::1]:2379")
    assert settings.prefix == "teams/blue"
    assert not settings.tls


def test_the_prefix_may_be_left_out() -> None:
    assert EtcdSettings.from_url("etcd://h:1").prefix == "kokuban"
    assert EtcdSettings.from_url("etcd://h:1/").prefix == "kokuban"


@pytest.mark.parametrize(
    "url",
    [
        "http://h:1",
        "etcd://",
        "etcd://h",
        "etcd://h:1,",
        "etcd://h:1,h2",
        "etcd://user:secret@h:1",
        "etcd://h:1?ca=x",
        "etcd://h:1/a b",
        "etcd://h:1/a//b",
        "etcd://h:1/é",
    ],
)
def test_what_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"etcd|endpoints|prefix"):
        EtcdSettings.from_url(url)


def test_halves_of_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="cert_file"):
        EtcdSettings.from_url("etcd://h:1", cert_file=Path("c"))
    with pytest.raises(ValueError, match="password"):
        EtcdSettings.from_url("etcd://h:1", user="u")


def test_the_password_is_not_shown() -> None:
    settings = EtcdSettings.from_url("etcd://h:1", user="u", password="hunter2")  # noqa: S106 - not a real one
    assert "hunter2" not in repr(settings)


def test_an_authority_means_tls() -> None:
    assert EtcdSettings.from_url("etcd://h:1", ca_file=Path("ca")).tls
