"""First screen; how the result reaches readers.

How the result reaches readers: comparisons of readers, and steps; as data and on the page.

The first screen: what changes, by how much, is it safe, who decided; then why and for whom.
"""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain import table
from lakehouse_backfill.domain.manifest import Target
from lakehouse_backfill.domain.partitions import describe_labels
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.report.changes import parse_amount
from lakehouse_backfill.report.dossier import ENDING_WORDS, CheckVerdict, Dossier
from lakehouse_backfill.report.html import (
    NO_VALUE,
    Markup,
    TableColumn,
    code_text,
    fact_list,
    folded_details,
    format_moment,
    format_number,
    format_percent,
    format_signed,
    html_tag,
    join,
    page_section,
    page_table,
    verdict_mark,
)


def rollout_section(dossier: Dossier) -> Markup:
    """Show what readers compared, and the steps, where there are any."""
    return join([_reader_comparisons(dossier.dual_reads), _step_table(dossier.steps)])


def _reader_comparisons(found: tuple[dict[str, Any], ...]) -> Markup:
    if not found:
        return Markup("")
    heads = (
        TableColumn("Reader", is_word=True),
        TableColumn("Result"),
        TableColumn("Rows old, new"),
        TableColumn("By", is_word=True),
        TableColumn("At", is_wide=True),
        TableColumn("Seen", is_wide=True),
    )
    rows = [_reader_row(item) for item in found]
    lead = (
        "The same query of each reader, on the accepted version and on this candidate. A reader "
        "that is required and missing or different stops publication."
    )
    return html_tag(
        "div",
        html_tag("h3", "What readers compared"),
        html_tag("p", lead),
        page_table(heads, rows),
        *(_reader_query(item) for item in found if item.get("comparison")),
    )


def _reader_row(item: dict[str, Any]) -> tuple[Any, ...]:
    known = item.get("comparison") or {}
    outcome = str(item["outcome"])
    result = verdict_mark(good=outcome in ("equal", "accepted"), yes=outcome, no=outcome)
    if not item.get("required"):
        result = join([result, " (not required)"])
    rows = (
        f"{known['old_answer']['rows']:,}, {known['new_answer']['rows']:,}" if known else NO_VALUE
    )
    seen: Any = NO_VALUE
    if item.get("accepted_by"):
        seen = f"accepted by {item['accepted_by']}: {item.get('reason') or NO_VALUE}"
    elif known and not known["equal"]:
        seen = join([f"only old {known['only_old']}, ", f"only new {known['only_new']}"])
    at = format_moment(str(item["at"])) if item.get("at") else NO_VALUE
    return item["reader"], result, rows, item.get("by") or NO_VALUE, at, seen


def _reader_query(item: dict[str, Any]) -> Markup:
    known = item["comparison"]
    digests = html_tag(
        "p", "old ", code_text(known["old_answer"]["digest"][:16]), ", new ",
        code_text(known["new_answer"]["digest"][:16]), class_="small soft",
    )  # fmt: skip
    took = known.get("seconds")
    timed = f"It took {took[0]:.2f} s on the old and {took[1]:.2f} s on the new." if took else ""
    return folded_details(
        f"Query of {item['reader']}",
        html_tag("pre", code_text(known["sql"])),
        html_tag("p", timed),
        digests,
    )


def _step_table(found: tuple[dict[str, Any], ...]) -> Markup:
    if not found:
        return Markup("")
    heads = (
        TableColumn("Step", is_number=True),
        TableColumn("Partitions", is_wide=True),
        TableColumn("Version", is_number=True),
        TableColumn("Check"),
        TableColumn("Seen", is_wide=True),
    )
    rows = [
        (
            item["step"], describe_labels(tuple(item["partitions"])), item["version"],
            verdict_mark(good=bool(item["passed"])),
            "; ".join(str(check["detail"]) for check in item["checks"] if not check["passed"])
            or f"{len(item['checks'])} checks",
        )
        for item in found
    ]  # fmt: skip
    lead = "Each step is a version of its own, checked as readers see it before the next one."
    return html_tag(
        "div", html_tag("h3", "Published in steps"), html_tag("p", lead), page_table(heads, rows)
    )


