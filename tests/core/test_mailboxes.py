"""Mail addresses of persons are told; those of nobody, of offices and of machines are not, nor what only has their form."""

from __future__ import annotations

import pytest

from kokuban_server.core.redaction.search import find


def told(text: str) -> list[str]:
    return [text[one.start : one.end] for one in find(text).findings if one.type == "email"]


@pytest.mark.parametrize(
    "text",
    [
        # Domains that nobody has.
        "jane.doe@example.com", "jane@mail.example.net", "jane@EXAMPLE.ORG", "jane@shop.example", "jane@shop.test",
        "jane@shop.invalid", "jane@shop.localhost",
        # Offices, whoever sits there, and what nobody reads.
        "info@acme.com", "Support+4711@acme.com", "POSTMASTER@acme.com", "contact@acme.com", "root@db1.acme.com",
        "noreply@acme.com", "no-reply@acme.com", "do_not_reply@acme.com", "mail-noreply@acme.com", "no-reply-billing@acme.com",
        "MAILER-DAEMON@acme.com", "owner-team-list@acme.com", "team-list-request@acme.com", "team-list-bounces@acme.com",
        # What stands for any address.
        "xxx@acme.com", "XXXXXXX@acme.com", "your.name@acme.com", "username@acme.com", "somebody@acme.com", "foo@acme.com",
        # What is no address.
        "logo@2x.png", "git@github.com:team/project.git", "left-pad@1.2.0-beta.rc", "@jane@social.acme.com",
        "hmac-sha2-256-etm@openssh.com", "550e8400-e29b-41d4-a716-446655440000@acme.com",
        "https://jane@acme.com/team", "ssh://jane@acme.com", "https://jane:@acme.com", "sftp://jane;x=1@acme.com:2022/",
        "https://jane:4711@acme.com", "https://jane:Zx9/k?m#q@acme.com/",
        "ssh jane@db1.acme.com", "sudo ssh -i key.pem -p 2222 -A jane@db1.acme.com uptime", "$(ssh -T jane@db1.acme.com)",
        "scp page.html jane@db1.acme.com:/srv/www", "rsync -a . jane@db1.acme.com:~/site",
        "Message-ID: <20261130.4711@acme.com>", "To: x\nIn-Reply-To:\n <4711.a@acme.com>\n\t<4712.b@acme.com>",
        "References: <1.a@acme.com> <2.b@acme.com>", "content-id:<part1.a@acme.com>", "<img src='cid:part1.a@acme.com'>",
    ],
)  # fmt: skip
def test_an_address_of_nobody_or_of_an_office_is_not_told(text: str) -> None:
    assert told(text) == []


@pytest.mark.parametrize(
    "text",
    [
        # Next to domains that nobody has.
        "{}jane@example.de", "{}jane@myexample.com", "{}jane@example.com.acme.com", "{}jane@test.acme.com",
        "{}jane@mail.internal", "{}jane@pc.local", "{}l.wei@126.com",
        # Next to offices and what stands for anybody.
        "{}jane.support@acme.com", "{}infojane@acme.com", "{}newsom@acme.com", "{}noreen@acme.com",
        "{}casino-replyton@acme.com", "{}owner@acme.com", "{}xx@acme.com", "{}maxxx@acme.com", "{}bar@acme.com",
        "{}jane+noreply@acme.com",
        # Beside what makes others no address.
        "write to {}jane@acme.com: thanks", "Jane <{}jane@acme.com>", "mailto:{}jane@acme.com", "acct=a@b{};jane@acme.com",
        "https://acme.com/?mail={}jane@acme.com", "https://acme.com:8443/?mail={}jane@acme.com",
        "https://acme.com/team/{}jane@acme.com", "see http://acme.com {}jane@acme.com",
        "ssh access for {}jane@acme.com", "she has an ssh key: {}jane@acme.com", "To: {}jane@acme.com\nMessage-ID: <4711>",
        "Message-ID: <4711>\nFrom: <{}jane@acme.com>", "In-Reply-To: 4711\n\n<{}jane@acme.com> wrote:",
        "References: {}jane@acme.com", "{}djm@openssh.com", "写信给{}jane@acme.com。",
    ],
)  # fmt: skip
def test_an_address_that_may_be_a_persons_is_told(text: str) -> None:
    before, _, after = text.partition("{}")
    (address,) = told(before + after)
    assert (before + after).index(address) >= len(before) - 1
    assert address in after


def test_several_in_a_row_are_each_looked_at() -> None:
    text = "info@acme.com,jane@acme.com;noreply@acme.com <li.wei@acme.com>support@acme.com|joe@acme.com"
    assert told(text) == ["jane@acme.com", "li.wei@acme.com", "joe@acme.com"]


def test_what_follows_one_that_is_refused_is_found() -> None:
    """Whose domain ends in the next one's user, too."""
    assert told("info@acme.com@jane@acme.com, x@y.info@li.acme.com") == ["jane@acme.com", "x@y.info"]


@pytest.mark.parametrize("number", ["+1 212-555-0100", "212-555-0199", "(212) 555-0123", "+1 (415) 555-0142"])
def test_a_number_that_is_kept_free_for_examples_is_not_told(number: str) -> None:
    assert find(f"call {number} now").findings == ()


@pytest.mark.parametrize("number", ["+1 212-555-0099", "212-555-0200", "(212) 556-0123", "+44 20 5550 1230"])
def test_a_number_next_to_those_is_told(number: str) -> None:
    (finding,) = find(f"call {number} now").findings
    assert finding.type == "phone"
