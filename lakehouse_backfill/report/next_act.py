"""What is wanted of the reader of the page, with the commands to type."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.approval.decisions import waive_command
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.report.dossier import Dossier

S = RunState
_SENTENCES: dict[RunState, str] = {
    S.PLANNED: "Approve the plan before anything is computed, or reject it.",
    S.APPROVED: "No decision: the run may be computed.",
    S.STAGING: "No decision: the run is being computed.",
    S.PAUSED: "When the run goes on: unpause it.",
    S.STAGED: "No decision yet: the output has to be checked first.",
    S.VALIDATED: "Accept this result, or reject it.",
    S.ACCEPTED: "Publish it: the result is accepted.",
    S.PUBLISHING: "Finish the publication, which was begun.",
    S.PUBLISH_HALTED: "Find out why a step failed; then publish the rest, or roll back.",
    S.PUBLISHED: "Nothing. Take it back only if it is wrong.",
    S.ROLLED_BACK: "Nothing: it was taken back.",
    S.FAILED: "Correct what failed (the log tells it), then go on.",
    S.CANCELLED: "Nothing: the run is closed.",
    S.SUPERSEDED: "Nothing: another run took its place.",
}
_CORRECT = "Correct the cause and plan again"
#: Commands that waive, on the first screen; `waive RUN --list` names all.
_MAX_WAIVED = 1
#: A longer command is left to the last section: the first screen could not hold it.
_MAX_COMMAND = 2_000


@dataclass(frozen=True)
class NextAct:
    """A sentence, the commands of which one is to be typed, and what is said of them."""

    sentence: str
    commands: tuple[str, ...]
    remark: str = ""


def find_next_act(dossier: Dossier) -> NextAct:
    """Return the act that the run waits for, with its commands as they are typed."""
    run, next_command = dossier.run, dossier.safety_summary.next_command
    command, *remarks = re.split(r" +[(#] *", next_command, maxsplit=1)
    is_said = run.state is RunState.PUBLISHED  # by the sentence
    remark = remarks[0].rstrip(")") if remarks and not is_said else ""
    sentence, commands = _SENTENCES.get(run.state, "Nothing."), [command]
    if run.state in (S.PLANNED, S.VALIDATED):
        commands.append(command_line("reject", run.run_id, "--reason", "TEXT"))
    if run.state in (S.REJECTED, S.HALTED):
        sentence, waivers = f"{_CORRECT}.", _waivers(dossier)
        if waivers:
            sentence = f"{_CORRECT}; or let what failed pass, for the record."
            commands += waivers
    typed = (dossier.typed(one) for one in commands)
    shown = tuple(one for one in typed if len(one) <= _MAX_COMMAND)
    return NextAct(sentence, shown, remark[:_MAX_COMMAND])


def _waivers(dossier: Dossier) -> list[str]:
    """Return how to let pass what failed; nothing where that is not possible."""
    closed = [each for each in dossier.verdicts if each.is_open]
    if dossier.ending is not None or not all(each.check.waivable for each in closed):
        return []
    run_id, titles = dossier.run.run_id, list(dict.fromkeys(each.title for each in closed))
    found = [waive_command(run_id, title) for title in titles[:_MAX_WAIVED]]
    if len(titles) > _MAX_WAIVED:
        found = [command_line("waive", run_id, "--list")]
    return found
