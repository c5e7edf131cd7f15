"""The methods of kokuban.v1.AdminService that concern boards and their policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from kokuban.v1 import admin_service_pb2 as pb
from kokuban_server.core import limits
from kokuban_server.core.names import parse_board, parse_region
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.revision import encode_token
from kokuban_server.wire import policies
from kokuban_server.wire.encode import timestamp
from kokuban_server.wire.fields import page_size, page_token, parse_message, words
from kokuban_server.wire.rpc import Call, Method, UnaryMethod

if TYPE_CHECKING:
    from kokuban_server.app.board_administration import BoardAdministration
    from kokuban_server.app.boards import Board
    from kokuban_server.wire.redacting import Redactor

_log = structlog.get_logger()


class BoardMethods:
    """Those methods of kokuban.v1.AdminService that concern boards and their policies."""

    def __init__(self, boards: BoardAdministration, redactor: Redactor) -> None:
        self._boards = boards
        self._redactor = redactor

    @property
    def methods(self) -> dict[str, Method]:
        """These methods by their names in the proto."""
        return {
            "CreateBoard": UnaryMethod(self.create_board, writes=True),
            "GetBoard": UnaryMethod(self.get_board),
            "ListBoards": UnaryMethod(self.list_boards),
            "DeleteBoard": UnaryMethod(self.delete_board),
            "GetPolicy": UnaryMethod(self.get_policy),
            "SetPolicy": UnaryMethod(self.set_policy, writes=True),
            "ExplainAccess": UnaryMethod(self.explain_access),
        }

    async def create_board(self, raw: bytes, call: Call) -> bytes:
        """Make a board."""
        message = parse_message(pb.CreateBoardRequest, raw)
        board_id = parse_board(message.board)
        await self._redactor.mask(call.principal, message, board_id, (), call.deadline)
        board = await self._boards.create(call.principal, board_id, call.deadline)
        _log.info("board.created", board=board_id, by=call.principal.agent)
        return pb.CreateBoardResponse(board=_board(board), token=self._token(board.revision)).SerializeToString()

    async def get_board(self, raw: bytes, call: Call) -> bytes:
        """Describe a board."""
        board_id = parse_board(parse_message(pb.GetBoardRequest, raw).board)
        board = await self._boards.get(call.principal, board_id, call.deadline)
        return pb.GetBoardResponse(board=_board(board), token=self._token(board.revision)).SerializeToString()

    async def list_boards(self, raw: bytes, call: Call) -> bytes:
        """Read one page of boards."""
        message = parse_message(pb.ListBoardsRequest, raw)
        size, token = page_size(message.page_size), page_token(message.page_token)
        page = await self._boards.list(call.principal, size, token, call.deadline, show_deleted=message.show_deleted)
        return pb.ListBoardsResponse(
            boards=map(_board, page.boards), next_page_token=page.next_page_token, token=self._token(page.revision)
        ).SerializeToString()

    async def delete_board(self, raw: bytes, call: Call) -> bytes:
        """Take a board away from everybody."""
        message = parse_message(pb.DeleteBoardRequest, raw)
        board_id = parse_board(message.board)
        reason = words(message.reason, "reason", limits.REASON_BYTES_MAX)
        if await self._redactor.mask(call.principal, message, board_id, (), call.deadline):
            reason = words(message.reason, "reason", limits.REASON_BYTES_MAX)
        board = await self._boards.delete(call.principal, board_id, reason, call.deadline)
        _log.warning("board.deleted", board=board_id, by=board.record.deleted_by)
        return pb.DeleteBoardResponse(board=_board(board), token=self._token(board.revision)).SerializeToString()

    async def get_policy(self, raw: bytes, call: Call) -> bytes:
        """Give a board's policy."""
        board_id = parse_board(parse_message(pb.GetPolicyRequest, raw).board)
        board = await self._boards.policy(call.principal, board_id, call.deadline)
        record = board.record
        return pb.GetPolicyResponse(
            policy=policies.encode(record.policy),
            record=policies.encode_version(record.version),
            token=self._token(board.revision),
        ).SerializeToString()

    async def set_policy(self, raw: bytes, call: Call) -> bytes:
        """Lay down a board's policy."""
        message = parse_message(pb.SetPolicyRequest, raw)
        board_id = parse_board(message.board)
        if not message.HasField("policy"):
            raise InvalidRequest(
                "FIELD_REQUIRED", "policy", "a policy as a whole; an empty one takes back the present one"
            )
        if message.replaces < 0:
            raise InvalidRequest("FIELD_INVALID", "replaces", "the number of the policy it replaces, or 0")
        policy = policies.decode(message.policy, "policy")
        reason = words(message.reason, "reason", limits.REASON_BYTES_MAX, required=False)
        if await self._redactor.mask(call.principal, message, board_id, (), call.deadline):
            reason = words(message.reason, "reason", limits.REASON_BYTES_MAX, required=False)
        board = await self._boards.set_policy(call.principal, board_id, policy, message.replaces, reason, call.deadline)
        version = board.record.version
        _log.warning("policy.set", board=board_id, number=version.number, by=version.author)
        return pb.SetPolicyResponse(
            record=policies.encode_version(version), token=self._token(board.revision)
        ).SerializeToString()

    async def explain_access(self, raw: bytes, call: Call) -> bytes:
        """Say what would become of a request of the caller's own."""
        message = parse_message(pb.ExplainAccessRequest, raw)
        board_id, region = parse_board(message.board), parse_region(message.region)
        verb = policies.decode_verb(message.verb, "verb")
        board, ruling = await self._boards.explain(call.principal, board_id, region, verb, call.deadline)
        return pb.ExplainAccessResponse(
            decision=policies.encode_decision(ruling.decision),
            rule=ruling.rule,
            subject=ruling.subject,
            policy_number=board.record.version.number,
            token=self._token(board.revision),
        ).SerializeToString()

    def _token(self, revision: int) -> str:
        return encode_token(self._boards.epoch, revision)


def _board(board: Board) -> pb.Board:
    record = board.record
    message = pb.Board(
        id=board.id,
        create_time=timestamp(record.create_time_ms),
        creator=record.creator,
        state=policies.BOARD_STATES[record.state],
        policy_number=record.version.number,
    )
    if record.delete_time_ms:
        message.delete_time.CopyFrom(timestamp(record.delete_time_ms))
        message.deleter = record.deleted_by
        message.delete_reason = record.delete_reason
    if record.receipt is not None:
        removed = record.receipt.removed
        message.receipt.CopyFrom(
            pb.PurgeReceipt(
                entries=removed.entries,
                revisions=removed.revisions,
                locks=removed.locks,
                conflicts=removed.conflicts,
                purge_time=timestamp(record.receipt.time_ms),
            )
        )
    return message
