"""Secrets and personal data made by lot, none of them anybody's, and texts of our own that hold them or only look like it."""

from __future__ import annotations

import base64
import json
import random
import string
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORD: Final = string.ascii_letters + string.digits
_URL_SAFE: Final = f"{WORD}_-"


def _of(draw: random.Random, signs: str, size: int) -> str:
    return "".join(draw.choices(signs, k=size))


def _b64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _jwt(draw: random.Random) -> str:
    head = json.dumps({"alg": draw.choice(["HS256", "RS256", "ES256"]), "typ": "JWT"})
    claims = json.dumps({"sub": _of(draw, string.digits, 9), "exp": draw.randrange(2_000_000_000)})
    return f"{_b64url(head.encode())}.{_b64url(claims.encode())}.{_of(draw, _URL_SAFE, draw.choice([43, 86, 342]))}"


def _private_key(draw: random.Random) -> str:
    kind = draw.choice(["RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED "])
    body = base64.encodebytes(draw.randbytes(draw.randrange(120, 1_200))).decode()
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}-----END {kind}PRIVATE KEY-----"


def _password(draw: random.Random) -> str:
    size = draw.randrange(8, 20)
    body = [draw.choice(string.ascii_uppercase), draw.choice(string.digits), draw.choice("!@#$%^&*+=?")]
    body += draw.choices(WORD + "!@#$%^&*-_+=?", k=size - 3)
    draw.shuffle(body)
    # An ending such as a full stop cannot be told from the sentence's, a beginning such as `$` from a placeholder's.
    return f"{draw.choice(string.ascii_letters)}{''.join(body)}{draw.choice(WORD)}"


def _connection(draw: random.Random) -> str:
    scheme = draw.choice(["postgresql", "mysql", "mongodb+srv", "redis", "amqp", "https"])
    user, host = _of(draw, string.ascii_lowercase, 6), _of(draw, string.ascii_lowercase, 8)
    password = quote(_password(draw), safe="!*+")
    return f"{scheme}://{user}:{password}@{host}.internal:{draw.randrange(1_000, 9_999)}/app"


class Family(NamedTuple):
    """A family of secrets or of personal data."""

    type: str
    make: Callable[[random.Random], str]
    templates: tuple[str, ...] = ()
    """What has to stand around it. Empty: any text."""


_AWS: Final = (
    "aws_secret_access_key = {}", "AWS_SECRET_ACCESS_KEY={}", '"SecretAccessKey": "{}"', "the AWS secret key is {}",
    "AWS 密钥是 {}", "export AWS_SECRET_ACCESS_KEY='{}'",
)  # fmt: skip
_PASSWORD: Final = (
    "password: {}", "DB_PASSWORD={}", "the password is {}.", "Password for the staging server: {}", '"password": "{}"',
    "passwd = '{}'", "the pwd was changed to {}", "login root, pass: {}",
    "密码是 {}", "密码：{}", "登录密码为{}，请勿外传", "数据库口令：{}", "新密码已重置为“{}”", "管理员密码改为 {}。",
)  # fmt: skip

SECRETS: Final = (
    Family(
        "aws-access-key-id",
        lambda draw: draw.choice(["AKIA", "ASIA"]) + _of(draw, string.ascii_uppercase + "234567", 16),
    ),
    Family("aws-secret-key", lambda draw: _of(draw, WORD + "/+", 40), _AWS),
    Family(
        "github-token",
        lambda draw: draw.choice(
            [
                f"{draw.choice(['ghp_', 'gho_', 'ghs_'])}{_of(draw, WORD, 36)}",
                f"github_pat_{_of(draw, WORD, 22)}_{_of(draw, WORD, 59)}",
            ]
        ),
    ),
    Family("gitlab-token", lambda draw: f"glpat-{_of(draw, _URL_SAFE, 20)}"),
    Family(
        "slack-token",
        lambda draw: f"xoxb-{_of(draw, string.digits, 12)}-{_of(draw, string.digits, 13)}-{_of(draw, WORD, 24)}",
    ),
    Family(
        "openai-key",
        lambda draw: draw.choice(
            [f"sk-{_of(draw, WORD, 48)}", f"sk-proj-{_of(draw, _URL_SAFE, 74)}T3BlbkFJ{_of(draw, _URL_SAFE, 74)}"]
        ),
    ),
    Family("anthropic-key", lambda draw: f"sk-ant-api03-{_of(draw, _URL_SAFE, 93)}AA"),
    Family("stripe-key", lambda draw: draw.choice(["sk_live_", "rk_live_", "sk_test_"]) + _of(draw, WORD, 24)),
    Family("gcp-key", lambda draw: f"AIza{_of(draw, _URL_SAFE, 35)}"),
    Family("huggingface-token", lambda draw: f"hf_{_of(draw, WORD, 34)}"),
    Family("jwt", _jwt),
    Family("private-key", _private_key),
    Family("connection-string", _connection),
    Family("password", _password, _PASSWORD),
)
"""The fourteen families."""


