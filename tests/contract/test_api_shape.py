"""The API keeps its own conventions; most come from the AIPs named beside them. `buf lint` does the rest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from google.protobuf import descriptor_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

Field = descriptor_pb2.FieldDescriptorProto
Message = descriptor_pb2.DescriptorProto
Method = descriptor_pb2.MethodDescriptorProto
Files = list[descriptor_pb2.FileDescriptorProto]

# Not about one board: they look after the server, whose store holds every board.
WITHOUT_BOARD = {
    "GetStatusRequest",
    "CompactRequest",
    "ListBoardsRequest",
    "ListAuditRecordsRequest",
    "VerifyAuditRequest",
    "ExamineStoreRequest",
}
# Carry a whole request or answer of another method, which has the board and the token.
ENVELOPES = {"CommitStreamRequest", "CommitStreamResponse"}
# Name no state of the board: a renewal and an end of a session change nothing that is read; the token of a grant is in it.
WITHOUT_TOKEN = {"KeepAliveResponse", "CloseSessionResponse", "AcquireLockResponse", "ClaimEntryResponse"}
# Lists nothing: works through the store a page at a time, whose size is the server's affair.
WORK_BY_PAGES = {"ExamineStore", "ExportTask"}
WITHOUT_TOKEN = {
    "KeepAliveResponse",
    "CloseSessionResponse",
    "AcquireLockResponse",
    "ClaimEntryResponse",
    "ClaimNextStepResponse",
}
VERBS_OF_THE_BOARD = (
    "Get",
    "BatchGet",
    "List",
    "Watch",
    "Commit",
    "Compact",
    "Check",
    "Create",
    "Delete",
    "Set",
    "Explain",
    "Verify",
    "Examine",
    "Summarize",
)
VERBS_OF_TRUST = ("Endorse", "List", "Review", "Screen", "Redact", "Reveal", "Trace", "Purge", "Erase")
VERBS_OF_TASKS = ("Create", "Get", "List", "Claim", "WaitFor", "Resume", "Cancel", "Export", "Archive", "Restore")
VERBS_OF_LOCKS = ("Open", "Keep", "Close", "Acquire", "Claim", "Downgrade", "Release", "Break")
DURATIONS = {
    "ttl",
    "heartbeat_age",
    "lock_delay",
    "notes_ttl",
    "retry_delay",
    "wait",
    "waited",
    "hold_max",
    "history_age_max",
    "default_ttl",
    "back_off",
}


def methods(api: Files) -> Iterator[tuple[str, Method]]:
    for file in api:
        for service in file.service:
            for method in service.method:
                yield service.name, method


def messages(api: Files) -> dict[str, Message]:
    return {message.name: message for file in api for message in file.message_type}


def request_of(api: Files, method: Method) -> Message:
    return messages(api)[method.input_type.rsplit(".", 1)[-1]]


def response_of(api: Files, method: Method) -> Message:
    return messages(api)[method.output_type.rsplit(".", 1)[-1]]


def fields(message: Message) -> dict[str, Field]:
    return {field.name: field for field in message.field}


def test_the_services_are_the_ones_that_are_served(api: Files) -> None:
    served = {f"{service}.{method.name}" for service, method in methods(api)}
    assert served == {
        "BoardService.Commit",
        "BoardService.CommitStream",
        "BoardService.GetEntry",
        "BoardService.BatchGetEntries",
        "BoardService.ListEntries",
        "BoardService.ListRevisions",
        "BoardService.Watch",
        "BoardService.CheckCurrent",
        "SessionService.OpenSession",
        "SessionService.KeepAlive",
        "SessionService.CloseSession",
        "SessionService.ListSessions",
        "LockService.AcquireLock",
        "LockService.ClaimEntry",
        "LockService.DowngradeLock",
        "LockService.ReleaseLock",
        "LockService.ListLocks",
        "LockService.BreakLock",
        "TaskService.CreateTask",
        "TaskService.GetTask",
        "TaskService.ListTasks",
        "TaskService.ListEvents",
        "TaskService.ClaimNextStep",
        "TaskService.WaitForTask",
        "TaskService.ResumeTask",
        "TaskService.CancelTask",
        "TaskService.ExportTask",
        "TaskService.ArchiveTask",
        "TaskService.RestoreTask",
        "ConflictService.ListConflicts",
        "ConflictService.WatchConflicts",
        "ConflictService.SummarizeConflicts",
        "AdminService.GetStatus",
        "AdminService.CreateBoard",
        "AdminService.GetBoard",
        "AdminService.ListBoards",
        "AdminService.DeleteBoard",
        "AdminService.GetPolicy",
        "AdminService.SetPolicy",
        "AdminService.ExplainAccess",
        "AdminService.Compact",
        "AdminService.ListAuditRecords",
        "AdminService.VerifyAudit",
        "AdminService.ExamineStore",
        "TrustService.Endorse",
        "TrustService.ListQuarantine",
        "TrustService.ReviewQuarantine",
        "TrustService.ScreenText",
        "TrustService.RedactText",
        "TrustService.RevealEntry",
        "TrustService.TraceProvenance",
        "TrustService.PurgeSource",
        "TrustService.EraseSubject",
        "TrustService.GetRemoval",
        "TrustService.ListRemovals",
    }


def test_everything_has_a_comment_that_says_something(api: Files, comments: dict[str, str]) -> None:
    """AIP-192. A field's comment starts with its name, and is a sentence."""
    fields_of_api = {
        f"{name}.{field.name}": field for name, message in messages(api).items() for field in message.field
    }
    assert set(fields_of_api) <= set(comments)
    for name, comment in comments.items():
        assert len(comment) > len("Never sent"), name
        assert comment.endswith("."), name
    for name, field in fields_of_api.items():
        assert comments[name].startswith(f"{field.name} "), name


