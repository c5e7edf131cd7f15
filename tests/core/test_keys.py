"""Store keys: no name is lost, none runs into another, and what lies below a path is what begins with its key."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kokuban_server.core import keys, limits
from kokuban_server.core.names import EntryKey, Region, RegionKind, parse_path, parse_region
from kokuban_server.core.refusals import InvalidRequest


def is_path(text: str) -> bool:
    try:
        parse_path(text)
    except InvalidRequest:
        return False
    return True


AWKWARD_BYTES = st.binary(max_size=12) | st.lists(
    st.sampled_from([b"/", b"%", b"%2F", b"\xff", b"\x00", b"a", b"\xc3\xa9"])
).map(b"".join)
SEGMENT = (
    st.text(
        st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp", "Mn"], exclude_characters="/"),
        min_size=1,
    )
    | st.text(alphabet="a1_%*?.[]'\"$\\é界 ~", min_size=1, max_size=4)
    | st.sampled_from(
        ["task_1", "task_10", "task_1:sub_0", "task_1:sub_01", "%2F", "$ne", "'; drop table records; --", "*", "é"]
    )
).filter(is_path)
PATH = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join).filter(is_path)
BOARD = st.sampled_from(["main", "main-2", "m", "x1"])
TENANT = st.sampled_from(["dev", "dev2", "d", "de/v", "%", "ä"])
REGION = st.builds(
    lambda kind, id_: Region(kind, "" if kind in {RegionKind.TENANT, RegionKind.GLOBAL} else id_),
    st.sampled_from(list(RegionKind)),
    SEGMENT,
)
INSTANT_MS = st.integers(0, 10**14)
SEQUENCE = st.integers(1, 2**63 - 1)


def head(tenant: str, board: str, region: Region, path: str) -> bytes:
    return keys.head(keys.region_prefix(tenant, board, region), path)


# Escaping.


@given(AWKWARD_BYTES)
@example(bytes(range(256)))
def test_any_bytes_come_back_from_escaping(segment: bytes) -> None:
    escaped = keys.escape(segment)
    assert keys.unescape(escaped) == segment
    assert not {*escaped} & {*range(0x20), 0x2F, 0x7F}


@given(AWKWARD_BYTES, AWKWARD_BYTES)
def test_different_bytes_are_escaped_differently(left: bytes, right: bytes) -> None:
    assert (keys.escape(left) == keys.escape(right)) == (left == right)


@given(st.lists(AWKWARD_BYTES, max_size=6))
def test_any_segments_come_back_from_a_key(segments: list[bytes]) -> None:
    assert keys.split(keys.join(*segments)) == segments


@given(st.lists(AWKWARD_BYTES, max_size=4), st.lists(AWKWARD_BYTES, max_size=4))
def test_a_key_is_a_prefix_only_of_what_its_segments_begin(left: list[bytes], right: list[bytes]) -> None:
    assert keys.join(*right).startswith(keys.join(*left)) == (right[: len(left)] == left)


@given(PATH)
def test_the_short_way_of_a_path_is_the_long_way(path: str) -> None:
    assert keys.path_key(path) == keys.join(*(segment.encode() for segment in path.split("/")))


# Prefixes (RB-19).


@given(st.binary(max_size=6), st.binary(max_size=8))
@example(b"\xff", b"\xff\xff")
@example(b"a\xff", b"b")
@example("é".encode(), "ê".encode())
@example(b"", b"\xff")
@example(b"a/", b"a0")
def test_RB_19_a_range_up_to_the_prefix_end_holds_exactly_the_prefixed_keys(prefix: bytes, key: bytes) -> None:
    end = keys.prefix_end(prefix)
    for candidate in (key, prefix + key):
        in_range = candidate >= prefix and (not end or candidate < end)
        assert in_range == candidate.startswith(prefix)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        (b"", b""),
        (b"\xff", b""),
        (b"\xff\xff", b""),
        (b"a", b"b"),
        (b"a/", b"a0"),
        (b"a\xff", b"b"),
        (b"a\xff\xff", b"b"),
        (b"a\x00", b"a\x01"),
        (b"\xfe\xff", b"\xff"),
        ("é".encode(), "ê".encode()),
    ],
)
def test_RB_19_the_end_of_a_prefix(prefix: bytes, end: bytes) -> None:
    assert keys.prefix_end(prefix) == end


# Subtrees (SC-01).


@pytest.mark.parametrize(
    ("path", "sibling"),
    [
        ("task_1", "task_10"),
        ("task_1", "task_1:sub_0"),
        ("task_1:sub_0", "task_1:sub_01"),
        ("foo", "foobar"),
        ("a/b", "a/bc"),
        ("é", "éa"),
        ("a%", "a%2F"),
        ("a", "a."),
    ],
)
def test_SC_01_a_path_is_no_prefix_of_its_sibling(path: str, sibling: str) -> None:
    region = keys.region_prefix("dev", "main", parse_region("shared:plan"))
    assert not keys.head(region, sibling).startswith(keys.heads(region, path))
    assert not keys.history(keys.head(region, sibling)).startswith(keys.history(keys.head(region, path)))


@given(PATH, PATH)
def test_SC_01_the_keys_below_a_path_are_exactly_its_subtree(top: str, path: str) -> None:
    region = keys.region_prefix("dev", "main", parse_region("shared:plan"))
    segments, below = top.split("/"), path.split("/")
    assert keys.head(region, path).startswith(keys.heads(region, top)) == (below[: len(segments)] == segments)
    assert keys.head(region, f"{top}/{path}").startswith(keys.heads(region, top))
    assert keys.head(region, top).startswith(keys.heads(region, top))


@given(st.lists(PATH, min_size=2, max_size=6, unique=True))
def test_an_entry_sorts_before_what_is_below_it_and_subtrees_are_unbroken(paths: list[str]) -> None:
    region = keys.region_prefix("dev", "main", parse_region("shared:plan"))
    ordered = sorted(keys.head(region, path) for path in [*paths, f"{paths[0]}/x", f"{paths[0]}/y/z"])
    subtree = keys.heads(region, paths[0])
    inside = [key.startswith(subtree) for key in ordered]
    assert sum(before != after for before, after in pairwise([False, *inside, False])) == 2
    assert ordered[inside.index(True)] == keys.head(region, paths[0])


# Isolation.


@given(TENANT, BOARD, REGION, TENANT, BOARD, REGION, PATH)
def test_SC_01_no_region_reaches_into_another(
    tenant: str, board: str, region: Region, tenant_2: str, board_2: str, region_2: Region, path: str
) -> None:
    """Also across tenants and boards. The regions beyond a board are one for all boards, or for all."""

    def place(tenant: str, board: str, region: Region) -> tuple[str | None, str | None, Region]:
        if region.kind is RegionKind.GLOBAL:
            return None, None, region
        return tenant, None if region.kind is RegionKind.TENANT else board, region

    prefix = keys.heads(keys.region_prefix(tenant, board, region))
    key = head(tenant_2, board_2, region_2, path)
    assert key.startswith(prefix) == (place(tenant, board, region) == place(tenant_2, board_2, region_2))


@pytest.mark.parametrize(
    "hostile",
    [
        "$ne",
        "{'$gt': ''}",
        "') OR 1=1 --",
        "*",
        "%",
        "_",
        "a' UNION SELECT",
        "\\",
        "__proto__",
        "../other",
        "task/x",
        "a:b",
        "%2F",
    ],
)
def test_SC_03_a_hostile_region_id_or_segment_stays_one_segment(hostile: str) -> None:
    if "/" in hostile:  # no name can hold one; a key that did would still keep it inside its segment
        assert keys.split(keys.join(b"dev", hostile.encode(), b"x")) == [b"dev", hostile.encode(), b"x"]
        return
    key = head("dev", "main", parse_region(f"shared:{hostile}"), hostile)
    assert keys.split(key[len(keys.HEAD) :]) == [b"dev", b"main", f"shared:{hostile}".encode(), hostile.encode()]
    assert keys.parse_head(key) == ("dev", "main", EntryKey(Region(RegionKind.SHARED, hostile), hostile))


# Reading keys back.


@given(TENANT, BOARD, REGION, PATH)
def test_a_head_key_reads_back(tenant: str, board: str, region: Region, path: str) -> None:
    assume(str(region) == str(parse_region(str(region))))
    expected_tenant = "" if region.kind is RegionKind.GLOBAL else tenant
    expected_board = "" if region.kind in {RegionKind.GLOBAL, RegionKind.TENANT} else board
    parsed = keys.parse_head(head(tenant, board, region, path))
    assert parsed == (expected_tenant, expected_board, EntryKey(region, path))


@given(REGION, PATH, SEQUENCE)
@example(Region(RegionKind.SHARED, "plan"), "a", 2**63 - 1)
@example(Region(RegionKind.SHARED, "plan"), "a", 0xD0)  # its eight bytes hold a slash
def test_a_history_record_leads_to_its_head(region: Region, path: str, sequence: int) -> None:
    key = head("dev", "main", region, path)
    assert keys.head_of_history(keys.history_record(key, sequence)) == key


@given(PATH, SEQUENCE, SEQUENCE)
def test_history_is_read_newest_first(path: str, left: int, right: int) -> None:
    key = head("dev", "main", parse_region("shared:plan"), path)
    assert (keys.history_record(key, left) < keys.history_record(key, right)) == (left > right)


@given(PATH, PATH, SEQUENCE)
@example("a", "a/b", 1)
@example("a/b", "a", 1)
def test_an_entrys_history_holds_nobody_elses(path: str, other: str, sequence: int) -> None:
    """Not even that of what is below it, whose head does begin with its head."""
    assume(path != other)
    region = keys.region_prefix("dev", "main", parse_region("shared:plan"))
    record = keys.history_record(keys.head(region, other), sequence)
    assert not record.startswith(keys.history(keys.head(region, path)))


@given(INSTANT_MS, REGION, PATH)
def test_a_reminder_reads_back(time_ms: int, region: Region, path: str) -> None:
    key = head("dev", "main", region, path)
    assert keys.parse_due(keys.due(time_ms, key)) == (time_ms, key)


@given(INSTANT_MS, INSTANT_MS, PATH)
def test_reminders_of_earlier_times_are_one_range(time_ms: int, bound_ms: int, path: str) -> None:
    key = head("dev", "main", parse_region("shared:plan"), path)
    assert (keys.due(time_ms, key) < keys.due_before(bound_ms)) == (time_ms < bound_ms)


@given(INSTANT_MS, INSTANT_MS, TENANT, BOARD)
def test_operations_of_earlier_minutes_are_one_range(time_ms: int, bound_ms: int, tenant: str, board: str) -> None:
    key = keys.operation(time_ms, tenant, board, "agent", "id")
    assert (key < keys.operations_before(bound_ms)) == (time_ms // 60_000 < bound_ms // 60_000)


@given(st.lists(st.tuples(TENANT, BOARD, SEGMENT, SEGMENT), min_size=2, max_size=2, unique=True), INSTANT_MS)
def test_an_operation_is_one_principals_own(names: list[tuple[str, str, str, str]], time_ms: int) -> None:
    """The same request id of another tenant, board or agent is another operation."""
    left, right = (keys.operation(time_ms, *name) for name in names)
    assert not left.startswith(right)
    assert not right.startswith(left)


@given(INSTANT_MS, INSTANT_MS)
def test_marks_sort_by_time(left: int, right: int) -> None:
    assert (keys.mark(left) < keys.mark(right)) == (left < right)


CHAIN = st.text("0123456789abcdef", min_size=16, max_size=16)
PLACE = st.tuples(INSTANT_MS, CHAIN, st.integers(1, 10**16 - 1))


@given(TENANT, TENANT, PLACE, PLACE)
def test_audit_records_are_their_tenants_and_sort_by_time_chain_and_number(
    tenant: str, other: str, left: tuple[int, str, int], right: tuple[int, str, int]
) -> None:
    key = keys.audit_record(tenant, *left)
    assert keys.parse_audit_record(key) == left
    assert key.startswith(keys.audit_records(other)) == (tenant == other)
    assert (key < keys.audit_record(tenant, *right)) == (left < right)
    assert (key < keys.audit_records_before(tenant, right[0])) == (left[0] < right[0])


@given(TENANT, CHAIN, st.integers(1, 10**16 - 1))
def test_ends_of_audit_chains_and_anchors_are_found_by_their_keys(tenant: str, chain: str, sequence: int) -> None:
    for kind in (keys.AUDIT_HEAD, keys.AUDIT_MOVED):
        key = keys.audit_chain(kind, tenant, chain)
        assert keys.parse_audit_chain(key) == (tenant, chain)
        assert key.startswith(keys.audit_chains(kind, tenant))
    assert keys.parse_audit_anchor(keys.audit_anchor(tenant, sequence)) == sequence
    assert keys.audit_anchor(tenant, sequence).startswith(keys.audit_anchors(tenant))


@given(TENANT, AWKWARD_BYTES)
def test_what_is_no_key_of_the_audit_log_is_told(tenant: str, rest: bytes) -> None:
    stray = keys.audit_records(tenant) + rest
    place = keys.parse_audit_record(stray)
    assert place is None or keys.audit_record(tenant, *place) == stray
    stray = keys.audit_anchors(tenant) + rest
    sequence = keys.parse_audit_anchor(stray)
    assert sequence == 0 or keys.audit_anchor(tenant, sequence) == stray


@given(TENANT, BOARD, REGION, PATH, INSTANT_MS, SEQUENCE)
def test_keys_of_different_kinds_never_meet(
    tenant: str, board: str, region: Region, path: str, time_ms: int, sequence: int
) -> None:
    key = head(tenant, board, region, path)
    of_each_kind = [
        key,
        keys.history_record(key, sequence),
        keys.operation(time_ms, tenant, board, path, path),
        keys.due(time_ms, key),
        keys.board(tenant, board),
        keys.owner(path),
        keys.mark(time_ms),
        keys.size(keys.board_prefix(tenant, board)),
        keys.purge(tenant, board),
        keys.SECRET,
        keys.audit_record(tenant, time_ms, path, 1),
        keys.audit_chain(keys.AUDIT_HEAD, tenant, path),
        keys.audit_chain(keys.AUDIT_MOVED, tenant, path),
        keys.audit_anchor(tenant, 1),
        keys.audit_newest(tenant),
    ]
    kinds = [keys.HEAD, keys.HISTORY, keys.OPERATION, keys.DUE, keys.BOARD, keys.OWNER, keys.MARK, keys.SIZE]
    kinds += [keys.PURGE, b"s/"]
    kinds += [keys.AUDIT_RECORD, keys.AUDIT_HEAD, keys.AUDIT_MOVED, keys.AUDIT_ANCHOR, keys.AUDIT_NEWEST]
    for made, kind in zip(of_each_kind, kinds, strict=True):
        assert [made.startswith(other) for other in kinds] == [kind == other for other in kinds]
    for left, right in permutations(of_each_kind, 2):
        assert not left.startswith(right)


def test_the_longest_names_make_a_key_that_a_store_takes() -> None:
    """etcd and SQLite take far more; the point is that escaping cannot blow a name up beyond reason."""
    percents = "/".join(["%" * 63] * limits.PATH_SEGMENTS_MAX)
    key = head(
        "t" * 63, "b" * 63, Region(RegionKind.CONVERSATION, "%" * limits.REGION_ID_BYTES_MAX), parse_path(percents)
    )
    assert len(keys.due(0, key)) < 4_500
    assert keys.parse_head(key)[2].path == percents