_STATE_TONES = {
    RunState.PUBLISHED: ("good", "✓"),
    RunState.FAILED: ("bad", "✗"),
    RunState.REJECTED: ("bad", "✗"),
    RunState.HALTED: ("bad", "✗"),
    RunState.PUBLISH_HALTED: ("bad", "✗"),
    RunState.ROLLED_BACK: ("warn", "↩"),
    RunState.CANCELLED: ("warn", NO_VALUE),
    RunState.SUPERSEDED: ("warn", NO_VALUE),
}
#: Names on the first screen; the sections below have the others.
_MAX_NAMES = 3


def page_heading(dossier: Dossier) -> Markup:
    """Describe which run this is and where it stands."""
    intent, run = dossier.plan.resolved.manifest.run, dossier.run
    tone, symbol = _STATE_TONES.get(run.state, ("warn", "…"))
    state = run.state.value.replace("_", " ")
    if dossier.publication and run.state is RunState.PUBLISHED:
        state = f"published as version {dossier.publication.version}"
    elif run.state is RunState.REJECTED and dossier.ending is None:
        state = "rejected by checks"
    elif dossier.ending is not None:
        state = f"{ENDING_WORDS[dossier.ending.verb]} by {dossier.ending.actor}"
    return join(
        [
            html_tag("p", f"Evidence of run {run.run_id}", class_="soft small"),
            html_tag("h1", f"{intent.kind.capitalize()} of {dossier.plan.product}"),
            html_tag("p", html_tag("span", f"{symbol} {state}", class_=f"verdict {tone}")),
            html_tag("p", intent.reason),
        ]
    )


def answer_cards(dossier: Dossier) -> Markup:
    """Answer the four first questions."""
    return html_tag(
        "div",
        _scope_answer(dossier),
        _size_answer(dossier),
        _safety_answer(dossier),
        _approval_answer(dossier),
        class_="answers",
    )


def _answer_card(question: str, big: object, *lines: object) -> Markup:
    shown = [html_tag("p", line) for line in lines if line]
    return html_tag(
        "div", html_tag("h2", question), html_tag("p", big, class_="big"), *shown, class_="answer"
    )


def _scope_answer(dossier: Dossier) -> Markup:
    resolved, labels = dossier.plan.resolved, dossier.plan.resolved.scope.partitions
    many = f"{len(labels):,} partitions" if len(labels) > 1 else "1 partition"
    return _answer_card(
        "What changes?",
        many,
        dossier.scope.removeprefix(f"{many}, "),
        join(
            [
                "of ",
                code_text(resolved.target.table),
                " by ",
                code_text(resolved.scope.field.column),
            ]
        ),
        "Nothing outside these partitions.",
        _schema_change_note(resolved.manifest.target),
        _intolerant_consumers(dossier),
    )


def _schema_change_note(target: Target) -> Markup:
    """Describe which columns the publication changes, for all readers of the table."""
    if not target.schema_change:
        return Markup("")
    said = ", ".join(map(table.describe_schema_step, target.schema_change))
    return html_tag("span", f"Columns of the table: {said}")


def _intolerant_consumers(dossier: Dossier) -> Markup:
    """Name the consumers who do not want what they have read to change."""
    consumers = dossier.plan.resolved.contract.consumers or ()
    names = [item.name for item in consumers if not item.tolerates_restatement]
    if not names:
        return Markup("")
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    text = f"! Restatement not tolerated by {', '.join(names[:_MAX_NAMES])}{more}"
    return html_tag("span", text, class_="warn")


def _size_answer(dossier: Dossier) -> Markup:
    if dossier.validation is None:
        return _answer_card("By how much?", "not known yet", "The run was not validated.")
    found = dossier.validation.diff.summary
    touched = found.added + found.removed + found.changed
    lines: list[object] = [
        f"{found.changed:,} changed, {found.added:,} added, {found.removed:,} removed, "
        f"{found.unchanged:,} unchanged"
    ]
    for total in dossier.validation.totals[:2]:
        before, after = parse_amount(total.old), parse_amount(total.new)
        if dossier.is_first_load and after is not None:
            lines.append(f"{total.name}: none → {format_number(after)}")
        elif before is not None and after is not None:
            change = format_signed(after - before)
            lines.append(
                f"{total.name}: {format_number(before)} → {format_number(after)} ({change})"
            )
    old = f"{format_percent(touched, max(found.old_rows, found.new_rows))} of the rows there"
    if dossier.is_first_load:
        old = "first rows: nothing was there before"
    return _answer_card("By how much?", f"{touched:,} rows", old, *lines)


