"""Options that several commands have, and what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_client.types import Consistency, Fence, Revision, Source, Trust


def consistency_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command be told how fresh its answer must be."""
    for one in (
        click.option("--local", is_flag=True, help="Answer from what the server has at hand, which may be stale."),
        click.option("--snapshot", metavar="TOKEN", help="Answer from exactly this state."),
        click.option("--at-least", metavar="TOKEN", help="Answer from a state at least as fresh as this."),
    ):
        command = one(command)
    return command


def consistency_of(at_least: str | None, snapshot: str | None, *, local: bool) -> Consistency:
    """Give how fresh a read must be."""
    from kokuban_client import types  # noqa: PLC0415 - `--help` does not need it

    if bool(at_least) + bool(snapshot) + local > 1:
        raise click.UsageError("give at most one of --at-least, --snapshot, --local")
    if at_least:
        return types.AtLeast(at_least)
    if snapshot:
        return types.Snapshot(snapshot)
    return types.Freshness.LOCAL if local else types.Freshness.STRONG


def revision_of(text: str) -> Revision:
    """Give the revision of a text."""
    from kokuban_client.types import Revision  # noqa: PLC0415 - as above

    try:
        return Revision.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--at") from error


LEVELS = ("external", "agent", "user", "operator", "system")
SOURCE_KINDS = ("agent", "user", "tool", "external")


def floor_option(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command be told how much trust is wanted."""
    return click.option(
        "--floor",
        type=click.Choice(LEVELS),
        help="The least trusted to show; `external` shows also what came from outside. [the region's]",
    )(command)


def trust_of(name: str | None) -> Trust | None:
    """Give the level of a name."""
    from kokuban_client.types import Trust  # noqa: PLC0415 - as above

    return None if name is None else Trust[name.upper()]


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command be told where a value comes from."""
    for one in (
        click.option(
            "--derived-from",
            multiple=True,
            metavar="REGION/PATH@REVISION",
            help="A state that it is made of; may be given several times.",
        ),
        click.option("--source-name", default="", metavar="NAME", help="The user, or the tool. Goes with --source."),
        click.option("--uri", default="", help="What names the source. Goes with --source."),
        click.option(
            "--source", type=click.Choice(SOURCE_KINDS), help="Where it comes from, if it is not your own word."
        ),
    ):
        command = one(command)
    return command


def source_of(kind: str | None, uri: str, name: str) -> Source | None:
    """Give a source, if one is named."""
    from kokuban_client.types import Source, SourceKind  # noqa: PLC0415 - as above

    if kind is None:
        if uri or name:
            raise click.UsageError("--uri and --source-name go with --source")
        return None
    return Source(SourceKind(kind), uri, name)


def states_of(texts: tuple[str, ...]) -> list[tuple[str, str, Revision]]:
    """Give the states that texts name."""
    from kokuban_client.types import Revision  # noqa: PLC0415 - as above

    states = []
    for text in texts:
        try:
            key, number, epoch = text.rsplit("@", 2)
            region, path = key.split("/", 1)
            states.append((region, path, Revision.parse(f"{number}@{epoch}")))
        except ValueError:
            raise click.BadParameter(f"{text!r} is not REGION/PATH@REVISION", param_hint="--derived-from") from None
    return states


def fence_option(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command be given locks to write under."""
    return click.option(
        "--fence",
        "fences",
        multiple=True,
        envvar="KOKUBAN_FENCE",
        show_envvar=True,
        metavar="FENCE",
        help="The proof of a lock to write under; may be given several times.",
    )(command)


def fences_of(texts: tuple[str, ...]) -> list[Fence]:
    """Give the fences of texts."""
    from kokuban_client.types import Fence  # noqa: PLC0415 - as above

    try:
        return [Fence.parse(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--fence") from error
