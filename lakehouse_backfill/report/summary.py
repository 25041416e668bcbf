"""The first screen: what changes, by how much, is it safe, who decided; what is wanted next."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.approval.decisions import waive_command
from lakehouse_backfill.core.planning.target import column_scope, row_changes
from lakehouse_backfill.domain.checks import CheckResult, MeasureTotal
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.tables.schema_change import describe_schema_step
from lakehouse_backfill.report import html
from lakehouse_backfill.report.changes import parse_amount
from lakehouse_backfill.report.dossier import ENDING_WORDS, CheckVerdict, Dossier

STATE_TONES = {
    RunState.PUBLISHED: ("good", "✓"),
    RunState.FAILED: ("bad", "✗"),
    RunState.REJECTED: ("bad", "✗"),
    RunState.HALTED: ("bad", "✗"),
    RunState.PUBLISH_HALTED: ("bad", "✗"),
    RunState.ROLLED_BACK: ("warn", "↩"),
    RunState.CANCELLED: ("warn", html.NO_VALUE),
    RunState.SUPERSEDED: ("warn", html.NO_VALUE),
}
#: Of every other state.
UNDER_WAY = ("warn", "…")
#: Names on the first screen; the sections below have the others.
_MAX_NAMES = 3


@dataclass(frozen=True)
class Answer:
    """A question of the first screen, its answer in large letters, and lines below it.

    Of the lines, a phone leaves out those in `more`.
    """

    question: str
    big: str
    lines: tuple[str, ...]
    more: frozenset[str] = frozenset()


def heading_facts(dossier: Dossier) -> dict[str, Any]:
    """Return where the run stands, and the answers to the four first questions."""
    resolved, run = dossier.plan.resolved, dossier.run
    tone, symbol = STATE_TONES.get(run.state, UNDER_WAY)
    return {
        "state": {"tone": tone, "text": f"{symbol} {_state_text(dossier)}"},
        "schema_steps": [
            describe_schema_step(step) for step in resolved.manifest.target.schema_change
        ],
        "intolerant": [
            one.name for one in resolved.contract.consumers or () if not one.tolerates_restatement
        ],
        "max_names": _MAX_NAMES,
        "outside": _outside_text(dossier),
        "is_other_changed": _outside_check(dossier, passed=False) is not None,
        "rows": row_changes.describe_row_predicate(resolved.manifest.target),
        "columns": column_scope.describe_columns(resolved.manifest.target),
        "wanted": find_next_act(dossier),
        "answers": (_size_answer(dossier), _safety_answer(dossier), _approval_answer(dossier)),
    }


#: The gate that compares what the run may not change.
_OUTSIDE_GATE = "nothing outside the partitions changed"


def _outside_text(dossier: Dossier) -> Markup | str:
    """Say whether anything else changes, as far as that was compared."""
    if found := _outside_check(dossier, passed=True):
        return f"Nothing outside these partitions changes: {found.detail}."
    if found := _outside_check(dossier, passed=False):
        text = Markup('<span class="bad">✗ Files outside these partitions differ: {}</span>')
        return text.format(found.detail)
    return "Nothing else may change; that was not compared yet."


def _outside_check(dossier: Dossier, *, passed: bool) -> CheckResult | None:
    checks = dossier.validation.checks if dossier.validation else ()
    wanted_result = (_OUTSIDE_GATE, passed)
    return next((one for one in checks if (one.name, one.passed) == wanted_result), None)


def _state_text(dossier: Dossier) -> str:
    run, ending = dossier.run, dossier.ending
    if dossier.publication and run.state is RunState.PUBLISHED:
        return f"published as version {dossier.publication.version}"
    if run.state is RunState.REJECTED and ending is None:
        return "rejected by checks"
    if ending is not None:
        return f"{ENDING_WORDS[ending.verb]} by {ending.actor}"
    return run.state.value.replace("_", " ")


def _mark(tone: str, text: str) -> Markup:
    return Markup('<span class="mark {}">{}</span>').format(tone, text)


def _most_changed(totals: Sequence[MeasureTotal]) -> list[MeasureTotal]:
    """Return the totals by the share by which they change, the largest first."""

    def share(total: MeasureTotal) -> float:
        before, after = parse_amount(total.old), parse_amount(total.new)
        if before is None or after is None or before == after:
            return 0.0
        return abs(float(after - before) / float(before)) if before else math.inf

    return sorted(totals, key=share, reverse=True)


def _size_answer(dossier: Dossier) -> Answer:
    question = "By how much?"
    if dossier.validation is None:
        return Answer(question, "not known yet", ("The run was not validated.",))
    found = dossier.validation.diff.summary
    touched = found.added + found.removed + found.changed
    share = f"{html.format_percent(touched, max(found.old_rows, found.new_rows))} of the rows there"
    if dossier.is_first_load:
        share = "first rows: nothing was there before"
    lines = [
        f"{found.changed:,} changed, {found.added:,} added, {found.removed:,} removed, "
        f"{found.unchanged:,} unchanged",
    ]
    for total in _most_changed(dossier.validation.totals)[:2]:
        before, after = parse_amount(total.old), parse_amount(total.new)
        if dossier.is_first_load and after is not None:
            lines.append(f"{total.name}: none → {html.format_number(after)}")
        elif before is not None and after is not None:
            old, new = html.format_number(before), html.format_number(after)
            lines.append(f"{total.name}: {old} → {new} ({html.format_signed(after - before)})")
    return Answer(question, f"{touched:,} rows", (share, *lines), frozenset(lines))


def _safety_answer(dossier: Dossier) -> Answer:
    question, safety = "Is it safe?", dossier.safety_summary
    verdicts = dossier.verdicts
    if dossier.validation is None and not verdicts:
        is_untouched = dossier.run.state not in (
            RunState.PUBLISHING, RunState.PUBLISH_HALTED, RunState.PUBLISHED, RunState.ROLLED_BACK,
        )  # fmt: skip
        big = _mark("good", "✓ nothing is published") if is_untouched else "unknown"
        return Answer(question, big, (safety.is_safe,))
    failed = [each for each in verdicts if each.is_open]
    named = [f"Failed: {_verdict_name(each)}" for each in failed[:_MAX_NAMES]]
    waived = [(each, each.waiver.by) for each in verdicts if each.waiver]
    named += [f"Waived by {who}: {_verdict_name(each)}" for each, who in waived[:_MAX_NAMES]]
    lines = ["The output is not validated yet."] if dossier.validation is None else []
    text = dossier.verdict_counts
    if dossier.run.state is RunState.ROLLED_BACK:
        # That it passed its checks is not what matters of a run that was rolled back.
        big, lines = _mark("warn", "↩ rolled back"), [text, *lines]
    elif failed:
        big = _mark("bad", f"✗ {text}")
    elif waived:
        big = _mark("warn", f"! {text}")
    else:
        big = _mark("good", f"✓ {text}")
    seen = f"Readers see: {safety.readers_see}."
    lines += [*named, f"Data: {safety.is_safe}.", seen]
    return Answer(question, big, tuple(lines), frozenset({*named[1:], seen}))


def _verdict_name(verdict: CheckVerdict) -> str:
    return f"{verdict.title} ({verdict.subject})"


def _approval_answer(dossier: Dossier) -> Answer:
    question, publication, ending = "Who approved?", dossier.publication, dossier.ending
    requested = f"Requested by {dossier.plan.resolved.manifest.run.requested_by}"
    if ending is not None and ending.verb == "reject":
        big = _mark("bad", f"✗ rejected by {ending.actor}")
        return Answer(question, big, (dossier.ending_sentence, requested))
    published = (
        f"{publication.by}, {html.format_moment(publication.at)}" if publication else "nobody yet"
    )
    more = (requested, f"Published by {published}")
    accepted = f"Result accepted by {dossier.deciders('accept')}"
    lines = (requested, accepted, more[1], dossier.ending_sentence)
    return Answer(question, dossier.deciders("approve"), lines, frozenset(more))


_S = RunState
_SENTENCES: dict[RunState, str] = {
    _S.PLANNED: "Approve the plan before anything is computed, or reject it.",
    _S.APPROVED: "No decision: the run may be computed.",
    _S.STAGING: "No decision: the run is being computed.",
    _S.PAUSED: "When the run goes on: unpause it.",
    _S.STAGED: "No decision yet: the output has to be checked first.",
    _S.VALIDATED: "Accept this result, or reject it.",
    _S.ACCEPTED: "Publish it: the result is accepted.",
    _S.PUBLISHING: "Finish the publication, which was begun.",
    _S.PUBLISH_HALTED: "Find out why a step failed; then publish the rest, or roll back.",
    _S.PUBLISHED: "Nothing. Take it back only if it is wrong.",
    _S.ROLLED_BACK: "Nothing: it was taken back.",
    _S.FAILED: "Correct what failed (the log tells it), then go on.",
    _S.CANCELLED: "Nothing: the run is closed.",
    _S.SUPERSEDED: "Nothing: another run took its place.",
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
    if run.state in (_S.PLANNED, _S.VALIDATED):
        commands.append(command_line("reject", run.run_id, "--reason", "TEXT"))
    if run.state in (_S.REJECTED, _S.HALTED):
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
