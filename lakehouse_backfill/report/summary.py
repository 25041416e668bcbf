"""The first screen: what changes, by how much, is it safe, who decided; then why and for whom."""

from __future__ import annotations

from lakehouse_backfill.model.run import State
from lakehouse_backfill.report.amounts import amount
from lakehouse_backfill.report.dossier import Dossier, Verdict
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
    State.ROLLED_BACK: ("warn", "↩"),
    State.CANCELLED: ("warn", NOTHING),
    State.SUPERSEDED: ("warn", NOTHING),
}


def heading(dossier: Dossier) -> Markup:
    """Say which run this is and where it stands."""
    intent, run = dossier.plan.resolved.manifest.run, dossier.run
    tone, symbol = _TONES.get(run.state, ("warn", "…"))
    state = run.state.value.replace("_", " ")
    if dossier.publication and run.state is State.PUBLISHED:
        state = f"published as version {dossier.publication.version}"
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
    )


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
        if before is not None and after is not None:
            change = signed(after - before)
            lines.append(f"{total.name}: {number(before)} → {number(after)} ({change})")
    old = f"{share(touched, max(found.old_rows, found.new_rows))} of the rows there"
    return _answer("By how much?", f"{touched:,} rows", old, *lines)


def _safe(dossier: Dossier) -> Markup:
    counted = [each for each in dossier.verdicts if each.check.blocking]
    if dossier.validation is None and not counted:
        verdict = mark(good=True, yes="nothing was changed") if _untouched(dossier) else "unknown"
        return _answer("Is it safe?", verdict, dossier.standing.is_safe)
    failed = [each for each in counted if each.is_open]
    lines: list[object] = [f"Failed: {each.check.name}" for each in failed[:3]]
    lines += [f"Waived by {each.waiver.by}: {each.check.name}" for each in counted if each.waiver][
        :3
    ]
    if dossier.validation is None:
        lines.append("The output is not validated yet.")
    return _answer(
        "Is it safe?",
        _passed(counted),
        *lines,
        f"Data: {dossier.standing.is_safe}.",
        f"Readers see: {dossier.standing.readers_see}.",
    )


def _passed(counted: list[Verdict]) -> Markup:
    passed = sum(1 for each in counted if each.check.passed)
    failed = any(each.is_open for each in counted)
    words = f"{passed:,} of {len(counted):,} checks passed"
    if passed < len(counted) and not failed:
        return tag("span", f"! {words}, {len(counted) - passed} waived", class_="mark warn")
    return mark(good=not failed, yes=words, no=words)


def _untouched(dossier: Dossier) -> bool:
    return dossier.run.state not in (State.PUBLISHING, State.PUBLISHED, State.ROLLED_BACK)


def _who(dossier: Dossier) -> Markup:
    publication = dossier.publication
    published = f"{publication.by}, {moment(publication.at)}" if publication else "nobody yet"
    return _answer(
        "Who approved?",
        dossier.deciders("approve"),
        f"Requested by {dossier.plan.resolved.manifest.run.requested_by}",
        f"Result accepted by {dossier.deciders('accept')}",
        f"Published by {published}",
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