def _safety_answer(dossier: Dossier) -> Markup:
    counted = [each for each in dossier.verdicts if each.check.blocking]
    if dossier.validation is None and not counted:
        verdict = (
            verdict_mark(good=True, yes="nothing was changed")
            if _is_target_untouched(dossier)
            else "unknown"
        )
        return _answer_card("Is it safe?", verdict, dossier.safety_summary.is_safe)
    failed = [each for each in counted if each.is_open]
    lines: list[object] = [f"Failed: {_verdict_name(each)}" for each in failed[:_MAX_NAMES]]
    waived = [(each, each.waiver.by) for each in counted if each.waiver]
    lines += [f"Waived by {who}: {_verdict_name(each)}" for each, who in waived[:_MAX_NAMES]]
    if dossier.validation is None:
        lines.append("The output is not validated yet.")
    big = _passed_mark(counted)
    if dossier.run.state is RunState.ROLLED_BACK:
        # That it passed its checks is not what matters of a run that was taken back.
        big, lines = (
            html_tag("span", "↩ taken back", class_="mark warn"),
            [_passed_text(counted), *lines],
        )
    return _answer_card(
        "Is it safe?",
        big,
        *lines,
        f"Data: {dossier.safety_summary.is_safe}.",
        f"Readers see: {dossier.safety_summary.readers_see}.",
    )


def _verdict_name(verdict: CheckVerdict) -> str:
    return f"{verdict.check.name} ({verdict.subject})"


def _passed_text(counted: list[CheckVerdict]) -> str:
    passed = sum(1 for each in counted if each.check.passed)
    return f"{passed:,} of {len(counted):,} checks passed"


def _passed_mark(counted: list[CheckVerdict]) -> Markup:
    passed = sum(1 for each in counted if each.check.passed)
    failed = any(each.is_open for each in counted)
    words = _passed_text(counted)
    if passed < len(counted) and not failed:
        return html_tag("span", f"! {words}, {len(counted) - passed} waived", class_="mark warn")
    return verdict_mark(good=not failed, yes=words, no=words)


def _is_target_untouched(dossier: Dossier) -> bool:
    return dossier.run.state not in (
        RunState.PUBLISHING, RunState.PUBLISH_HALTED, RunState.PUBLISHED, RunState.ROLLED_BACK,
    )  # fmt: skip


def _approval_answer(dossier: Dossier) -> Markup:
    publication, ending = dossier.publication, dossier.ending
    if ending is not None and ending.verb == "reject":
        return _answer_card(
            "Who approved?",
            verdict_mark(good=False, no=f"rejected by {ending.actor}"),
            dossier.ending_sentence,
            f"Requested by {dossier.plan.resolved.manifest.run.requested_by}",
        )
    published = (
        f"{publication.by}, {format_moment(publication.at)}" if publication else "nobody yet"
    )
    return _answer_card(
        "Who approved?",
        dossier.deciders("approve"),
        f"Requested by {dossier.plan.resolved.manifest.run.requested_by}",
        f"Result accepted by {dossier.deciders('accept')}",
        f"Published by {published}",
        dossier.ending_sentence,
    )


def why_section(dossier: Dossier) -> Markup:
    """Describe why history changes, and who relies on it."""
    contract, intent = dossier.plan.resolved.contract, dossier.plan.resolved.manifest.run
    pairs = [
        ("Reason", f"{intent.reason} ({intent.reason_code})"),
        ("Requested by", intent.requested_by),
        ("Execution mode", intent.mode),
        ("Deadline", format_moment(intent.deadline) if intent.deadline else "none"),
        ("Product", contract.description),
        ("Owner", contract.owner),
        ("Classification", contract.classification or "not declared"),
    ]
    columns = (
        TableColumn("Consumer", is_wide=True),
        TableColumn("Contact"),
        TableColumn("Restatement", is_word=True),
    )
    rows = [
        (item.name, item.contact or NO_VALUE, _tolerance_mark(tolerates=item.tolerates_restatement))
        for item in contract.consumers or ()
    ]
    consumers = (
        page_table(columns, rows) if rows else html_tag("p", "The contract names no consumer.")
    )
    return page_section(
        "why", "Why, and for whom", fact_list(pairs), html_tag("h3", "Consumers"), consumers
    )


def _tolerance_mark(*, tolerates: bool) -> Markup:
    return verdict_mark(good=tolerates, yes="tolerated", no="not tolerated")
