"""What `status RUN` answers first: is my data safe, what do readers see, what to type next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from lakehouse_backfill import commands
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.run import RunState

S = RunState


@dataclass(frozen=True)
class SafetySummary:
    """Three sentences for a person who is worried."""

    is_safe: str
    readers_see: str
    next_command: str


_OLD = "the accepted version as before; nothing of this run"
_SAFE = "yes: the target was not touched; work happens in a shadow table"

_SUMMARY_BY_STATE: dict[RunState, tuple[str, str, str]] = {
    S.DRAFT: (_SAFE, _OLD, "plan {manifest}"),
    S.PLANNED: (_SAFE, _OLD, "approve {run} --by WHO"),
    S.APPROVED: (_SAFE, _OLD, "run {run}"),
    S.STAGING: (_SAFE, _OLD, "run {run}"),
    S.STAGED: (_SAFE, _OLD, "validate {run}"),
    S.VALIDATED: (_SAFE, _OLD, "accept {run} --by WHO"),
    S.ACCEPTED: (_SAFE, _OLD, "publish {run}"),
    S.PUBLISHING: (
        "yes: publication is one commit; it landed whole or not at all",
        "either the old or the new partitions, never a mix",
        "publish {run}",
    ),
    S.PUBLISH_HALTED: (
        "yes: each step was one commit, and what it replaced is pinned and can come back",
        "the steps of this run that were published; the other partitions as before",
        "publish {run}   (goes on when the cause is gone)",
    ),
    S.PUBLISHED: (
        "yes: the old partitions are pinned and can come back",
        "the restated partitions of this run",
        "rollback {product} --reason TEXT   (only if you want them back)",
    ),
    S.ROLLED_BACK: (
        "yes: the old partitions are back, the new ones are kept in the shadow",
        "the version from before this run",
        "publish {run}   (publishes it again)",
    ),
    S.FAILED: (_SAFE, _OLD, "run {run}   (redoes only unfinished chunks)"),
    S.HALTED: (_SAFE, _OLD, "plan {manifest} --revise {run}"),
    S.PAUSED: (_SAFE, _OLD, "run {run}"),
    S.REJECTED: (_SAFE, _OLD, "plan {manifest} --revise {run}"),
    S.CANCELLED: (_SAFE, _OLD, "plan {manifest}"),
    S.SUPERSEDED: (_SAFE, "what the run that replaced it says", "status"),
}


#: Where nothing was there before the run: other words for what comes back.
_FIRST_ROWS_BY_STATE: dict[RunState, tuple[str, str, str]] = {
    S.PUBLISHING: (
        "yes: publication is one commit; it landed whole or not at all",
        "either the first rows of these partitions or none, never some of them",
        "publish {run}",
    ),
    S.PUBLISHED: (
        "yes: nothing was there before, so nothing was replaced",
        "the first rows of these partitions, by this run",
        "rollback {product} --reason TEXT   (only to empty these partitions again)",
    ),
    S.ROLLED_BACK: (
        "yes: the partitions are empty again, as before; the new rows are kept in the shadow",
        "no rows in these partitions, as before this run",
        "publish {run}   (publishes it again)",
    ),
}
_NO_ROWS = "no rows in these partitions, as before; nothing of this run"


#: Where another engine writes the shadow, instead of `run`.
_EXTERNAL_COMMANDS = {
    S.APPROVED: "shadow open {run}",
    S.PAUSED: "shadow close {run}   (once it is written)",
    S.FAILED: "shadow close {run}",
    S.HALTED: "shadow close {run}   (once it is corrected)",
}

#: States in which a run has a driver, and what it does.
_DRIVER_ACTIVITY = {S.STAGING: "staging", S.PUBLISHING: "publishing"}


def _summary_texts(state: RunState, *, was_empty: bool) -> tuple[str, str, str]:
    is_safe, readers_see, command = _SUMMARY_BY_STATE[state]
    if not was_empty:
        return is_safe, readers_see, command
    return _FIRST_ROWS_BY_STATE.get(
        state, (is_safe, _NO_ROWS if readers_see == _OLD else readers_see, command)
    )


def summarise_safety(
    state: RunState,
    run_id: str,
    product: str,
    *,
    gone: tuple[str, ...] = (),
    version: int = 0,
    driver: str | None = None,
    is_driven: bool = False,
    manifest_file: str = commands.MANIFEST_PLACEHOLDER,
    was_empty: bool = False,
    is_external: bool = False,
) -> SafetySummary:
    """Give the three answers for a run in `state`.

    `gone` are partitions of a published run that were rolled back since its output `version`.
    `driver` is who works on it; unless `is_driven`, that process is gone. `manifest_file` is what
    the run was planned from. `was_empty`: its partitions had no rows before. `is_external`: another
    engine writes its shadow.
    """
    is_safe, readers_see, command = _summary_texts(state, was_empty=was_empty)
    doing = _DRIVER_ACTIVITY.get(state, "validating")
    if is_driven:
        command = f"status {{run}}   ({driver} is {doing} it)"
    elif driver is not None:
        is_safe += f"; {driver} was {doing} it and is gone"
        if state in _DRIVER_ACTIVITY:
            command = "recover {run}"
    elif is_external:
        command = _EXTERNAL_COMMANDS.get(state, command)
    if gone:
        readers_see += f", except {partitions.describe_labels(gone)}, rolled back since"
        command = f"rollback {{product}} --to {version} --reason TEXT   (brings them back)"
    words = {"run": run_id, "product": product, "manifest": manifest_file}
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    text = f"{commands.PROGRAM} {command.format(**quoted)}"
    return SafetySummary(is_safe=is_safe, readers_see=readers_see, next_command=text)