def test_every_method_says_what_it_does(api: Files, comments: dict[str, str]) -> None:
    for service, method in methods(api):
        assert comments[f"{service}.{method.name}"].startswith(f"{method.name} "), method.name


def test_a_method_is_a_verb_with_its_own_request_and_response(api: Files) -> None:
    """AIP-131 to 136. Requests and responses are shared by no two methods, so that each can grow alone."""
    for service, method in methods(api):
        assert method.name.startswith(VERBS_OF_THE_BOARD + VERBS_OF_LOCKS + VERBS_OF_TRUST + VERBS_OF_TASKS), (
            service,
            method.name,
        )
        assert request_of(api, method).name == f"{method.name}Request"
        assert response_of(api, method).name == f"{method.name}Response"


def test_a_request_names_its_board_and_names_it_first(api: Files) -> None:
    """Also every request that names a region or an entry: the tenant comes from the credential, the board from the caller."""
    for _, method in methods(api):
        request = request_of(api, method)
        if request.name in WITHOUT_BOARD | ENVELOPES:
            assert not {"region", "key", "keys", "path", "targets"} & set(fields(request)), request.name
            continue
        assert request.field[0].name == "board", request.name
        assert request.field[0].number == 1, request.name
        assert request.field[0].type == Field.TYPE_STRING, request.name


def test_no_request_says_who_is_calling(api: Files) -> None:
    for name, message in messages(api).items():
        if name.endswith("Request"):
            assert not {"tenant", "agent", "principal", "role", "roles", "author"} & set(fields(message)), name


def test_every_answer_has_a_token(api: Files) -> None:
    for _, method in methods(api):
        response = response_of(api, method)
        if response.name not in ENVELOPES | WITHOUT_TOKEN:
            assert fields(response)["token"].type == Field.TYPE_STRING, response.name


def test_paging_comes_whole(api: Files) -> None:
    """AIP-158. Page size and both page tokens, or none of them; every listing has them."""
    for _, method in methods(api):
        request, response = fields(request_of(api, method)), fields(response_of(api, method))
        paged = "page_size" in request
        if method.name in WORK_BY_PAGES:
            assert not paged
            assert "page_token" in request
            assert "next_page_token" in response
            continue
        assert paged == method.name.startswith("List"), method.name
        assert ("page_token" in request) == paged == ("next_page_token" in response), method.name
        if paged:
            assert request["page_size"].type == Field.TYPE_INT32
            assert request["page_token"].type == response["next_page_token"].type == Field.TYPE_STRING
            assert response_of(api, method).field[0].label == Field.LABEL_REPEATED, method.name


def test_a_write_has_a_request_id(api: Files) -> None:
    """AIP-155. What releases, downgrades or closes is the same however often it is done, and a break is told by its lock."""
    for name in (
        "CommitRequest",
        "OpenSessionRequest",
        "AcquireLockRequest",
        "ClaimEntryRequest",
        "CreateTaskRequest",
        "ClaimNextStepRequest",
        "ResumeTaskRequest",
        "CancelTaskRequest",
        "ArchiveTaskRequest",
        "RestoreTaskRequest",
    ):
        assert fields(messages(api)[name])["request_id"].type == Field.TYPE_STRING


