"""Why the result is trusted: checks, edges, decisions, chunks, events, the checklist."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.validation import spent
from lakehouse_backfill.domain.checks import EdgePartition
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.report.dossier import Dossier, Verdict, subject_of
from lakehouse_backfill.report.markup import NOTHING, Markup, join, moment, number, tag
from lakehouse_backfill.report.parts import Column, code, folded, mark, section, table


def checks(dossier: Dossier) -> Markup:
    """List the checks, failed ones first, with who let one pass all the same."""
    if not dossier.verdicts:
        return section("checks", "Checks", tag("p", "No check has run yet."))
    heads = (
        Column("Check", is_wide=True), Column("Of", is_word=True), Column("Result"),
        Column("Group", is_word=True), Column("What was seen", is_wide=True),
    )  # fmt: skip
    ordered = sorted(dossier.verdicts, key=lambda each: each.check.passed)
    passed = sum(1 for each in ordered if each.check.passed)
    lead = f"{passed:,} of {len(ordered):,} passed. A failed blocking check stops publication"
    lead += ", unless a person in the role waives it."
    took = spent.of_events(dossier.events)
    if took is not None and took.suites_s:
        lead += f" {took.text}."
    shown = [each for each in ordered if not (each.is_chunk and each.check.passed)]
    rows = [
        (each.check.name, each.subject, _verdict(each), each.check.group, each.check.detail)
        for each in shown
    ]
    return section(
        "checks", "Checks", tag("p", lead), table(heads, rows), _of_chunks(dossier.verdicts)
    )


def _of_chunks(verdicts: tuple[Verdict, ...]) -> Markup:
    found = [each for each in verdicts if each.is_chunk]
    if not found:
        return Markup("")
    heads = (
        Column("Chunk", is_word=True), Column("Check"), Column("Result"),
        Column("What was seen", is_wide=True),
    )  # fmt: skip
    rows = [(each.scope, each.check.name, _verdict(each), each.check.detail) for each in found]
    return folded(f"All {len(found):,} checks of single chunks", table(heads, rows))


def _verdict(verdict: Verdict) -> Markup:
    check, waiver = verdict.check, verdict.waiver
    no = "failed" if check.blocking else "failed, not blocking"
    if check.blocking and not check.waivable:
        no = "failed, nobody can waive it"
    shown = mark(good=check.passed, no=no)
    if waiver is None:
        return shown
    said = tag("div", f"! waived by {waiver.by}: {waiver.reason or NOTHING}", class_="warn")
    # One element: on a phone two would stand side by side, and cut each other into lines.
    return tag("div", shown, said)


def edge(dossier: Dossier) -> Markup:
    """Show the partitions beyond the edges, and the range that would close them."""
    title = "Edges of the range"
    if dossier.validation is None:
        return section("edge", title, tag("p", "The run was not validated yet."))
    report = dossier.validation.edge
    if report is None:
        return section("edge", title, tag("p", "There is nothing beyond the edges to compare."))
    lead = tag(
        "p",
        mark(good=report.is_closed, yes="closed", no="open"),
        " The run also computes partitions beyond its range, and compares them with what is "
        "accepted there. A difference would mean rows counted twice or lost.",
    )
    advice = Markup("")
    if not report.is_closed and report.closing_from:
        advice = tag(
            "p", "The range that closes it: from ", code(report.closing_from), " to ",
            code(report.closing_to), ", not included.",
        )  # fmt: skip
    heads = (
        Column("Partition"), Column("Side", is_word=True), Column("Added", is_number=True),
        Column("Removed", is_number=True), Column("Changed", is_number=True),
        Column("Counted twice"), Column("Lost"),
    )  # fmt: skip
    return section(
        "edge", title, lead, advice, table(heads, [_beyond(row) for row in report.partitions])
    )


def _beyond(row: EdgePartition) -> tuple[Any, ...]:
    return (
        row.partition, row.side, row.added, row.removed, row.changed,
        _counts(row.counted_twice), _counts(row.lost),
    )  # fmt: skip


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in counts.items() if value) or "0"


def decisions(dossier: Dossier) -> Markup:
    """List the decisions that still stand, with what each is bound to; last, who ended the run."""
    title = "Decisions"
    ending = dossier.ending
    if not dossier.approvals and not dossier.waivers and ending is None:
        return section(
            "decisions", title, tag("p", "Nobody has decided anything that still stands.")
        )
    heads = (
        Column("Decision", is_word=True), Column("By", is_word=True), Column("At", is_wide=True),
        Column("Reason", is_wide=True), Column("Bound to", is_wide=True),
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = [
        (
            item["decision"], item["by"], moment(item["at"]), item["reason"] or NOTHING,
            code(item["bound_to"]),
        )
        for item in dossier.approvals
    ]  # fmt: skip
    rows += [
        ("waive", one.by, moment(one.at), one.reason or NOTHING,
         join([one.gate, f", {subject_of(one.judged.scope)} ", code(one.judged.bound_to)]))
        for one in dossier.waivers
    ]  # fmt: skip
    if ending is not None:
        reason = ending.detail.get("reason") or NOTHING
        rows.append((ending.verb, ending.actor, moment(ending.at), reason, "the run"))
    lead = (
        "approve binds to the manifest hash, accept to the digest of checks and diff, "
        "waive to one check of one input, chunk or result. "
        "A rejection takes back what was decided before it."
    )
    ended = tag("p", dossier.ended) if dossier.ended else ""
    return section("decisions", title, ended, tag("p", lead), table(heads, rows))


def work(dossier: Dossier) -> Markup:
    """Show the chunk ledger, the events, and the answered checklist."""
    return section(
        "work",
        "How it was done",
        folded(f"Chunk ledger: {len(dossier.chunks)} chunks", _chunks(dossier)),
        folded(f"Run log: {len(dossier.events)} events", _events(dossier)),
        folded(f"Checklist of {len(dossier.plan.checklist)} questions", _checklist(dossier)),
    )


def _chunks(dossier: Dossier) -> Markup:
    heads = (
        Column("Chunk", is_word=True), Column("Status"), Column("Partitions", is_wide=True),
        Column("Input rows", is_number=True), Column("Output rows", is_number=True),
        Column("Left out", is_number=True), Column("Seconds", is_number=True),
        Column("Checksum", is_wide=True),
    )  # fmt: skip
    rows = [
        (
            chunk.chunk_id, _status(chunk), f"{chunk.partitions[0]} to {chunk.partitions[-1]}",
            chunk.input_rows, chunk.output_rows, chunk.outside_rows, round(chunk.seconds, 2),
            code(chunk.checksum),
        )
        for chunk in dossier.chunks
    ]  # fmt: skip
    note = "Left out: rows of the warm-up, computed but not published."
    return tag("div", tag("p", note, class_="small soft"), table(heads, rows))


def _status(chunk: ChunkRecord) -> Markup:
    verdict = mark(good=chunk.status == "done", yes="done")
    return tag("div", verdict, tag("div", chunk.problem)) if chunk.problem else verdict


def _events(dossier: Dossier) -> Markup:
    heads = (
        Column("#", is_number=True), Column("At", is_word=True), Column("Who", is_word=True),
        Column("What", is_word=True), Column("From", is_word=True), Column("To", is_word=True),
        Column("Detail", is_wide=True), Column("Hash", is_word=True),
    )  # fmt: skip
    rows = [
        (
            event.seq, moment(event.at), event.actor, event.verb, event.from_state.value,
            event.to_state.value, _detail(event.detail), code(event.hash[:12] or NOTHING),
        )
        for event in dossier.events
    ]  # fmt: skip
    return table(heads, rows)


def _detail(detail: dict[str, Any]) -> Markup:
    return tag(
        "span",
        "; ".join(f"{name} {value}" for name, value in detail.items() if value),
        class_="small",
    )


def _checklist(dossier: Dossier) -> Markup:
    heads = (Column("Question", is_wide=True), Column("Answer", is_wide=True))
    rows = [
        (f"{item.number}. {item.question}", item.answer or mark(good=False, no="not answered"))
        for item in dossier.plan.checklist
    ]
    return table(heads, rows)
