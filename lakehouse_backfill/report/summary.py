"""The first screen: what changes, by how much, is it safe, who decided; then why and for whom."""

from __future__ import annotations

from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.manifest import Target
from lakehouse_backfill.domain.run import State
from lakehouse_backfill.report.amounts import amount
from lakehouse_backfill.report.dossier import ENDINGS, Dossier, Verdict
from lakehouse_backfill.report.markup import (
    NOTHING,
    Markup,
    join,
    moment,
    number,
    share,
    signed,
    tag,
)
from lakehouse_backfill.report.parts import Column, code, facts, mark, section, table

_TONES = {
    State.PUBLISHED: ("good", "✓"),
    State.FAILED: ("bad", "✗"),
    State.REJECTED: ("bad", "✗"),
    State.HALTED: ("bad", "✗"),
    State.PUBLISH_HALTED: ("bad", "✗"),
    State.ROLLED_BACK: ("warn", "↩"),
    State.CANCELLED: ("warn", NOTHING),
    State.SUPERSEDED: ("warn", NOTHING),
}
#: Names on the first screen; the sections below have the others.
_NAMED = 3


def heading(dossier: Dossier) -> Markup:
    """Say which run this is and where it stands."""
    intent, run = dossier.plan.resolved.manifest.run, dossier.run
    tone, symbol = _TONES.get(run.state, ("warn", "…"))
    state = run.state.value.replace("_", " ")
    if dossier.publication and run.state is State.PUBLISHED:
        state = f"published as version {dossier.publication.version}"
    elif run.state is State.REJECTED and dossier.ending is None:
        state = "rejected by checks"
    elif dossier.ending is not None:
        state = f"{ENDINGS[dossier.ending.verb]} by {dossier.ending.actor}"
    return join(
        [
            tag("p", f"Evidence of run {run.run_id}", class_="soft small"),
            tag("h1", f"{intent.kind.capitalize()} of {dossier.plan.product}"),
            tag("p", tag("span", f"{symbol} {state}", class_=f"verdict {tone}")),
            tag("p", intent.reason),
        ]
    )


def answers(dossier: Dossier) -> Markup:
    """Answer the four first questions."""
    return tag(
        "div", _what(dossier), _how_much(dossier), _safe(dossier), _who(dossier), class_="answers"
    )


def _answer(question: str, big: object, *lines: object) -> Markup:
    shown = [tag("p", line) for line in lines if line]
    return tag("div", tag("h2", question), tag("p", big, class_="big"), *shown, class_="answer")


def _what(dossier: Dossier) -> Markup:
    resolved, labels = dossier.plan.resolved, dossier.plan.resolved.scope.partitions
    many = f"{len(labels):,} partitions" if len(labels) > 1 else "1 partition"
    return _answer(
        "What changes?",
        many,
        dossier.scope.removeprefix(f"{many}, "),
        join(["of ", code(resolved.target.table), " by ", code(resolved.scope.field.column)]),
        "Nothing outside these partitions.",
        _columns(resolved.manifest.target),
        _intolerant(dossier),
    )


def _columns(target: Target) -> Markup:
    """Say which columns the publication changes, for all readers of the table."""
    if not target.schema_change:
        return Markup("")
    said = ", ".join(map(rules_schema_change.describe, target.schema_change))
    return tag("span", f"Columns of the table: {said}")


def _intolerant(dossier: Dossier) -> Markup:
    """Name the consumers who do not want what they have read to change."""
    consumers = dossier.plan.resolved.contract.consumers or ()
    names = [item.name for item in consumers if not item.tolerates_restatement]
    if not names:
        return Markup("")
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    text = f"! Restatement not tolerated by {', '.join(names[:_NAMED])}{more}"
    return tag("span", text, class_="warn")


def _how_much(dossier: Dossier) -> Markup:
    if dossier.validation is None:
        return _answer("By how much?", "not known yet", "The run was not validated.")
    found = dossier.validation.diff.summary
    touched = found.added + found.removed + found.changed
    lines: list[object] = [
        f"{found.changed:,} changed, {found.added:,} added, {found.removed:,} removed, "
        f"{found.unchanged:,} unchanged"
    ]
    for total in dossier.validation.totals[:2]:
        before, after = amount(total.old), amount(total.new)
        if dossier.is_first and after is not None:
            lines.append(f"{total.name}: none → {number(after)}")
        elif before is not None and after is not None:
            change = signed(after - before)
            lines.append(f"{total.name}: {number(before)} → {number(after)} ({change})")
    old = f"{share(touched, max(found.old_rows, found.new_rows))} of the rows there"
    if dossier.is_first:
        old = "first rows: nothing was there before"
    return _answer("By how much?", f"{touched:,} rows", old, *lines)


