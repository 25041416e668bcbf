"""Checks, decisions, chunks, events; causes.

Why rows differ: stacked bars by cause, one bar per sampled partition, with numbers beside.

Why the result is trusted: checks, edges, decisions, chunks, events, the checklist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.validation import suites
from lakehouse_backfill.domain.checks import DiffSample, EdgePartition
from lakehouse_backfill.domain.diff import CAUSE_CLASSES, describe_factors
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.report.changes import sample_row
from lakehouse_backfill.report.dossier import CheckVerdict, Dossier, describe_subject
from lakehouse_backfill.report.html import (
    NO_VALUE,
    Markup,
    TableColumn,
    code_text,
    folded_details,
    format_moment,
    format_number,
    format_percent,
    html_tag,
    join,
    page_section,
    page_table,
    shorten,
    verdict_mark,
)

CAUSES_TITLE = "Why it changes"
#: What each class means, in the order of the bars; the letters stand on their grounds.
CAUSE_MEANINGS: dict[str, tuple[str, str]] = {
    "code": ("C", "the new code gives another row for the same inputs"),
    "late_input": ("L", "rows that came to a source later"),
    "upstream": ("U", "rows of a source that were changed since"),
    "reference": ("R", "reference data that moved"),
    "deletion": ("D", "deleted, in a source or in the table, or to be left out"),
    "live_write": ("W", "a live commit had changed what a run published"),
    "several": ("S", "more than one of these took part"),
    "unexplained": ("?", "nothing that was swapped gives this difference"),
}


def causes_section(dossier: Dossier) -> Markup:
    """Show the causes on the sampled partitions, or how to ask for them."""
    found = dossier.attribution
    if found is None:
        asked = errors.command_line("diff", dossier.run.run_id, "--attribute")
        return page_section(
            "causes", CAUSES_TITLE, html_tag("p", "Nobody asked yet: ", code_text(asked))
        )
    parts = found["partitions"]
    if not parts:
        return page_section(
            "causes", CAUSES_TITLE, html_tag("p", "No row differs, so there is no cause to find.")
        )
    lead = (
        f"{format_number(found['sampled_rows'])} of {format_number(found['changed_rows'])} "
        "changed rows "
        f"({format_percent(found['sampled_rows'], found['changed_rows'])}) were looked at: those "
        "of "
        f"{len(parts):,} of {found['changed_partitions']:,} changed partitions, the most changed "
        "first. Each was computed again with one input swapped at a time. Nothing is said of the "
        "others."
    )
    return page_section(
        "causes",
        CAUSES_TITLE,
        html_tag("p", lead),
        _cause_bars(parts),
        _cause_table(parts),
        _input_changes(parts),
        _cause_samples(parts),
        *_cause_notes(parts),
    )


def _cause_bars(parts: Sequence[dict[str, Any]]) -> Markup:
    used = {group["cause"] for part in parts for group in part["groups"]}
    shown = [name for name in CAUSE_CLASSES if name in used]
    body = [
        join(
            [
                html_tag("span", shorten(str(part["partition"]), 24), class_="name"),
                _cause_bar(part),
                html_tag("span", format_number(part["changed_rows"]), class_="n"),
            ]
        )
        for part in parts
    ]
    return html_tag(
        "figure",
        html_tag(
            "figcaption", "Changed rows of each partition by cause; at the right their number."
        ),
        html_tag("p", *(_cause_key(name) for name in shown), class_="legend small"),
        html_tag("div", *body, class_="map"),
        class_="causes",
    )


def _cause_key(name: str) -> Markup:
    letter, meaning = CAUSE_MEANINGS[name]
    sign = html_tag("span", letter, class_=f"cause {_cause_class(name)}", aria_hidden="true")
    return html_tag("span", sign, name.replace("_", " "), title=meaning)


def _cause_class(name: str) -> str:
    return f"k{list(CAUSE_MEANINGS).index(name) + 1}"


def _cause_bar(part: dict[str, Any]) -> Markup:
    """Draw the shares of one partition; one that is not zero is never drawn as nothing."""
    rows = dict.fromkeys(CAUSE_CLASSES, 0)
    for group in part["groups"]:
        rows[group["cause"]] += group["rows"]
    there = [(name, count) for name, count in rows.items() if count]
    whole = sum(rows.values())
    said = [
        f"{name.replace('_', ' ')} {count:,} ({format_percent(count, whole)})"
        for name, count in there
    ]
    shapes = [
        html_tag(
            "span",
            CAUSE_MEANINGS[name][0],
            style=f"flex:{count} 1 0",
            title=words,
            class_=_cause_class(name),
        )
        for (name, count), words in zip(there, said, strict=True)
    ]
    label = f"{part['partition']}: {', '.join(said)}"
    return html_tag("div", *shapes, class_="stack", role="img", aria_label=label)


def _cause_table(parts: Sequence[dict[str, Any]]) -> Markup:
    heads = (
        TableColumn("Partition", is_wide=True),
        TableColumn("Cause"),
        TableColumn("Rows", is_number=True),
        TableColumn("In", is_wide=True),
        TableColumn("Columns", is_wide=True),
        TableColumn("Made by", is_wide=True),
    )
    rows = [
        (
            part["partition"],
            group["cause"].replace("_", " "),
            group["rows"],
            describe_factors(group["factors"]),
            ", ".join(f"{name} {count:,}" for name, count in group["columns"].items()) or NO_VALUE,
            part["made_by"] or ("not known" if part["basis"] == "none" else "assumed"),
        )
        for part in parts
        for group in part["groups"]
    ]
    return page_table(heads, rows)


def _input_changes(parts: Sequence[dict[str, Any]]) -> Markup:
    rows = [
        (part["partition"], code_text(one["input"]), one["late_rows"], one["upstream_rows"],
         one["deleted_rows"], one["told_by"])
        for part in parts for one in part["inputs"]
    ]  # fmt: skip
    if not rows:
        return Markup("")
    heads = (
        TableColumn("Partition", is_wide=True),
        TableColumn("Input"),
        TableColumn("Late", is_number=True),
        TableColumn("Changed", is_number=True),
        TableColumn("Deleted", is_number=True),
        TableColumn("Told by", is_wide=True),
    )
    return folded_details("What came to the inputs between the pins", page_table(heads, rows))


def _cause_samples(parts: Sequence[dict[str, Any]]) -> Markup:
    heads = (
        TableColumn("Cause", is_wide=True), TableColumn("Kind"), TableColumn("Key", is_wide=True),
        TableColumn("Old", is_wide=True), TableColumn("New", is_wide=True),
    )  # fmt: skip
    rows = [
        (describe_factors(group["factors"]), *sample_row(DiffSample.model_validate(sample)))
        for part in parts
        for group in part["groups"]
        for sample in group["samples"]
    ]
    return folded_details("Examples by cause", page_table(heads, rows)) if rows else Markup("")


def _cause_notes(parts: Sequence[dict[str, Any]]) -> list[Markup]:
    said = [(part["partition"], note) for part in parts for note in part["notes"]]
    said += [
        (part["partition"], f"changed on the table by {'; '.join(part['live'])}")
        for part in parts
        if part["live"]
    ]
    return [html_tag("p", f"{label}: {note}", class_="small soft") for label, note in said]


def checks_section(dossier: Dossier) -> Markup:
    """List the checks, failed ones first, with who let one pass all the same."""
    if not dossier.verdicts:
        return page_section("checks", "Checks", html_tag("p", "No check has run yet."))
    heads = (
        TableColumn("Check", is_wide=True), TableColumn("Of", is_word=True), TableColumn("Result"),
        TableColumn("Group", is_word=True), TableColumn("What was seen", is_wide=True),
    )  # fmt: skip
    ordered = sorted(dossier.verdicts, key=lambda each: each.check.passed)
    passed = sum(1 for each in ordered if each.check.passed)
    lead = f"{passed:,} of {len(ordered):,} passed. A failed blocking check stops publication"
    lead += ", unless a person in the role waives it."
    took = suites.newest_validation_timing(dossier.events)
    if took is not None and took.suites_s:
        lead += f" {took.text}."
    shown = [each for each in ordered if not (each.is_chunk and each.check.passed)]
    rows = [
        (each.check.name, each.subject, _verdict_text(each), each.check.group, each.check.detail)
        for each in shown
    ]
    return page_section(
        "checks",
        "Checks",
        html_tag("p", lead),
        page_table(heads, rows),
        _chunk_checks(dossier.verdicts),
    )


def _chunk_checks(verdicts: tuple[CheckVerdict, ...]) -> Markup:
    found = [each for each in verdicts if each.is_chunk]
    if not found:
        return Markup("")
    heads = (
        TableColumn("Chunk", is_word=True), TableColumn("Check"), TableColumn("Result"),
        TableColumn("What was seen", is_wide=True),
    )  # fmt: skip
    rows = [(each.scope, each.check.name, _verdict_text(each), each.check.detail) for each in found]
    return folded_details(f"All {len(found):,} checks of single chunks", page_table(heads, rows))


def _verdict_text(verdict: CheckVerdict) -> Markup:
    check, waiver = verdict.check, verdict.waiver
    no = "failed" if check.blocking else "failed, not blocking"
    if check.blocking and not check.waivable:
        no = "failed, nobody can waive it"
    shown = verdict_mark(good=check.passed, no=no)
    if waiver is None:
        return shown
    said = html_tag("div", f"! waived by {waiver.by}: {waiver.reason or NO_VALUE}", class_="warn")
    # One element: on a phone two would stand side by side, and cut each other into lines.
    return html_tag("div", shown, said)


def edge_section(dossier: Dossier) -> Markup:
    """Show the partitions beyond the edges, and the range that would close them."""
    title = "Edges of the range"
    if dossier.validation is None:
        return page_section("edge", title, html_tag("p", "The run was not validated yet."))
    report = dossier.validation.edge
    if report is None:
        return page_section(
            "edge", title, html_tag("p", "There is nothing beyond the edges to compare.")
        )
    lead = html_tag(
        "p",
        verdict_mark(good=report.is_closed, yes="closed", no="open"),
        " The run also computes partitions beyond its range, and compares them with what is "
        "accepted there. A difference would mean rows counted twice or lost.",
    )
    advice = Markup("")
    if not report.is_closed and report.closing_from:
        advice = html_tag(
            "p", "The range that closes it: from ", code_text(report.closing_from), " to ",
            code_text(report.closing_to), ", not included.",
        )  # fmt: skip
    heads = (
        TableColumn("Partition"),
        TableColumn("Side", is_word=True),
        TableColumn("Added", is_number=True),
        TableColumn("Removed", is_number=True),
        TableColumn("Changed", is_number=True),
        TableColumn("Counted twice"),
        TableColumn("Lost"),
    )
    return page_section(
        "edge",
        title,
        lead,
        advice,
        page_table(heads, [_edge_row(row) for row in report.partitions]),
    )


def _edge_row(row: EdgePartition) -> tuple[Any, ...]:
    return (
        row.partition, row.side, row.added, row.removed, row.changed,
        _edge_counts(row.counted_twice), _edge_counts(row.lost),
    )  # fmt: skip


def _edge_counts(counts: dict[str, int]) -> str:
    return (
        ", ".join(f"{name} {format_number(value)}" for name, value in counts.items() if value)
        or "0"
    )


def decisions_section(dossier: Dossier) -> Markup:
    """List the decisions that still stand, with what each is bound to; last, who ended the run."""
    title = "Decisions"
    ending = dossier.ending
    if not dossier.approvals and not dossier.waivers and ending is None:
        return page_section(
            "decisions", title, html_tag("p", "Nobody has decided anything that still stands.")
        )
    heads = (
        TableColumn("Decision", is_word=True),
        TableColumn("By", is_word=True),
        TableColumn("At", is_wide=True),
        TableColumn("Reason", is_wide=True),
        TableColumn("Bound to", is_wide=True),
    )
    rows: list[tuple[Any, ...]] = [
        (
            item["decision"], item["by"], format_moment(item["at"]), item["reason"] or NO_VALUE,
            code_text(item["bound_to"]),
        )
        for item in dossier.approvals
    ]  # fmt: skip
    rows += [
        (
            "waive",
            one.by,
            format_moment(one.at),
            one.reason or NO_VALUE,
            join(
                [
                    one.gate,
                    f", {describe_subject(one.subject.scope)} ",
                    code_text(one.subject.bound_to),
                ]
            ),
        )
        for one in dossier.waivers
    ]
    if ending is not None:
        reason = ending.detail.get("reason") or NO_VALUE
        rows.append((ending.verb, ending.actor, format_moment(ending.at), reason, "the run"))
    lead = (
        "approve binds to the manifest hash, accept to the digest of checks and diff, "
        "waive to one check of one input, chunk or result. "
        "A rejection takes back what was decided before it."
    )
    ended = html_tag("p", dossier.ending_sentence) if dossier.ending_sentence else ""
    return page_section("decisions", title, ended, html_tag("p", lead), page_table(heads, rows))


def work_section(dossier: Dossier) -> Markup:
    """Show the chunk ledger, the events, and the answered checklist."""
    return page_section(
        "work",
        "How it was done",
        folded_details(f"Chunk ledger: {len(dossier.chunks)} chunks", _chunks(dossier)),
        folded_details(f"Run log: {len(dossier.events)} events", _events(dossier)),
        folded_details(
            f"Checklist of {len(dossier.plan.checklist)} questions", _checklist(dossier)
        ),
    )


def _chunks(dossier: Dossier) -> Markup:
    heads = (
        TableColumn("Chunk", is_word=True),
        TableColumn("Status"),
        TableColumn("Partitions", is_wide=True),
        TableColumn("Input rows", is_number=True),
        TableColumn("Output rows", is_number=True),
        TableColumn("Left out", is_number=True),
        TableColumn("Seconds", is_number=True),
        TableColumn("Checksum", is_wide=True),
    )
    rows = [
        (
            chunk.chunk_id,
            _chunk_status(chunk),
            f"{chunk.partitions[0]} to {chunk.partitions[-1]}",
            chunk.input_rows,
            chunk.output_rows,
            chunk.outside_rows,
            round(chunk.seconds, 2),
            code_text(chunk.checksum),
        )
        for chunk in dossier.chunks
    ]
    note = "Left out: rows of the warm-up, computed but not published."
    return html_tag("div", html_tag("p", note, class_="small soft"), page_table(heads, rows))


def _chunk_status(chunk: ChunkRecord) -> Markup:
    verdict = verdict_mark(good=chunk.status == "done", yes="done")
    return html_tag("div", verdict, html_tag("div", chunk.problem)) if chunk.problem else verdict


def _events(dossier: Dossier) -> Markup:
    heads = (
        TableColumn("#", is_number=True),
        TableColumn("At", is_word=True),
        TableColumn("Who", is_word=True),
        TableColumn("What", is_word=True),
        TableColumn("From", is_word=True),
        TableColumn("To", is_word=True),
        TableColumn("Detail", is_wide=True),
        TableColumn("Hash", is_word=True),
    )
    rows = [
        (
            event.seq,
            format_moment(event.at),
            event.actor,
            event.verb,
            event.from_state.value,
            event.to_state.value,
            _event_detail(event.detail),
            code_text(event.hash[:12] or NO_VALUE),
        )
        for event in dossier.events
    ]
    return page_table(heads, rows)


def _event_detail(detail: dict[str, Any]) -> Markup:
    return html_tag(
        "span",
        "; ".join(f"{name} {value}" for name, value in detail.items() if value),
        class_="small",
    )


def _checklist(dossier: Dossier) -> Markup:
    heads = (TableColumn("Question", is_wide=True), TableColumn("Answer", is_wide=True))
    rows = [
        (
            f"{item.number}. {item.question}",
            item.answer or verdict_mark(good=False, no="not answered"),
        )
        for item in dossier.plan.checklist
    ]
    return page_table(heads, rows)
