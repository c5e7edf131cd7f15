"""The figures: what each compares, and what it must reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from .callers import known_by_certificate, known_by_jwt, known_by_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from .callers import Known
    from .processes import Load, Running, Workplace


class Side(NamedTuple):
    """One of the two things that a figure compares."""

    what: str
    load: Load
    programs: tuple[Running, ...]
    """What answers the load: server, store."""


class Scale(NamedTuple):
    """How much is prepared."""

    few_entries: int
    many_entries: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: ours over theirs."""

    name: str
    what: str
    must: float
    aim: float
    sides: Callable[[Workplace, Scale], Awaitable[tuple[Side, Side]]]
    better: Literal["higher", "lower", "equal"] = "higher"
    """`equal`: the bound is how many times as large or as small it may be."""
    measure: Literal["rate", "median_s"] = "rate"

    def reaches(self, value: float, bound: float) -> bool:
        """Say whether a value is as good as the bound."""
        if self.better == "equal":
            return 1 / bound <= value <= bound
        return value >= bound if self.better == "higher" else value <= bound


async def _commits_and_echo(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    server, echo = await place.kokuban("sqlite:"), await place.echo()
    ours = await place.load("unary_commits", server.address)
    theirs = await place.load("unary_commits", echo.address)
    return Side("Commit on sqlite", ours, (server,)), Side("bare echo", theirs, (echo,))


def _on_etcd(
    what: str, ours: str, theirs: str, **parameters: object
) -> Callable[[Workplace, Scale], Awaitable[tuple[Side, Side]]]:
    async def sides(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
        etcd = await place.etcd()
        server = await place.kokuban(f"etcd://{etcd.address}")
        return (
            Side(f"{what} on etcd", await place.load(ours, server.address, **parameters), (server, etcd)),
            Side("etcd alone", await place.load(theirs, etcd.address), (etcd,)),
        )

    return sides


async def _growth(place: Workplace, scale: Scale) -> tuple[Side, Side]:
    many = await _filled(place, scale.many_entries)
    few = await _filled(place, scale.few_entries)
    return many, few


async def _filled(place: Workplace, entries: int) -> Side:
    """Fill a store through a server, end the server, and start another on what is there."""
    folder: Path = place.folder / f"entries-{entries}"
    revisions = f"{folder}.revisions"
    filling = await place.kokuban(f"sqlite:{folder}")
    load = await place.load("filling", filling.address, revisions=revisions, entries=entries)
    await load.run(entries)
    await place.stop(filling.process)
    server = await place.kokuban(f"sqlite:{folder}")
    writers = await place.load("random_commits", server.address, revisions=revisions)
    return Side(f"{entries:,} entries", writers, (server,))


async def _watch_fanout(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    server, echo = await place.kokuban("sqlite:"), await place.echo()
    ours = await place.load("fan_out", server.address, in_flight=16)
    theirs = await place.load("bare_streams", echo.address)
    return Side("events on sqlite", ours, (server,)), Side("bare streams", theirs, (echo,))


async def _hot_counter(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    server = await place.kokuban("sqlite:")
    hot = await place.load("increments", server.address, entries=1)
    spread = await place.load("increments", server.address, entries=64)
    return Side("one entry", hot, (server,)), Side("64 entries", spread, (server,))


async def _task_events(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    server = await place.kokuban("sqlite:")
    events = await place.load("task_events", server.address)
    commits = await place.load("new_entries", server.address)
    return Side("events of 64 tasks", events, (server,)), Side("new entries of 64 writers", commits, (server,))


async def _resumptions(place: Workplace, scale: Scale) -> tuple[Side, Side]:
    server = await place.kokuban("sqlite:")
    long = await place.load("resumptions", server.address, events=scale.many_entries // 10)
    short = await place.load("resumptions", server.address, events=scale.few_entries // 10)
    return Side("behind a long log", long, (server,)), Side("behind a short one", short, (server,))


async def _fenced_writes(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    etcd = await place.etcd()
    server = await place.kokuban(f"etcd://{etcd.address}")
    fenced = await place.load("fenced_commits", server.address, locked=True)
    free = await place.load("fenced_commits", server.address, locked=False)
    return Side("under a lock", fenced, (server, etcd)), Side("under none", free, (server, etcd))


async def _writers_beside_locks(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    etcd = await place.etcd()
    server = await place.kokuban(f"etcd://{etcd.address}")
    beside = await place.load("writers_beside_locks", server.address, busy=True)
    alone = await place.load("writers_beside_locks", server.address, busy=False)
    return Side("a lock comes and goes", beside, (server, etcd)), Side("no locks", alone, (server, etcd))


async def _mutual_tls(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    known = known_by_certificate(place.folder / "certificates")
    return await _team(place, "mutual TLS", known), await _team(place, "development identity", known_by_name())


async def _jwt(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    return (
        await _team(place, "JSON Web Tokens", known_by_jwt(place.folder)),
        await _team(place, "development identity", known_by_name()),
    )


async def _team(place: Workplace, what: str, known: Known) -> Side:
    server = await place.kokuban("sqlite:", settings=known.settings)
    load = await place.load(
        "team_commits",
        server.address,
        server=server.address,
        callers=known.callers,
        makes_board="KOKUBAN_IDENTITY" in known.settings,
    )
    return Side(what, load, (server,))


async def _echo_mutual_tls(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    certificates = place.folder / "certificates"
    callers = known_by_certificate(certificates).callers
    secure, plain = await place.echo(certificates), await place.echo()
    ours = await place.load("team_commits", secure.address, server=secure.address, callers=callers)
    theirs = await place.load("team_commits", plain.address, server=plain.address, callers=known_by_name().callers)
    return Side("echo with mutual TLS", ours, (secure,)), Side("echo in plain text", theirs, (plain,))


def _telemetry(ratio: float) -> Callable[[Workplace, Scale], Awaitable[tuple[Side, Side]]]:
    async def sides(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
        collector = await place.collector()
        settings = {
            "KOKUBAN_TRACING__ENDPOINT": f"http://{collector.address}/v1/traces",
            "KOKUBAN_TRACING__SAMPLE_RATIO": str(ratio),
            "KOKUBAN_METRICS_LISTEN": "127.0.0.1:0",
        }
        told, silent = await place.kokuban("sqlite:", settings=settings), await place.kokuban("sqlite:")
        ours = await place.load("unary_commits", told.address)
        theirs = await place.load("unary_commits", silent.address)
        return Side("spans and metrics", ours, (told, collector)), Side("neither", theirs, (silent,))

    return sides


async def _guarded(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    server, other = await place.kokuban("sqlite:"), await place.kokuban("sqlite:")
    ours = await place.load("noted_commits", server.address, guarded=True)
    theirs = await place.load("noted_commits", other.address, guarded=False)
    return Side("labels, screening, redaction", ours, (server,)), Side("none of them", theirs, (other,))


async def _pages(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    server, other = await place.kokuban("sqlite:"), await place.kokuban("sqlite:")
    ours = await place.load("pages", server.address, outside=True)
    theirs = await place.load("pages", other.address, outside=False)
    return Side("1 KiB from outside", ours, (server,)), Side("1 KiB of an agent's own", theirs, (other,))


async def _hidden_and_absent(place: Workplace, _scale: Scale) -> tuple[Side, Side]:
    server = await place.kokuban("sqlite:")
    hidden = await place.load("vain_gets", server.address, hidden=True)
    absent = await place.load("vain_gets", server.address, hidden=False)
    return Side("not yours", hidden, (server,)), Side("not there", absent, (server,))


FIGURES = (
    Figure(
        "commit_unary_vs_echo_sqlite",
        "unary commits/s on sqlite, 64 in flight, over calls/s of a bare echo of the same bytes",
        0.4,
        0.7,
        _commits_and_echo,
    ),
    Figure(
        "commit_unary_vs_raw_etcd",
        "unary commits/s on etcd, 64 in flight, over single compare-and-swap transactions/s on that etcd",
        0.7,
        1.1,
        _on_etcd("Commit", "unary_commits", "raw_swaps"),
    ),
    Figure(
        "commit_stream_vs_raw_etcd",
        "commits/s on 16 CommitStreams of 4 in flight, over single compare-and-swap transactions/s, 64 in flight",
        1.0,
        1.8,
        _on_etcd("CommitStream", "stream_commits", "raw_swaps"),
    ),
    Figure(
        "commit_batch_vs_raw_etcd",
        "entries/s in commits of 32, 64 in flight, over single compare-and-swap transactions/s",
        2.0,
        5.0,
        _on_etcd("Commit of 32", "unary_commits", "raw_swaps", puts=32),
    ),
    Figure(
        "get_strong_vs_raw_etcd",
        "strong GetEntry/s, 64 in flight, over linearizable ranges of one key/s on that etcd",
        0.6,
        1.1,
        _on_etcd("GetEntry", "strong_gets", "raw_gets"),
    ),
    Figure(
        "commit_growth_1m",
        "median time of a commit to a random entry, 8 in flight, with 1,000,000 entries over 1,000",
        1.5,
        1.15,
        _growth,
        better="lower",
        measure="median_s",
    ),
    Figure(
        "watch_fanout",
        "events/s from one writer of 16 in flight to 200 watches, over messages/s that a bare server sends on 200 streams",
        0.5,
        1.0,
        _watch_fanout,
    ),
    Figure(
        "hot_counter",
        "increments/s of 64 writers on one entry over 64 writers on 64 entries (sqlite)",
        0.5,
        1.0,
        _hot_counter,
    ),
    Figure(
        "event_append_vs_commit",
        "events/s of 64 workers on a task each, under its step's fence, over plain commits/s of a new entry each (sqlite)",
        0.9,
        1.0,
        _task_events,
    ),
    Figure(
        "resume_growth",
        "median time of ClaimNextStep behind 100,000 events with checkpoints over that behind 100 (sqlite)",
        2.0,
        1.2,
        _resumptions,
        better="lower",
        measure="median_s",
    ),
    Figure(
        "lock_cycle_vs_raw_etcd",
        "acquire and release/s, 64 sessions in 64 regions, over create-with-lease and delete/s by etcd transactions",
        0.4,
        0.8,
        _on_etcd("AcquireLock and ReleaseLock", "lock_cycles", "raw_lock_cycles"),
    ),
    Figure(
        "lock_handover_ratio",
        "median time from a release to the grant to the next of 50 that wait, over an etcd put to its watch event",
        8.0,
        3.0,
        _on_etcd("hand-over", "hand_overs", "raw_put_to_event"),
        better="lower",
        measure="median_s",
    ),
    Figure(
        "fenced_write_overhead",
        "unary commits/s on etcd, 64 in flight, under one lock over the same under none",
        0.85,
        0.95,
        _fenced_writes,
    ),
    Figure(
        "locked_region_writers",
        "unary commits/s on etcd, 64 in flight, in a region where a lock comes and goes once a second over the same without",
        0.8,
        0.95,
        _writers_beside_locks,
    ),
    Figure(
        "auth_overhead_mtls",
        "unary commits/s on sqlite of 8 agents, 8 in flight each, with mutual TLS and a policy over the same without",
        0.75,
        0.9,
        _mutual_tls,
    ),
    Figure(
        "auth_overhead_jwt",
        "the same with a JSON Web Token on each call and a policy, in plain text, over the same without",
        0.85,
        0.95,
        _jwt,
    ),
    Figure(
        "echo_overhead_mtls",
        "calls/s of a bare echo of the same bytes with mutual TLS over the same in plain text: what gRPC itself pays",
        0.5,
        0.9,
        _echo_mutual_tls,
    ),
    Figure(
        "telemetry_overhead",
        "unary commits/s on sqlite, 64 in flight, with spans of 10 % of the calls and metrics, over the same with neither",
        0.85,
        0.93,
        _telemetry(0.1),
    ),
    Figure(
        "telemetry_overhead_full",
        "the same with spans of all calls",
        0.6,
        0.75,
        _telemetry(1.0),
    ),
    Figure(
        "internal_write_overhead",
        "unary commits/s of 512 bytes of agents' notes on sqlite, 64 in flight, as a board is guarded without a policy, over a "
        "policy that switches labels, screening and redaction off",
        0.8,
        0.9,
        _guarded,
    ),
    Figure(
        "external_writes",
        "commits/s of 1 KiB from outside, each text new, on sqlite, 4 in flight, over the same of an agent's own; unbounded: "
        "what counts is what 99 of 100 take, in milliseconds for a KiB",
        0.0,
        0.0,
        _pages,
    ),
    Figure(
        "hidden_vs_absent_time",
        "median time of GetEntry in a region that the caller may not read over that of an absent entry in its own (sqlite)",
        1.1,
        1.05,
        _hidden_and_absent,
        better="equal",
        measure="median_s",
    ),
)
