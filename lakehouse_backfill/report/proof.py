"""Why the result is trusted: checks, edges, decisions, chunks, events, the checklist."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.validation import spent
from lakehouse_backfill.domain.checks import EdgePartition
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.report.dossier import CheckVerdict, Dossier, describe_subject
from lakehouse_backfill.report.markup import (
    NO_VALUE,
    Markup,
    format_moment,
    format_number,
    html_tag,
    join,
)
from lakehouse_backfill.report.parts import (
    TableColumn,
    code_text,
    folded_details,
    page_section,
    page_table,
    verdict_mark,
)


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
    took = spent.newest_validation_timing(dossier.events)
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
        TableColumn("Partition"), TableColumn("Side", is_word=True), TableColumn("Added", is_number=True),
        TableColumn("Removed", is_number=True), TableColumn("Changed", is_number=True),
        TableColumn("Counted twice"), TableColumn("Lost"),
    )  # fmt: skip
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
        TableColumn("Decision", is_word=True), TableColumn("By", is_word=True), TableColumn("At", is_wide=True),
        TableColumn("Reason", is_wide=True), TableColumn("Bound to", is_wide=True),
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = [
        (
            item["decision"], item["by"], format_moment(item["at"]), item["reason"] or NO_VALUE,
            code_text(item["bound_to"]),
        )
        for item in dossier.approvals
    ]  # fmt: skip
    rows += [
        ("waive", one.by, format_moment(one.at), one.reason or NO_VALUE,
         join([one.gate, f", {describe_subject(one.judged.scope)} ", code_text(one.judged.bound_to)]))
        for one in dossier.waivers
    ]  # fmt: skip
    if ending is not None:
        reason = ending.detail.get("reason") or NO_VALUE
        rows.append((ending.verb, ending.actor, format_moment(ending.at), reason, "the run"))
    lead = (
        "approve binds to the manifest hash, accept to the digest of checks and diff, "
        "waive to one check of one input, chunk or result. "
        "A rejection takes back what was decided before it."
    )
    ended = html_tag("p", dossier.ended) if dossier.ended else ""
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
        TableColumn("Chunk", is_word=True), TableColumn("Status"), TableColumn("Partitions", is_wide=True),
        TableColumn("Input rows", is_number=True), TableColumn("Output rows", is_number=True),
        TableColumn("Left out", is_number=True), TableColumn("Seconds", is_number=True),
        TableColumn("Checksum", is_wide=True),
    )  # fmt: skip
    rows = [
        (
            chunk.chunk_id, _chunk_status(chunk), f"{chunk.partitions[0]} to {chunk.partitions[-1]}",
            chunk.input_rows, chunk.output_rows, chunk.outside_rows, round(chunk.seconds, 2),
            code_text(chunk.checksum),
        )
        for chunk in dossier.chunks
    ]  # fmt: skip
    note = "Left out: rows of the warm-up, computed but not published."
    return html_tag("div", html_tag("p", note, class_="small soft"), page_table(heads, rows))


def _chunk_status(chunk: ChunkRecord) -> Markup:
    verdict = verdict_mark(good=chunk.status == "done", yes="done")
    return html_tag("div", verdict, html_tag("div", chunk.problem)) if chunk.problem else verdict


def _events(dossier: Dossier) -> Markup:
    heads = (
        TableColumn("#", is_number=True), TableColumn("At", is_word=True), TableColumn("Who", is_word=True),
        TableColumn("What", is_word=True), TableColumn("From", is_word=True), TableColumn("To", is_word=True),
        TableColumn("Detail", is_wide=True), TableColumn("Hash", is_word=True),
    )  # fmt: skip
    rows = [
        (
            event.seq, format_moment(event.at), event.actor, event.verb, event.from_state.value,
            event.to_state.value, _event_detail(event.detail), code_text(event.hash[:12] or NO_VALUE),
        )
        for event in dossier.events
    ]  # fmt: skip
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
