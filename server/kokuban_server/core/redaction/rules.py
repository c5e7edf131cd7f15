"""The rules: what secrets and personal data look like.

Every rule has a hint, which is searched for in one pass together with all others' and keeps ordinary text cheap; a pattern, whose
group is the value; and a check of what the pattern cannot say. Repeats are bounded, or of a class of signs that ends the match: one
match never makes the search look at the rest of the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core.redaction import checks, readings
from kokuban_server.core.screening.patterns import Pattern, PatternSet
from kokuban_server.core.sensitive import Kind

if TYPE_CHECKING:
    from kokuban_server.core.redaction.checks import Check

RULES_VERSION: Final = "2"
"""Changes whenever anything else could be found in any text."""


class Rule(NamedTuple):
    """One rule."""

    type: str
    """What it finds, in words that a mask can name."""
    kind: Kind
    hint: str
    pattern: str
    check: Check
    is_told: bool = False
    """The words around it tell what it is: alone, it looks like anything else."""


_AFTER: Final = r"[\"'`*_\])]{0,3}"
_QUOTES: Final = r"[\"'`*“”「『‘]{0,2}"
_SPACE: Final = r"[\s\x{3000}]{0,4}"
_SET_TO: Final = (
    r"(?:[:=]{1,2}|：|＝|[\-=]?>|(?:\b(?:is|was|has been) )?\b(?:set|changed|reset) to\b|\b(?:is|was|are)\b(?: now)?:?)"
)
_SET_TO_ZH: Final = r"(?:[:=：＝]|就?是|为|為|设为|设成|改为|改成|改為)"

_SECRETS: Final = (
    Rule(
        "private-key",
        Kind.SECRET,
        r"PRIVATE KEY|AGE-SECRET-KEY-",
        r"(-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----)",
        checks.private_key,
    ),
    Rule(
        "age-key", Kind.SECRET, r"AGE-SECRET-KEY-", r"\b(AGE-SECRET-KEY-1[A-Z0-9]{58})\b", checks.varied
    ),
    Rule(
        "github-token",
        Kind.SECRET,
        r"gh[pousr]_|github_pat_",
        r"(?:\b|_)(gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{36,})",
        checks.varied,
    ),
    Rule(
        "gitlab-token",
        Kind.SECRET,
        r"gl[a-z]{2,5}-",
        r"(?:\b|_)(gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas)-[A-Za-z0-9_\-]{20,})",
        checks.varied,
    ),
    Rule("anthropic-key", Kind.SECRET, r"sk-ant-", r"(?:\b|_)(sk-ant-[A-Za-z0-9_\-]{20,})", checks.varied_with_digit),
    Rule("openai-key", Kind.SECRET, r"sk-", r"(?:\b|_)(sk-[A-Za-z0-9_\-]{20,})", checks.sk_key),
    Rule(
        "stripe-key",
        Kind.SECRET,
        r"[sr]k_(?:live|test)_|whsec_",
        r"(?:\b|_)([sr]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{24,})",
        checks.varied,
    ),
    Rule(
        "slack-token",
        Kind.SECRET,
        r"xox[a-z]-|xapp-|hooks\.slack\.com/",
        r"(?:\b|_)(xox[abeoprs]-[A-Za-z0-9\-]{10,}|xapp-[0-9]-[A-Za-z0-9\-]{20,})"
        r"|hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/]{20,})",
        checks.varied_with_digit,
    ),
    Rule(
        "gcp-key",
        Kind.SECRET,
        r"AIza|GOCSPX-|ya29\.",
        r"(?:\b|_)(AIza[A-Za-z0-9_\-]{35,}|GOCSPX-[A-Za-z0-9_\-]{28,}|ya29\.[A-Za-z0-9_\-]{20,})",
        checks.varied,
    ),
    Rule("huggingface-token", Kind.SECRET, r"hf_|api_org_", r"(?:\b|_)((?:hf|api_org)_[A-Za-z0-9]{30,})", checks.varied),
    Rule(
        "aws-access-key-id",
        Kind.SECRET,
        r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}",
        r"(?:\b|_)((?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16})\b",
        checks.varied,
    ),
    Rule(
        "jwt",
        Kind.SECRET,
        r"eyJ[A-Za-z0-9_\-]{8}",
        r"(?:\b|_)(eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{2,}\.[A-Za-z0-9_\-]{10,}(?:\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,})?)",
        checks.jwt,
    ),
    Rule(
        "aws-secret-key",
        Kind.SECRET,
        r"(?i)aws|secret|AKIA|ASIA|amazon|密钥|秘钥|密鑰",
        r"([A-Za-z0-9/+]{40,})",
        checks.aws_secret,
        is_told=True,
    ),
    Rule(
        "api-key",
        Kind.SECRET,
        r"npm_|pypi-AgE|SG\.|dop_v1_|:AA|shp|LTAI|AKID|kk_|xai-|gsk_|r8_|pplx-|tvly-",
        r"(?:\b|_)(npm_[A-Za-z0-9]{36,}|pypi-AgE[A-Za-z0-9_\-]{50,}|SG\.[A-Za-z0-9_\-]{16,64}\.[A-Za-z0-9_\-]{16,}|dop_v1_[a-f0-9]{64}"
        r"|[0-9]{8,10}:AA[A-Za-z0-9_\-]{33,}|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|LTAI[A-Za-z0-9]{12,26}|AKID[A-Za-z0-9]{32}"
        r"|kk_[A-Za-z0-9_\-]{43}|xai-[A-Za-z0-9]{60,}|gsk_[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{36,}|pplx-[A-Za-z0-9]{40,}|tvly-[A-Za-z0-9\-]{28,})",
        checks.varied_with_digit,
    ),
    Rule(
        "connection-string",
        Kind.SECRET,
        r"://[^\s/@]*:[^\s/]*@",
        r"[A-Za-z][A-Za-z0-9+.\-]{1,30}://[^\s:/@\"'<>]{0,128}:([^\s/\"'<>\x00]{1,256})@",
        checks.url_password,
        is_told=True,
    ),
    Rule(
        "authorization",
        Kind.SECRET,
        r"(?i)authorization|bearer",
        r"(?i)(?:\bauthorization" + _AFTER + r"\s{0,2}[:=]\s{0,2}[\"'`]{0,2}(?:bearer|basic|token)|\bbearer) {1,2}([A-Za-z0-9._~+/=\-]{12,})",
        checks.varied_with_digit,
        is_told=True,
    ),
    Rule(
        "password",
        Kind.SECRET,
        r"(?i)pass|pwd|\bpw\b",
        r"(?i)(?:password|passwd|passphrase|passcode|pwd|(?:\b|_)pw|(?:\b|_)pass)s?" + _AFTER + r"(?: (?:for|of|to|on) [^\n:=：]{1,40}?)?"
        + _SPACE + _SET_TO + _SPACE + _QUOTES + r"([!-~]{4,128})",
        checks.password,
        is_told=True,
    ),
    Rule(
        "password",
        Kind.SECRET,
        r"密码|密碼|口令|通行码",
        r"(?:密码|密碼|口令|通行码)" + _AFTER + r"(?:[^\n:=：＝，。；]{0,12}?" + _SET_TO_ZH + r"| )" + _SPACE + _QUOTES + r"([!-~]{4,128})",
        checks.password,
        is_told=True,
    ),
    Rule(
        "assigned-secret",
        Kind.SECRET,
        r"(?i)key|secret|credential|token|密钥|密鑰|秘钥|令牌|凭证",
        r"(?i)(?:api[_\- ]?key|secret[_\- ]?key|access[_\- ]?key|account[_\- ]?key|signing[_\- ]?key|encryption[_\- ]?key|session[_\- ]?key"
        r"|secret|credentials?|(?:access|auth|refresh|bearer|api|bot|deploy)[_\- ]?token|密钥|密鑰|秘钥|令牌|凭证)" + _AFTER
        + r"(?:[^\n:=：＝，。；]{0,12}?" + _SET_TO_ZH + r"|" + _SPACE + _SET_TO + r")" + _SPACE + _QUOTES + r"([A-Za-z0-9_\-.+/=~]{16,512})",
        checks.assigned,
        is_told=True,
    ),
    Rule(
        "assigned-secret",
        Kind.SECRET,
        r"(?i)token",
        r"(?i)token" + _AFTER + _SPACE + _SET_TO + _SPACE + _QUOTES + r"([A-Za-z0-9_\-.+/=~]{24,512})",
        checks.bare_token,
        is_told=True,
    ),
)  # fmt: skip

_PERSONAL: Final = (
    Rule(
        "email",
        Kind.PERSONAL,
        r"[A-Za-z0-9]@[A-Za-z0-9]",
        r"(?:^|[^A-Za-z0-9._%+\-])([A-Za-z0-9][A-Za-z0-9._%+\-]{0,63}@(?:[A-Za-z0-9\-]{1,63}\.){1,8}[A-Za-z]{2,24})\b",
        checks.email,
    ),
    Rule(
        "iban",
        Kind.PERSONAL,
        r"[A-Z]{2}[0-9]{2} ?[A-Z0-9]{4}",
        r"\b([A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,32})",
        checks.iban,
    ),
    Rule(
        "cn-id",
        Kind.PERSONAL,
        r"[1-8][0-9]{16}",
        r"\b([1-8][0-9]{5}(?:19|20)[0-9]{9}[0-9Xx])\b",
        checks.cn_id,
    ),
    Rule(
        "bank-card",
        Kind.PERSONAL,
        r"[2-6][0-9]{3}[ \-]?[0-9]{4}[ \-]?[0-9]{2}|62[0-9]{4}[ \-][0-9]{2}",
        r"\b([2-6][0-9]{3}(?:[ \-][0-9]{4}){3}(?:[ \-][0-9]{3})?|3[0-9]{3}[ \-][0-9]{6}[ \-][0-9]{4,5}|62[0-9]{4}[ \-][0-9]{10,13}|[2-6][0-9]{12,18})\b",
        checks.card,
    ),
    Rule(
        "cn-phone",
        Kind.PERSONAL,
        r"1[3-9][0-9][ \-]?[0-9]{4}[ \-]?[0-9]{4}|0[1-9][0-9]{1,2}-[2-8]",
        r"((?:\+86[ \-]?|\b86[ \-]|\b)1[3-9][0-9][ \-]?[0-9]{4}[ \-]?[0-9]{4}|\b0[1-9][0-9]{1,2}-[2-8][0-9]{6,7})\b",
        checks.phone,
    ),
    Rule(
        "phone",
        Kind.PERSONAL,
        r"\+[1-9][0-9]|[0-9]{3}\)?[\-. ][0-9]{3}[\-. ][0-9]{4}",
        r"(\+[1-9][0-9]{0,2}(?:[ .\-]?\(?[0-9]{1,4}\)?){2,6}|(?:\([2-9][0-9]{2}\) ?|\b[2-9][0-9]{2}[\-. ])[2-9][0-9]{2}[\-. ][0-9]{4})\b",
        checks.phone,
    ),
    Rule("ssn", Kind.PERSONAL, r"[0-9]{3}-[0-9]{2}-[0-9]{4}", r"\b([0-9]{3}-[0-9]{2}-[0-9]{4})\b", checks.ssn),
    Rule(
        "cn-plate",
        Kind.PERSONAL,
        r"[京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼][A-HJ-NP-Z]",
        r"([京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼][A-HJ-NP-Z][·•\- ]?[A-HJ-NP-Z0-9]{5,6})",
        checks.plate,
    ),
)

RULES: Final = (*_SECRETS, *_PERSONAL)
"""Every rule; of two that find the same, the first names it."""

ADDRESSES: Final = Rule(
    "ip-address", Kind.PERSONAL, r"[0-9]\.[0-9]", r"\b([0-9]{1,3}(?:\.[0-9]{1,3}){3})\b", checks.address
)
"""Applied only where it is asked for: most addresses are machines' own."""