def luhn_digit(number: str) -> str:
    total = sum(sum(divmod(int(digit) * (2 - place % 2), 10)) for place, digit in enumerate(reversed(number)))
    return str(-total % 10)


def _card(draw: random.Random) -> str:
    begin, size = draw.choice([("4", 16), ("53", 16), ("37", 15), ("6011", 16)])
    body = begin + _of(draw, string.digits, size - 1 - len(begin))
    number = body + luhn_digit(body)
    if size == 16 and draw.random() < 0.5:
        return draw.choice(" -").join(number[at : at + 4] for at in range(0, 16, 4))
    return number


def _cn_card(draw: random.Random) -> str:
    body = draw.choice(["6222", "6217", "6228", "6212", "6230"]) + _of(draw, string.digits, draw.choice([11, 14]))
    return body + luhn_digit(body)


def cn_id_sign(body: str) -> str:
    weights = [2**place % 11 for place in range(17, 0, -1)]
    return "10X98765432"[sum(int(digit) * weight for digit, weight in zip(body, weights, strict=True)) % 11]


def _cn_id(draw: random.Random) -> str:
    born = date(1950, 1, 1) + timedelta(days=draw.randrange(25_000))
    body = f"{draw.choice(['110101', '310115', '440305', '510104'])}{born:%Y%m%d}{draw.randrange(1_000):03}"
    return body + cn_id_sign(body)


def _iban(draw: random.Random) -> str:
    country, size = draw.choice([("DE", 18), ("FR", 23), ("ES", 20), ("NL", 0)])
    account = f"ABNA{_of(draw, string.digits, 10)}" if country == "NL" else _of(draw, string.digits, size)
    check = 98 - int("".join(str(int(sign, 36)) for sign in f"{account}{country}00")) % 97
    number = f"{country}{check:02}{account}"
    return " ".join(number[at : at + 4] for at in range(0, len(number), 4)) if draw.random() < 0.5 else number


def _cn_phone(draw: random.Random) -> str:
    number = f"1{draw.choice('3456789')}{_of(draw, string.digits, 9)}"
    spelt = draw.choice(
        [number, f"{number[:3]}-{number[3:7]}-{number[7:]}", f"{number[:3]} {number[3:7]} {number[7:]}"]
    )
    return draw.choice(["", "", "+86 ", "+86"]) + spelt


def _plate(draw: random.Random) -> str:
    place = draw.choice("京沪粤苏浙川鲁鄂") + draw.choice("ABCDEF")
    serial = draw.choice(
        [f"{_of(draw, 'ABCDEFGHJK', 1)}{_of(draw, string.digits, 4)}", f"D{_of(draw, string.digits, 5)}"]
    )
    return place + draw.choice(["", "·", " "]) + serial


def _email(draw: random.Random) -> str:
    user, name, host = (_of(draw, string.ascii_lowercase, size) for size in (7, 4, 6))
    return f"{user}.{name}@{host}.{draw.choice(['com', 'cn', 'org', 'co.uk'])}"


PERSONAL: Final = (
    Family(
        "email",
        _email,
    ),
    Family("bank-card", _card),
    Family("iban", _iban),
    Family(
        "ssn", lambda draw: f"{draw.randrange(1, 666):03}-{draw.randrange(1, 100):02}-{draw.randrange(1, 10_000):04}"
    ),
    Family(
        "phone",
        lambda draw: draw.choice(
            [
                f"+1 {draw.randrange(200, 999)}-{draw.randrange(200, 999)}-{_of(draw, string.digits, 4)}",
                f"({draw.randrange(200, 999)}) {draw.randrange(200, 999)}-{_of(draw, string.digits, 4)}",
                f"+44 20 {_of(draw, string.digits, 4)} {_of(draw, string.digits, 4)}",
            ]
        ),
    ),
)
CHINESE: Final = (
    Family("cn-phone", _cn_phone),
    Family("cn-id", _cn_id),
    Family("bank-card", _cn_card),
    Family("cn-plate", _plate),
)  # fmt: skip

