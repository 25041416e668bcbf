"""The first screen: what changes, by how much, is it safe, who decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from lakehouse_backfill.domain import table
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.report import html
from lakehouse_backfill.report.changes import parse_amount
from lakehouse_backfill.report.dossier import ENDING_WORDS, CheckVerdict, Dossier

_STATE_TONES = {
    RunState.PUBLISHED: ("good", "✓"),
    RunState.FAILED: ("bad", "✗"),
    RunState.REJECTED: ("bad", "✗"),
    RunState.HALTED: ("bad", "✗"),
    RunState.PUBLISH_HALTED: ("bad", "✗"),
    RunState.ROLLED_BACK: ("warn", "↩"),
    RunState.CANCELLED: ("warn", html.NO_VALUE),
    RunState.SUPERSEDED: ("warn", html.NO_VALUE),
}
#: Names on the first screen; the sections below have the others.
_MAX_NAMES = 3


@dataclass(frozen=True)
class Answer:
    """A question of the first screen, its answer in large letters, and lines below it."""

    question: str
    big: str
    lines: tuple[str, ...]


def heading_facts(dossier: Dossier) -> dict[str, Any]:
    """Return where the run stands, and the answers to the four first questions."""
    resolved, run = dossier.plan.resolved, dossier.run
    tone, symbol = _STATE_TONES.get(run.state, ("warn", "…"))
    return {
        "state": {"tone": tone, "text": f"{symbol} {_state_text(dossier)}"},
        "schema_steps": [
            table.describe_schema_step(step) for step in resolved.manifest.target.schema_change
        ],
        "intolerant": [
            one.name for one in resolved.contract.consumers or () if not one.tolerates_restatement
        ],
        "max_names": _MAX_NAMES,
        "answers": (_size_answer(dossier), _safety_answer(dossier), _approval_answer(dossier)),
    }


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


def _size_answer(dossier: Dossier) -> Answer:
    question = "By how much?"
    if dossier.validation is None:
        return Answer(question, "not known yet", ("The run was not validated.",))
    found = dossier.validation.diff.summary
    touched = found.added + found.removed + found.changed
    lines = [
        f"{html.format_percent(touched, max(found.old_rows, found.new_rows))} of the rows there",
        f"{found.changed:,} changed, {found.added:,} added, {found.removed:,} removed, "
        f"{found.unchanged:,} unchanged",
    ]
    if dossier.is_first_load:
        lines[0] = "first rows: nothing was there before"
    for total in dossier.validation.totals[:2]:
        before, after = parse_amount(total.old), parse_amount(total.new)
        if dossier.is_first_load and after is not None:
            lines.append(f"{total.name}: none → {html.format_number(after)}")
        elif before is not None and after is not None:
            old, new = html.format_number(before), html.format_number(after)
            lines.append(f"{total.name}: {old} → {new} ({html.format_signed(after - before)})")
    return Answer(question, f"{touched:,} rows", tuple(lines))


def _safety_answer(dossier: Dossier) -> Answer:
    question, safety = "Is it safe?", dossier.safety_summary
    counted = [each for each in dossier.verdicts if each.check.blocking]
    if dossier.validation is None and not counted:
        is_untouched = dossier.run.state not in (
            RunState.PUBLISHING, RunState.PUBLISH_HALTED, RunState.PUBLISHED, RunState.ROLLED_BACK,
        )  # fmt: skip
        big = _mark("good", "✓ nothing is published") if is_untouched else "unknown"
        return Answer(question, big, (safety.is_safe,))
    failed = [each for each in counted if each.is_open]
    lines = [f"Failed: {_verdict_name(each)}" for each in failed[:_MAX_NAMES]]
    waived = [(each, each.waiver.by) for each in counted if each.waiver]
    lines += [f"Waived by {who}: {_verdict_name(each)}" for each, who in waived[:_MAX_NAMES]]
    if dossier.validation is None:
        lines.append("The output is not validated yet.")
    passed = sum(1 for each in counted if each.check.passed)
    text = f"{passed:,} of {len(counted):,} checks passed"
    if dossier.run.state is RunState.ROLLED_BACK:
        # That it passed its checks is not what matters of a run that was rolled back.
        big, lines = _mark("warn", "↩ rolled back"), [text, *lines]
    elif failed:
        big = _mark("bad", f"✗ {text}")
    elif passed < len(counted):
        big = _mark("warn", f"! {text}, {len(counted) - passed} waived")
    else:
        big = _mark("good", f"✓ {text}")
    lines += [f"Data: {safety.is_safe}.", f"Readers see: {safety.readers_see}."]
    return Answer(question, big, tuple(lines))


def _verdict_name(verdict: CheckVerdict) -> str:
    return f"{verdict.check.name} ({verdict.subject})"


def _approval_answer(dossier: Dossier) -> Answer:
    question, publication, ending = "Who approved?", dossier.publication, dossier.ending
    requested = f"Requested by {dossier.plan.resolved.manifest.run.requested_by}"
    if ending is not None and ending.verb == "reject":
        big = _mark("bad", f"✗ rejected by {ending.actor}")
        return Answer(question, big, (dossier.ending_sentence, requested))
    published = (
        f"{publication.by}, {html.format_moment(publication.at)}" if publication else "nobody yet"
    )
    lines = (
        requested,
        f"Result accepted by {dossier.deciders('accept')}",
        f"Published by {published}",
        dossier.ending_sentence,
    )
    return Answer(question, dossier.deciders("approve"), lines)