def test_a_mutation_says_what_its_writer_believes_or_commutes(api: Files) -> None:
    commuting = {"Increment", "AppendToList", "AddToSet"}
    for field in messages(api)["Mutation"].field:
        name = field.type_name.rsplit(".", 1)[-1]
        mutation = fields(messages(api)[name])
        if name == "ReleaseLock":  # writes no entry; its belief is the fence
            assert set(mutation) == {"fence"}
            continue
        if "task" in mutation:  # appends to a log, where what may follow on what is told by the events before
            assert mutation["task"].number == 1, name
            assert "precondition" not in mutation, name
            continue
        assert mutation["key"].number == 1, name
        assert ("precondition" in mutation) == (name not in commuting), name


def test_times_and_durations_are_typed_and_named_for_what_they_are(api: Files) -> None:
    """AIP-142."""
    for name, message in messages(api).items():
        for field in message.field:
            is_time = field.type_name == ".google.protobuf.Timestamp"
            assert field.name.endswith("_time") == is_time, (name, field.name)
            if field.type_name == ".google.protobuf.Duration":
                assert field.name in DURATIONS, (name, field.name)


def test_names_are_whole_words_in_one_spelling(api: Files) -> None:
    """AIP-140 and 190; and no word of ours for what has another."""
    foreign = re.compile(
        r"(?:^|_)(?:version|etag|ver|rev|ts|val|cfg|id_list|info|data_list|namespace|scope|timestamp)(?:_|$)"
    )
    for name, message in messages(api).items():
        assert re.fullmatch(r"(?:[A-Z][a-z0-9]+)+", name), name
        for field in message.field:
            assert re.fullmatch(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*", field.name), (name, field.name)
            allowed = name == "GetStatusResponse" and field.name in {"server_version", "store_version"}
            allowed = (
                allowed or field.type_name == ".kokuban.v1.LockScope"
            )  # of a path; a read scope is called so in full
            assert allowed or not foreign.search(field.name), (name, field.name)


def test_repeated_fields_are_plural_and_single_ones_are_not_lists(api: Files) -> None:
    """AIP-140."""
    for name, message in messages(api).items():
        for field in message.field:
            if field.label == Field.LABEL_REPEATED and not field.name.startswith(
                ("missing", "waits_for", "held_by", "derived_from", "depends_on")
            ):
                assert field.name.endswith("s") or field.name == "metadata", (name, field.name)


def test_an_enum_starts_with_a_value_that_is_never_sent(api: Files, comments: dict[str, str]) -> None:
    """AIP-126."""
    enums = [enum for file in api for enum in file.enum_type]
    assert enums
    for enum in enums:
        assert enum.value[0].name.endswith("_UNSPECIFIED"), enum.name
        assert comments[f"{enum.name}.{enum.value[0].name}"] == "Never sent.", enum.name


@pytest.mark.parametrize("choice", ["Precondition.condition", "ReadConsistency.level", "WatchRequest.start"])
def test_a_choice_that_is_a_word_alone_may_only_be_true(api: Files, comments: dict[str, str], choice: str) -> None:
    """So that unset, false and true are never three spellings of two meanings (AB-02)."""
    name, oneof = choice.split(".")
    message = messages(api)[name]
    place = [declared.name for declared in message.oneof_decl].index(oneof)
    words = [field for field in message.field if field.HasField("oneof_index") and field.oneof_index == place]
    flags = [field for field in words if field.type == Field.TYPE_BOOL]
    assert flags
    for field in flags:
        assert "It may only be true." in comments[f"{name}.{field.name}"], field.name


def test_AB_02_no_number_or_empty_text_means_that_there_is_no_precondition(api: Files) -> None:
    """What a writer believes is a message with a choice: unset is seen, and is refused."""
    for name, message in messages(api).items():
        for field in message.field:
            if "precondition" in field.name:
                assert field.type == Field.TYPE_MESSAGE, (name, field.name)
            assert field.name not in {"expected_revision", "if_revision", "expected_version"}, (name, field.name)
    assert [declared.name for declared in messages(api)["Precondition"].oneof_decl] == ["condition"]
