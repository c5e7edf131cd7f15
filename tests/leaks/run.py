"""The leak run: everybody calls everything, of one's own and of others', while everybody writes; every answer is searched.

What is written anywhere carries a mark of its place, in values, metadata, paths, reasons, purposes and labels. No answer may
hold a mark, a lock's or session's id, a request id or a trace id of a place that its caller may not read, unless the request
named it. And whatever is not the caller's is asked for twice: once as it is, once by a name that nobody ever gave; the two
answers must say the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
import uuid
from collections import Counter, deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from kokuban.v1 import (
    admin_service_pb2,
    board_service_pb2,
    commit_pb2,
    entry_pb2,
    lock_pb2,
    lock_service_pb2,
    task_service_pb2,
    trust_service_pb2,
)
from kokuban.v1 import session_service_pb2 as session_pb
from tests.leaks.answers import ID, MARK, REQUEST_ID, Answer
from tests.leaks.cast import BOARDS, KINDS_WITH_GRANTS, REFUSED, SHARED, TENANTS, Cast, Place, Principal, Secret
from tests.leaks.probes import METHODS, ROWS, Row, Target, answer_class, in_step, questions, task_request
from tests.wire.calls import absent, is_lost_status, lasting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from google.protobuf.message import Message

_CHANNELS = 4
_WORKERS = 24
_LOCKS_HELD_MAX = 60
_LOCKS_KNOWN_MAX = 400
_WAITING_MAX = 16
_PROBES_PER_WRITE = 3
_FAULTS_MAX = 20
_WATCHED_MAX = 16
_BEGUN_SHARE = 0.7
"""Of all tasks so many are there from the beginning; the others are begun in the run."""
_WORDS = ("task_1", "task_10", "task_1/sub_0", "task_1/sub_01", "TASK_1", "task_")
_MEETING = f"shared:{SHARED[0]}"
_NEVER = "never"
_KINDS = ("shared", "agent", *KINDS_WITH_GRANTS)
_OF_REGIONS = {"entry", "region", "task"}
"""What a row may be about that lies in a region, or is one."""
_BROKEN = {"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
_ANSWERED_ALL_THE_SAME = {"BoardService.BatchGetEntries", "BoardService.CheckCurrent", "AdminService.ExplainAccess"}
"""Of what is hidden these say that it is not there, in an answer that is no refusal."""
_AUDIT = "AdminService.ListAuditRecords"
"""Whoever may read the audit log is told of every act of the tenant on its boards, with the words of who did it."""
_OFTEN = ("BoardService.Commit", "LockService.AcquireLock", "BoardService.ListEntries", "LockService.ListLocks")
_METHODS = [*ROWS, *_OFTEN, *_OFTEN]
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class KnownLock(NamedTuple):
    """A lock that was granted in the run."""

    fence: lock_pb2.Fence
    holder: Principal
    board: str
    places: frozenset[Place]


class LeakRun:
    """One run against one server. `faults` says what was found, `counts` what was done."""

    def __init__(self, address: str, seed: int, calls: int, cast: Cast) -> None:
        self.seed = seed
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self._address = address
        self._cast = cast
        self._calls = calls
        self._number = 0
        self._channels: list[Any] = []  # bytes in, bytes out, which the type stubs do not know of
        self._locks: deque[KnownLock] = deque(maxlen=_LOCKS_KNOWN_MAX)
        self._held: deque[KnownLock] = deque()
        self._waiting: deque[asyncio.Task[None]] = deque()
        self._ids: dict[str, Secret] = {}
        self._seen: set[tuple[Principal, str]] = set()
        """Ids that were shown, judged at the end: who granted a lock may learn its id after others have seen it."""
        self._revisions: dict[Place, int] = {}
        """At which the entries of each place were first written."""
        self._epoch = ""
        self._readable = {one: [place for place in cast.places if one.reads(place)] for one in cast.principals}
        self._writable = {one: [place for place in cast.places if one.writes(place)] for one in cast.principals}
        self._agents = {
            one.agent: [same for same in cast.principals if same.agent == one.agent] for one in cast.principals
        }
        self._tasks = {
            one: [place for place in places if place.region.startswith("task:")]
            for one, places in self._readable.items()
        }
        self._near = {
            one: [place for place in cast.places if place.tenant == one.tenant and one.enters(place.board)]
            for one in cast.principals
        }

    async def run(self) -> None:
        """Do all calls; afterwards `faults` is empty, or the server leaks."""
        async with AsyncExitStack() as stack:
            for _ in range(_CHANNELS):
                options = (("grpc.use_local_subchannel_pool", 1),)
                self._channels.append(
                    await stack.enter_async_context(grpc.aio.insecure_channel(self._address, options=options))
                )
            await self._prepare()
            watchers = [asyncio.create_task(self._follow(*one)) for one in self._watches()]
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(_WORKERS):
                        group.create_task(self._work())
            finally:
                background = [*watchers, *self._waiting]
                for task in background:
                    task.cancel()
                ended = await asyncio.gather(*background, return_exceptions=True)
            for fault in ended:
                if isinstance(fault, Exception):
                    raise fault
        for principal, name in self._seen:
            secret = self._ids.get(name)
            if secret is None:
                self.counts["ids nobody was given"] += 1
            elif not principal.sees(secret):
                self._fault(principal, "ids", f"saw the id {name} of {sorted(secret.places)}")

    async def _prepare(self) -> None:
        """Make the boards and open everybody's sessions."""
        for tenant in TENANTS:
            chief = next(one for one in self._cast.principals if (one.tenant, one.agent) == (tenant, "chief"))
            for board in BOARDS[tenant]:
                request = admin_service_pb2.CreateBoardRequest(board=board)
                answer = await self._call(chief, "AdminService.CreateBoard", request)
                if answer.code != "OK":  # not even if another tenant has one of that name
                    self._fault(chief, "AdminService.CreateBoard", f"{board}: {answer.reason}")
            status = await self._call(chief, "AdminService.GetStatus", admin_service_pb2.GetStatusRequest())
            (message,) = status.messages
            assert isinstance(message, admin_service_pb2.GetStatusResponse)
            self._epoch = message.epoch
            # The process that works on texts starts with the first one. So many callers would not wait for it in one queue.
            text = trust_service_pb2.ScreenTextRequest(board=BOARDS[tenant][0], text="first")
            await self._call(chief, "TrustService.ScreenText", text)
        for principal in self._cast.principals:
            for board in filter(principal.enters, BOARDS[principal.tenant]):
                label = self._cast.mark(Place(principal.tenant, board, ""))
                request_of = session_pb.OpenSessionRequest(
                    board=board, request_id=_new_id(), ttl=lasting(3_600), label=label
                )
                opened = await self._call(principal, "SessionService.OpenSession", request_of)
                (first,) = opened.messages
                assert isinstance(first, session_pb.OpenSessionResponse)
                principal.sessions[board] = first.session.id
                self._ids[first.session.id] = Secret(frozenset({Place(principal.tenant, board, "")}))
        async with asyncio.TaskGroup() as group:
            for place in self._cast.places:
                group.create_task(self._fill(place))
        self.counts.clear()

    async def _fill(self, place: Place) -> None:
        """Write something of everything to a place, by somebody who may."""
        writer = next((one for one in self._cast.principals if one.writes(place)), None)
        if writer is None:
            return
        mark = self._cast.mark(place)
        value = entry_pb2.Value(text=mark)
        request = commit_pb2.CommitRequest(board=place.board or "main", request_id=_new_id(), reason=mark)
        for words in _WORDS:
            key = entry_pb2.EntryKey(region=place.region, path=f"{words}/{mark}")
            put = commit_pb2.Put(key=key, precondition=absent(), value=value, metadata={mark: mark})
            request.mutations.append(commit_pb2.Mutation(put=put))
        self._ids[request.request_id] = Secret(frozenset({place}))
        answer = await self._call(writer, "BoardService.Commit", request)
        for message in answer.messages:
            assert isinstance(message, commit_pb2.CommitResponse)
            self._revisions[place] = message.revision.number
        if answer.code != "OK":
            self._fault(writer, "BoardService.Commit", f"may write {place}: {answer.code} {answer.reason}")
        if place.region.startswith("task:") and random.Random(f"{self.seed}/{place}").random() < _BEGUN_SHARE:
            begun = task_request(place.board, place.region, _new_id(), mark)
            asked = questions(place.board, place.region, _new_id(), mark)
            for method, said in (("TaskService.CreateTask", begun), ("BoardService.Commit", asked)):
                self._ids[said.request_id] = Secret(frozenset({place}))
                answer = await self._call(writer, method, said)
                if answer.code != "OK":
                    self._fault(writer, method, f"may begin {place}: {answer.code} {answer.reason}")

    def _watches(self) -> Iterable[tuple[Principal, str]]:
        return ((one, board) for one in self._cast.principals for board in one.sessions)

    async def _follow(self, principal: Principal, board: str) -> None:
        """Watch as much of a board as one watch may, all the time, and search what comes."""
        readable = [
            p for p in self._cast.places if p.tenant == principal.tenant and p.board == board and principal.reads(p)
        ]
        draw = random.Random(f"{self.seed}/{principal.name}/{board}")
        chosen = draw.sample(readable, min(_WATCHED_MAX, len(readable)))
        request = board_service_pb2.WatchRequest(
            board=board, targets=[board_service_pb2.WatchTarget(region=place.region) for place in chosen], snapshot=True
        )
        call = draw.choice(self._channels).unary_stream("/kokuban.v1.BoardService/Watch")(
            request.SerializeToString(), metadata=principal.metadata
        )
        regions = {place.region for place in chosen}
        try:
            while (raw := await call.read()) is not grpc.aio.EOF:
                answer = Answer(messages=[board_service_pb2.WatchResponse.FromString(raw)])
                self.counts["messages of long watches"] += 1
                self._search(principal, "BoardService.Watch", board, answer, b"")
                self._judge_writers(principal, "BoardService.Watch", board, answer)
                for region, path in answer.named():
                    if region not in regions:
                        self._fault(principal, "BoardService.Watch", f"was told of {region} {path}")
        except grpc.aio.AioRpcError as error:
            self.counts[f"long watch ended: {error.code().name}"] += 1

    async def _work(self) -> None:
        while self.counts["calls"] - self.counts["writes"] < self._calls and len(self.faults) < _FAULTS_MAX:
            self._number += 1
            number = self._number
            draw = random.Random(f"{self.seed}/{number}")
            await self._probe(draw)
            if number % _PROBES_PER_WRITE == 0:
                await self._write(draw.choice(self._cast.principals), draw, number)
            while len(self._held) > _LOCKS_HELD_MAX:
                await self._release(self._held.popleft())

    async def _write(self, principal: Principal, draw: random.Random, number: int) -> None:
        """Write where one may: a new entry, a counter and a list."""
        place = draw.choice(self._writable[principal] or self._cast.places[:1])
        mark = self._cast.mark(place)
        request = commit_pb2.CommitRequest(
            board=place.board or next(iter(principal.sessions)), request_id=_new_id(), reason=mark
        )
        path = f"{draw.choice(_WORDS)}/{mark}/{number}"
        value = entry_pb2.Value(text=mark)
        put = commit_pb2.Put(key=entry_pb2.EntryKey(region=place.region, path=path), precondition=absent(), value=value)
        increment = commit_pb2.Increment(key=entry_pb2.EntryKey(region=place.region, path=f"count/{mark}"), by=1)
        items = [f'"{mark}"']
        add = commit_pb2.AddToSet(key=entry_pb2.EntryKey(region=place.region, path=f"list/{mark}"), items=items)
        request.mutations.add().put.CopyFrom(put)
        request.mutations.add().increment.CopyFrom(increment)
        request.mutations.add().add_to_set.CopyFrom(add)
        self._ids[request.request_id] = Secret(frozenset({place}))
        answer = await self._call(principal, "BoardService.Commit", request)
        self.counts["writes"] += 1
        self.counts["writes that stand"] += answer.code == "OK"
        self._search(principal, "BoardService.Commit", request.board, answer, request.SerializeToString())

    async def _probe(self, draw: random.Random) -> None:
        principal = draw.choice(self._cast.principals)
        method = draw.choice(_METHODS)
        first, *others = ROWS[method]
        row = draw.choice(others) if others and draw.random() < 0.2 else first
        target, places = self._target(draw, principal, method, row)
        what = self._hidden(principal, row, target)
        form = draw.random()
        answer, names = await self._asked(principal, method, row, target, form, places)
        kind, _, name = target.region.partition(":")
        if row.about in _OF_REGIONS and kind not in {"tenant", "global"} and name in REFUSED:
            self.counts["malformed"] += 1
            if answer.code != "INVALID_ARGUMENT":
                self._fault(principal, method, f"took {target.region!r}: {answer.code} {answer.reason}")
            return
        if not what:
            self.counts[f"taken {method}"] += answer.code == "OK"
            self.counts["allowed" if answer.code == "OK" else "refused"] += 1
            return
        self.counts[f"hidden {what}"] += 1
        if what == "region" and method not in _ANSWERED_ALL_THE_SAME and answer.reason not in row.reasons:
            self._fault(principal, method, f"{target.region!r} on {target.board}: {answer.code} {answer.reason}")
        for twin in self._twins(row, target, what):
            other, other_names = await self._asked(principal, method, row, twin, form, frozenset())
            one, two = answer.said(names), other.said(other_names)
            self.counts["twins"] += 1
            if one != two:
                self._fault(
                    principal, method, f"tells what is hidden from what is not there ({what}):\n  {one}\n  {two}"
                )

    def _target(
        self, draw: random.Random, principal: Principal, method: str, row: Row
    ) -> tuple[Target, frozenset[Place]]:
        """Draw what a call is about; give it with the places whose readers may see its words."""
        place = self._task(draw, principal) if row.about == "task" else self._place(draw, principal)
        lock = draw.choice(self._locks) if self._locks else None
        owner = draw.choice([one for one in self._cast.principals if one is not principal])
        session_board = draw.choice(list(owner.sessions))
        board = self._board(draw, principal, place)
        if method == "AdminService.CreateBoard":  # no new ones: it is known which there are
            board = draw.choice(BOARDS[principal.tenant])
        elif row.about == "lock" and lock is not None and draw.random() < 0.8:
            board = lock.board
        elif row.about == "session" and draw.random() < 0.5:
            board = session_board
        region = place.region
        if draw.random() < 0.02:  # a name that is none
            region = f"{'task' if row.about == 'task' else draw.choice(_KINDS)}:{draw.choice(REFUSED)}"
        own = Place(principal.tenant, board, f"agent:{principal.agent}")
        # What is called alike belongs to another tenant: where this caller goes is its own tenant's.
        meant = Place(principal.tenant, board, region) if place.board else place
        if row.about in _OF_REGIONS:
            places = frozenset({meant})
        elif row.about == "lock" and lock is not None and method == "LockService.BreakLock":
            places = lock.places
        else:
            places = frozenset({own if row.about != "board" else own._replace(region="")})
        if lock is None or lock.holder is principal:
            fence = lock_pb2.Fence(lock_id=uuid.UUID(int=draw.getrandbits(128)).hex, revision=1, epoch=self._epoch)
        else:
            fence = lock.fence
        return Target(
            board,
            region,
            f"{draw.choice(_WORDS if meant.region != _MEETING else _WORDS[:2])}/{self._cast.mark(meant)}",
            self._revisions.get(meant, 1),
            fence,
            owner.sessions[session_board],
            principal.sessions.get(board, uuid.UUID(int=draw.getrandbits(128)).hex),
            entry_pb2.EntryKey(region=own.region, path="kept"),
            "",
            self._cast.mark(*places),
            self._cast.mark(*places, own, all_of_them=True),
        ), places

    def _place(self, draw: random.Random, principal: Principal) -> Place:
        """Draw a place: where all meet, where somebody has a lock now, one to be read, one on the caller's boards, or any."""
        chance = draw.random()
        if chance < 0.2:
            return Place(principal.tenant, draw.choice(list(principal.sessions)), _MEETING)
        if chance < 0.4 and self._held:
            held = draw.choice(self._held)
            if held.holder.tenant == principal.tenant:
                return draw.choice(sorted(held.places))
        if chance < 0.7:
            return draw.choice(self._readable[principal])
        return draw.choice(self._near[principal] if chance < 0.9 else self._cast.places)

    def _task(self, draw: random.Random, principal: Principal) -> Place:
        """Draw a task, most often one that the caller may read."""
        if self._tasks[principal] and draw.random() < 0.7:
            return draw.choice(self._tasks[principal])
        return draw.choice([place for place in self._near[principal] if place.region.startswith("task:")])

    def _board(self, draw: random.Random, principal: Principal, place: Place) -> str:
        if draw.random() < 0.05:
            return draw.choice(BOARDS[draw.choice(TENANTS)])
        return place.board or draw.choice(list(principal.sessions))

    def _hidden(self, principal: Principal, row: Row, target: Target) -> str:
        """Say what of the target is hidden from who calls: the board, the region, the lock or the session; else nothing."""
        if row.about == "nothing":
            return ""
        if not principal.enters(target.board):
            return "board"
        if row.about in _OF_REGIONS:
            kind, _, name = target.region.partition(":")
            if name in REFUSED and kind not in {"tenant", "global"}:
                return ""
            return "" if principal.reads(Place(principal.tenant, target.board, target.region)) else "region"
        if row.about == "lock":
            secret = self._ids.get(target.fence.lock_id)
            return "lock" if secret is not None and not principal.sees(secret, target.board) else ""
        secret = self._ids.get(target.session)
        return "session" if row.about == "session" and secret and not principal.sees(secret, target.board) else ""

    def _twins(self, row: Row, target: Target, what: str) -> Iterable[Target]:
        """Give the same target by names that nobody ever gave."""
        never = uuid.uuid4().hex
        if what == "board":
            yield target._replace(board=f"{_NEVER}-{never}")
        elif what == "lock":
            fence = lock_pb2.Fence(lock_id=never, revision=target.fence.revision, epoch=self._epoch)
            yield target._replace(fence=fence)
        elif what == "session":
            yield target._replace(session=never)
        else:
            kind = target.region.partition(":")[0]
            yield target._replace(region=f"{kind}:{_NEVER}-{never}")
            if row.told_like_absent:
                yield target._replace(region=target.own.region, path=f"{_NEVER}/{never}")

    async def _asked(
        self, principal: Principal, method: str, row: Row, target: Target, form: float, places: frozenset[Place]
    ) -> tuple[Answer, dict[str, str]]:
        """Make the call that the form says, of this target; give its answer and the names that stood in it."""
        target = target._replace(new_id=_new_id())
        request = row.request(random.Random(form), principal, target)
        own = Place(principal.tenant, target.board, target.own.region)
        trace = uuid.uuid4().hex
        self._ids[trace] = self._ids[target.new_id] = Secret(places | {own})
        answer = await self._call(principal, method, request, ("traceparent", f"00-{trace}-{trace[:16]}-01"))
        self._check(principal, method, target, request, answer)
        if answer.code == "OK":
            await self._take_note(principal, target.board, answer)
            for message in answer.messages:
                if isinstance(message, task_service_pb2.ClaimNextStepResponse):
                    await self._work_in(principal, target, message)
                elif isinstance(message, task_service_pb2.ExportTaskResponse) and message.manifest:
                    await self._archive(principal, target, message)
        names = {
            target.region: "<region>",
            target.own.region: "<region>",
            target.path: "<path>",
            target.board: "<board>",
            target.fence.lock_id: "<lock>",
            target.session: "<session>",
            target.new_id: "<request>",
        }
        return answer, names

    async def _work_in(
        self, principal: Principal, target: Target, claimed: task_service_pb2.ClaimNextStepResponse
    ) -> None:
        """Say something of each kind in a step that was claimed."""
        place = Place(principal.tenant, target.board, target.region)
        request = in_step(
            random.Random(target.new_id), target.board, claimed, target.region.partition(":")[2], self._cast.mark(place)
        )
        request.request_id = _new_id()
        self._ids[request.request_id] = Secret(frozenset({place}))
        answer = await self._call(principal, "BoardService.Commit", request)
        self.counts["taken in a step"] += answer.code == "OK"
        self._search(principal, "BoardService.Commit", target.board, answer, request.SerializeToString())

    async def _archive(
        self, principal: Principal, target: Target, exported: task_service_pb2.ExportTaskResponse
    ) -> None:
        """Archive a task that was exported on one page, unless somebody works on it, and bring it back."""
        place = Place(principal.tenant, target.board, target.region)
        named = {
            "board": target.board,
            "task": target.region.partition(":")[2],
            "digest": json.loads(exported.manifest)["digest"],
        }
        lines = exported.lines[::-1]
        for method, request in (
            ("ArchiveTask", task_service_pb2.ArchiveTaskRequest(request_id=_new_id(), **named)),
            ("RestoreTask", task_service_pb2.RestoreTaskRequest(request_id=_new_id(), lines=lines, **named)),
        ):
            self._ids[request.request_id] = Secret(frozenset({place}))
            answer = await self._call(principal, f"TaskService.{method}", request)
            self.counts[f"taken TaskService.{method}"] += answer.code == "OK"
            self._search(principal, f"TaskService.{method}", target.board, answer, request.SerializeToString())
            if answer.code != "OK":
                return

    def _check(self, principal: Principal, method: str, target: Target, request: Message, answer: Answer) -> None:
        raw = request.SerializeToString()
        if answer.code in _BROKEN and answer.reason != "LOCK_WAIT_EXPIRED":
            self._fault(principal, method, f"{answer.code} {answer.reason} {answer.text}")
        of_a_board = not method.startswith("AdminService.")
        self._search(principal, method, target.board if of_a_board else None, answer, raw)
        asked = set(Answer(messages=[request]).named()) | {(target.region, target.path)}
        for region, path in answer.named():
            readable = principal.reads(Place(principal.tenant, target.board, region))
            if not readable and (region, path) not in asked:
                self._fault(principal, method, f"named {region!r} {path!r}")
        self._judge_writers(principal, method, target.board, answer)
        self._judge_lists(principal, method, target.board, answer)
        if isinstance(request, board_service_pb2.ListEntriesRequest):
            self._judge_listing(principal, method, request, answer)

    def _judge_listing(
        self, principal: Principal, method: str, request: board_service_pb2.ListEntriesRequest, answer: Answer
    ) -> None:
        """See that only entries are listed that lie where they were asked for. Those that they came of may lie elsewhere."""
        below = f"{request.path}/" if request.path else ""
        for message in answer.messages:
            if isinstance(message, board_service_pb2.ListEntriesResponse):
                for entry in message.entries:
                    region, path = entry.key.region, entry.key.path
                    if region != request.region or not f"{path}/".startswith(below):
                        place = f"{request.region!r} {request.path!r}"
                        self._fault(principal, method, f"listed {region!r} {path!r} below {place}")

    def _judge_lists(self, principal: Principal, method: str, of_board: str, answer: Answer) -> None:
        """See that no board and no task is listed that is not for the caller."""
        for message in answer.messages:
            if isinstance(message, admin_service_pb2.ListBoardsResponse):
                for board in message.boards:
                    if not principal.enters(board.id):
                        self._fault(principal, method, f"listed the board {board.id}")
            elif isinstance(message, task_service_pb2.ListTasksResponse):
                for task in message.tasks:
                    if not principal.reads(Place(principal.tenant, of_board, f"task:{task.task}")):
                        self._fault(principal, method, f"listed the task {task.task}")

    def _judge_writers(self, principal: Principal, method: str, board: str, answer: Answer) -> None:
        """See that nobody has written where it may not: in the global region anybody with the role, else one of the tenant."""
        for region, agent in answer.writers():
            place = Place(principal.tenant, board, region)
            if not any(
                one.writes(place) and (one.tenant == principal.tenant or region == "global")
                for one in self._agents[agent]
            ):
                self._fault(principal, method, f"{agent} has written in {place}")

    def _search(self, principal: Principal, method: str, board: str | None, answer: Answer, request: bytes) -> None:
        """Look in an answer for marks and ids that are not for this caller and that its request did not name."""
        raw = answer.raw
        for mark in set(MARK.findall(raw)).difference(MARK.findall(request)):
            self.counts["marks seen"] += 1
            secret = self._cast.secret(mark.decode())
            if method == _AUDIT and secret is not None and _is_of_the_tenant(principal, secret):
                continue
            if secret is None or not principal.sees(secret, board):
                of = sorted(secret.places) if secret else "nobody"
                self._fault(
                    principal, method, f"on {board} saw {mark.decode()} of {of}: {answer.messages or answer.status}"
                )
        if method == _AUDIT:
            return
        named = {*ID.findall(request), *REQUEST_ID.findall(request)}
        self._seen.update(
            (principal, found.decode()) for found in (*ID.findall(raw), *REQUEST_ID.findall(raw)) if found not in named
        )

    async def _take_note(self, principal: Principal, board: str, answer: Answer) -> None:
        """Remember the locks and sessions that came to be, so that others are asked about them; sessions end at once."""
        for message in answer.messages:
            if isinstance(message, lock_service_pb2.ClaimEntryResponse | task_service_pb2.ClaimNextStepResponse) or (
                isinstance(message, lock_service_pb2.AcquireLockResponse) and message.HasField("granted")
            ):
                granted = message.granted
                places = frozenset(Place(principal.tenant, board, one.region) for one in granted.lock.targets)
                known = KnownLock(granted.fence, principal, board, places)
                self._ids[granted.lock.id] = Secret(places)
                self._locks.append(known)
                self._held.append(known)
                self.counts["locks"] += 1
            elif isinstance(message, session_pb.OpenSessionResponse):
                self._ids[message.session.id] = Secret(frozenset({Place(principal.tenant, board, "")}))
                close = session_pb.CloseSessionRequest(board=board, session_id=message.session.id)
                await self._call(principal, "SessionService.CloseSession", close)

    async def _wait(self, principal: Principal, request: lock_service_pb2.AcquireLockRequest, call: Any) -> None:  # noqa: ANN401 - as grpc types it
        """Let a request for a lock wait, for others to see, until it is granted or there are too many that wait."""
        places = frozenset(Place(principal.tenant, request.board, one.region) for one in request.targets)
        answer = Answer()
        self.counts["waits"] += 1
        try:
            while (raw := await call.read()) is not grpc.aio.EOF:
                answer.messages = [lock_service_pb2.AcquireLockResponse.FromString(raw)]
                self._search(principal, "LockService.AcquireLock", request.board, answer, request.SerializeToString())
                await self._take_note(principal, request.board, answer)
        except grpc.aio.AioRpcError as error:
            answer = Answer(error.code().name, trailing=list(error.trailing_metadata() or ()))
            self.counts[f"wait ended: {answer.reason}"] += 1
            self._search(principal, "LockService.AcquireLock", request.board, answer, request.SerializeToString())
            for region, path in answer.named():
                if not principal.reads(Place(principal.tenant, request.board, region)):
                    self._fault(principal, "LockService.AcquireLock", f"of {places} named {region!r} {path!r}")
        finally:
            call.cancel()

    async def _release(self, lock: KnownLock) -> None:
        request = lock_service_pb2.ReleaseLockRequest(board=lock.board, fence=lock.fence)
        await self._call(lock.holder, "LockService.ReleaseLock", request)

    async def _call(self, principal: Principal, method: str, request: Message, *more: tuple[str, str]) -> Answer:
        """Make one call to its end, or as far as it tells something at once."""
        self.counts["calls"] += 1
        self.counts[method] += 1
        answer, of, waits = Answer(), answer_class(method), False
        call = self._begun(method, request.SerializeToString(), (*principal.metadata, *more))
        try:
            if METHODS[method].server_streaming:
                await self._read(call, of, answer)
            else:
                answer.messages.append(of.FromString(await call))
            answer.initial = list(await call.initial_metadata())
            if isinstance(request, lock_service_pb2.AcquireLockRequest) and answer.is_queued:
                waits = True
                self._waiting.append(asyncio.create_task(self._wait(principal, request, call)))
                while len(self._waiting) > _WAITING_MAX:
                    self._waiting.popleft().cancel()
            elif call.done():
                answer.trailing = list(await call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            if is_lost_status(error):
                return await self._call(principal, method, request, *more)
            answer.code, answer.text = error.code().name, error.details() or ""
            answer.initial = list(error.initial_metadata() or ())
            answer.trailing = list(error.trailing_metadata() or ())
        finally:
            if not waits:
                call.cancel()
        self.counts[f"answer {answer.code}"] += 1
        return answer

    def _begun(self, method: str, raw: bytes, metadata: tuple[tuple[str, str], ...]) -> Any:  # noqa: ANN401 - as grpc types it
        channel = self._channels[self.counts["calls"] % len(self._channels)]
        path = f"/kokuban.v1.{method.replace('.', '/')}"
        if METHODS[method].client_streaming:

            async def requests() -> AsyncIterator[bytes]:
                yield raw

            return channel.stream_stream(path)(requests(), metadata=metadata)
        kind = channel.unary_stream if METHODS[method].server_streaming else channel.unary_unary
        return kind(path)(raw, metadata=metadata)

    async def _read(self, call: Any, of: type[Message], answer: Answer) -> None:  # noqa: ANN401 - as grpc types it
        """Read to the end, or a few messages of what has no end."""
        with contextlib.suppress(TimeoutError):
            for wait_s in (30.0, 0.05, 0.02, 0.02):
                async with asyncio.timeout(wait_s):
                    raw = await call.read()
                if raw is grpc.aio.EOF:
                    code = await call.code()
                    if code is not grpc.StatusCode.OK:
                        answer.code, answer.text = code.name, await call.details()
                    return
                message = of.FromString(raw)
                answer.messages.append(message)
                if answer.is_queued:
                    return
                if isinstance(message, commit_pb2.CommitStreamResponse) and message.HasField("refused"):
                    answer.code = _CODES[message.refused.code]

    def _fault(self, principal: Principal, method: str, what: str) -> None:
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(f"{principal.name} {method}: {what}")


def _is_of_the_tenant(principal: Principal, secret: Secret) -> bool:
    """Say whether something stands on a board that there is for the principal, or beyond the boards of its tenant."""
    return any(
        tenant == principal.tenant and (not board or principal.enters(board)) for tenant, board, _ in secret.places
    )


def _new_id() -> str:
    """Give a UUID of version 7."""
    number = (
        (time.time_ns() // 1_000_000 << 80) | 7 << 76 | random.getrandbits(12) << 64 | 2 << 62 | random.getrandbits(62)
    )
    return str(uuid.UUID(int=number))