ENCODED: Final = {
    "base64": r"[A-Za-z0-9+/_\-]{11}",
    "base32": r"[A-Z2-7]{13}",
    "hex": r"(?:[0-9a-fA-F]{2}[ :,]{0,2}){8}|0x[0-9a-fA-F]{2}",
    "folds": f"[{readings.FOLDING_SIGNS}]",
    "escapes": r"%[0-9a-fA-F]{2}|&#|&[A-Za-z]{2,8};|\\[xuUnrt0-3]|=[0-9A-F]{2}",
}
"""By what signs each encoding is looked for at all."""

_APPLIED: Final = (*RULES, ADDRESSES)
RANKS: Final = {rule.type: rank for rank, rule in reversed([*enumerate(_APPLIED)])}
"""Which of two types names what is of both: the lower."""
KINDS: Final = {rule.type: rule.kind for rule in _APPLIED}
"""What is at stake in each type."""
PATTERNS: Final = tuple(Pattern(rule.pattern) for rule in _APPLIED)
_HINTS: Final = [*(rule.hint for rule in _APPLIED), *ENCODED.values()]
# What is made of words, of digits and of any signs has an automaton each: together they have many times as many states, and
# are three times as slow.
_PARTS: Final = ((0, len(_SECRETS)), (len(_SECRETS), len(_APPLIED)), (len(_APPLIED), len(_HINTS)))
_ENCODINGS: Final = tuple(ENCODED)
_SETS: Final = tuple((start, PatternSet(_HINTS[start:end])) for start, end in _PARTS)


class Hinted(NamedTuple):
    """What a text may hold."""

    rules: tuple[tuple[Rule, Pattern], ...]
    encodings: frozenset[str]


def hinted(text: str, *, addresses: bool) -> Hinted:
    """Say which rules and encodings a text is worth being searched for. Raises `NotSearchedError`."""
    raw = text.encode()
    found = [start + index for start, hints in _SETS for index in hints.found(raw)]
    most = len(_APPLIED) if addresses else len(RULES)
    return Hinted(
        tuple([(_APPLIED[index], PATTERNS[index]) for index in found if index < most]),
        frozenset([_ENCODINGS[index - len(_APPLIED)] for index in found if index >= len(_APPLIED)]),
    )
