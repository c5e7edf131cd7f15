from __future__ import annotations

import pytest

from kokuban_client import Revision
from kokuban_client._identity import Identity
from kokuban_client._session import SessionTokens

OLD, NEW = "0000000000000001", "0000000000000002"


def test_the_newest_token_is_carried_whatever_order_answers_come_in() -> None:
    tokens = SessionTokens()
    tokens.wrote("main", Revision(7, OLD), "seven")
    tokens.wrote("main", Revision(5, OLD), "five")
    assert tokens.carried("main") == "seven"
    assert tokens.carried("other") == ""


def test_a_token_of_another_life_of_the_store_replaces_the_carried_one() -> None:
    tokens = SessionTokens()
    tokens.wrote("main", Revision(7, OLD), "seven")
    tokens.wrote("main", Revision(5, NEW), "five anew")
    assert tokens.carried("main") == "five anew"


def test_only_the_token_that_was_refused_is_dropped() -> None:
    tokens = SessionTokens()
    tokens.wrote("main", Revision(7, OLD), "seven")
    tokens.drop("main", "six")
    assert tokens.carried("main") == "seven"
    tokens.drop("main", "seven")
    assert tokens.carried("main") == ""


def test_what_is_not_said_comes_from_the_environment() -> None:
    environment = {"KOKUBAN_ADDRESS": "host:1", "KOKUBAN_AGENT": "a", "KOKUBAN_ROLES": "member, operator"}
    identity = Identity.of(None, None, None, environment)
    assert identity.address == "host:1"
    assert identity.metadata == (("kokuban-agent", "a"), ("kokuban-roles", "member,operator"))
    assert Identity.of("other:2", "b", [], environment).metadata == (("kokuban-agent", "b"),)
    assert Identity.of(None, "b", None, {}).address == "127.0.0.1:7420"


@pytest.mark.parametrize("agent", [None, "", "two words", "näme", "a" * 129])
def test_an_agent_must_be_named_and_fit_a_header(agent: str | None) -> None:
    with pytest.raises(ValueError, match="agent"):
        Identity.of(None, agent, None, {})


def test_roles_are_words() -> None:
    with pytest.raises(TypeError):
        Identity.of(None, "a", "operator", {})
    with pytest.raises(ValueError, match="role"):
        Identity.of(None, "a", ["operator,system"], {})