TEMPLATES: Final = (
    "{}", "Use {} for now.", "I set it to {}, please rotate it next week", "value={}", "config:\n  value: {}\n  region: eu\n",
    '{{"note": "use {} here", "n": 1}}', "| service | {} |", "(see {})", "export VALUE={}",
    "请使用 {} 登录。", "值为{}，下周更换", "我把它写在这里：{}；不要外传", "参数“{}”已更新",
)  # fmt: skip
"""Of our own. What is in them is found wherever nothing has to stand around it."""


def _sprinkled(draw: random.Random, text: str) -> str:
    return "".join(sign + draw.choice(["", "\u200b", "\u2060", "\ufeff"]) for sign in text)


def _wide(_draw: random.Random, text: str) -> str:
    return "".join(chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in text)


VIEWS: Final[dict[str, Callable[[random.Random, str], str]]] = {
    "base64": lambda _draw, text: base64.b64encode(text.encode()).decode(),
    "base64 of base64": lambda _draw, text: base64.b64encode(base64.b64encode(text.encode())).decode(),
    "hex": lambda _draw, text: text.encode().hex(),
    "percent": lambda _draw, text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "zero width": _sprinkled,
    "full width": _wide,
    "entities": lambda _draw, text: "".join(f"&#{ord(sign)};" for sign in text),
}
"""How a text reads otherwise than it stands: the whole of it is written so, or its words would no longer tell of the value."""


def positive(draw: random.Random, family: Family) -> tuple[str, str]:
    """Give a value of a family, and a text that holds it."""
    value = family.make(draw)
    return value, draw.choice(family.templates or TEMPLATES).format(value)


def recall(families: Sequence[Family], each: int, seed: int, found: Callable[[str, str], bool]) -> dict[str, float]:
    """Give the share of texts of each family in which its type is found."""
    shares = {}
    for family in families:
        draw = random.Random(f"{seed} {family.type}")
        shares[family.type] = sum(found(family.type, positive(draw, family)[1]) for _ in range(each)) / each
    return shares


BENIGN: Final = (
    "Minutes of Monday: the release moves to June, Li takes over the on-call list. Next meeting in two weeks.",
    "周一会议纪要：发布推迟到六月，李工接手值班表。密码策略本周不变，密钥轮换改到下周。",
    "To reset your password, follow the link. Your password must have 8-16 characters and a digit. Password: required.",
    "def connect(password: str, token: str | None = None) -> Session:\n    password = os.environ['DB_PASSWORD']\n",
    "    return login(password=password, secret=settings.SECRET_2, token=get_token(7))",
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b\nAuthor: Li\n\n    Move the token check before the read",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "Set OPENAI_API_KEY=sk-your-key-here and AWS_SECRET_ACCESS_KEY=<your secret>; DB_PASSWORD=${DB_PASSWORD}",
    "postgres://user:password@localhost:5432/app and https://docs.example:8443/a@b are only examples",
    "Order 20231108134500123, invoice 4111-22, 3.14159265358979, 2026-11-30T06:07:26Z, build 13800.1380.00",
    '{"id": "550e8400-e29b-41d4-a716-446655440000", "next_page_token": "CAESBgoEbGlzdBIGZm9vYmFyMTIz"}',
    '{"total": 4111111111111112, "ratio": 0.4111111111111111, "at": 1698765432101}',
    "| id | count |\n| 1312345678901234567 | 12,345,678 |\n| 1698765432101 | 7 |",
    "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
    "Look for '-----BEGIN PRIVATE KEY-----' in the files that you commit.",
    "The fencing token is 184467440737; token: eyJ is how web tokens begin. sk-learn-contrib-lightning-and-friends",
    "京都A级景区，沪A股收于三千点；苏B组第2名。电话会议在十点，身份证办理见二楼。",
)
"""Texts that speak of secrets, or are full of numbers, and hold none."""