def _safe(dossier: Dossier) -> Markup:
    counted = [each for each in dossier.verdicts if each.check.blocking]
    if dossier.validation is None and not counted:
        verdict = mark(good=True, yes="nothing was changed") if _untouched(dossier) else "unknown"
        return _answer("Is it safe?", verdict, dossier.standing.is_safe)
    failed = [each for each in counted if each.is_open]
    lines: list[object] = [f"Failed: {_named(each)}" for each in failed[:_NAMED]]
    waived = [(each, each.waiver.by) for each in counted if each.waiver]
    lines += [f"Waived by {who}: {_named(each)}" for each, who in waived[:_NAMED]]
    if dossier.validation is None:
        lines.append("The output is not validated yet.")
    big = _passed(counted)
    if dossier.run.state is State.ROLLED_BACK:
        # That it passed its checks is not what matters of a run that was taken back.
        big, lines = tag("span", "↩ taken back", class_="mark warn"), [_count(counted), *lines]
    return _answer(
        "Is it safe?",
        big,
        *lines,
        f"Data: {dossier.standing.is_safe}.",
        f"Readers see: {dossier.standing.readers_see}.",
    )


def _named(verdict: Verdict) -> str:
    return f"{verdict.check.name} ({verdict.subject})"


def _count(counted: list[Verdict]) -> str:
    passed = sum(1 for each in counted if each.check.passed)
    return f"{passed:,} of {len(counted):,} checks passed"


def _passed(counted: list[Verdict]) -> Markup:
    passed = sum(1 for each in counted if each.check.passed)
    failed = any(each.is_open for each in counted)
    words = _count(counted)
    if passed < len(counted) and not failed:
        return tag("span", f"! {words}, {len(counted) - passed} waived", class_="mark warn")
    return mark(good=not failed, yes=words, no=words)


def _untouched(dossier: Dossier) -> bool:
    return dossier.run.state not in (
        State.PUBLISHING, State.PUBLISH_HALTED, State.PUBLISHED, State.ROLLED_BACK,
    )  # fmt: skip


def _who(dossier: Dossier) -> Markup:
    publication, ending = dossier.publication, dossier.ending
    if ending is not None and ending.verb == "reject":
        return _answer(
            "Who approved?",
            mark(good=False, no=f"rejected by {ending.actor}"),
            dossier.ended,
            f"Requested by {dossier.plan.resolved.manifest.run.requested_by}",
        )
    published = f"{publication.by}, {moment(publication.at)}" if publication else "nobody yet"
    return _answer(
        "Who approved?",
        dossier.deciders("approve"),
        f"Requested by {dossier.plan.resolved.manifest.run.requested_by}",
        f"Result accepted by {dossier.deciders('accept')}",
        f"Published by {published}",
        dossier.ended,
    )


def why(dossier: Dossier) -> Markup:
    """Say why history changes, and who relies on it."""
    contract, intent = dossier.plan.resolved.contract, dossier.plan.resolved.manifest.run
    pairs = [
        ("Reason", f"{intent.reason} ({intent.reason_code})"),
        ("Requested by", intent.requested_by),
        ("Execution mode", intent.mode),
        ("Deadline", moment(intent.deadline) if intent.deadline else "none"),
        ("Product", contract.description),
        ("Owner", contract.owner),
        ("Classification", contract.classification or "not declared"),
    ]
    columns = (
        Column("Consumer", is_wide=True),
        Column("Contact"),
        Column("Restatement", is_word=True),
    )
    rows = [
        (item.name, item.contact or NOTHING, _tolerates(tolerates=item.tolerates_restatement))
        for item in contract.consumers or ()
    ]
    consumers = table(columns, rows) if rows else tag("p", "The contract names no consumer.")
    return section("why", "Why, and for whom", facts(pairs), tag("h3", "Consumers"), consumers)


def _tolerates(*, tolerates: bool) -> Markup:
    return mark(good=tolerates, yes="tolerated", no="not tolerated")
