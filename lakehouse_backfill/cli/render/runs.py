"""Views of status, log, chunks, run, stage, and the decisions on a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakehouse_backfill.cli.render import gates
from lakehouse_backfill.cli.render.gates import render_failed_gates
from lakehouse_backfill.cli.render.page import (
    BAD,
    GOOD,
    TextPage,
    format_cell,
    read_fields,
    shorten_hash,
    verdict_mark,
)
from lakehouse_backfill.domain.identity.statement import SIGNATURE

if TYPE_CHECKING:
    from lakehouse_backfill.domain.run import Event
    from lakehouse_backfill.results import runs
    from lakehouse_backfill.results.base import RunResult
    from lakehouse_backfill.results.publications import RecoverResult


def render_decision(page: TextPage, result: runs.DecisionResult) -> None:
    """Draw the state after a decision, and the decisions that stand."""
    _headline(page, result)
    page.records(
        "decisions", ": decision | by | signature | at | bound to: bound_to | reason",
        result.approvals, reason=_reason,
    )  # fmt: skip
    _waivers(page, result.waivers)
    page.next_command(next_command(result))


def render_waive(page: TextPage, result: runs.WaiveResult) -> None:
    """Draw the failed gates of a run, after a waiver or as they were asked for."""
    _headline(page, result)
    if not result.gates:
        page.line("no gate keeps this run where it is")
    render_failed_gates(page, result.gates)
    page.next_command(result.next_command or next_command(result))


def render_run(page: TextPage, result: runs.RunProgressResult) -> None:
    """Draw what `run` got done."""
    _staged(page, result)
    gates.render_gates(page, result.checks or ())
    page.facts(read_fields(result, "evidence: report"))
    page.next_command(next_command(result))


def render_stage(page: TextPage, result: runs.StageResult) -> None:
    """Draw what was staged."""
    _staged(page, result)
    page.next_command(next_command(result))


def _staged(page: TextPage, result: runs.StageResult | runs.RunProgressResult) -> None:
    _headline(page, result)
    counts = "chunks done: chunks_done | chunks redone: chunks_redone | rows"
    page.facts(read_fields(result, counts))


def render_shadow_open(page: TextPage, result: runs.ShadowOpenResult) -> None:
    """Draw which table to write."""
    _headline(page, result)
    labels = result.partitions
    page.facts(
        (
            *read_fields(result, "table to write: table | location"),
            ("it starts as", f"the target at snapshot {result.base_snapshot_id}"),
            ("write only", f"{len(labels)} partitions of {result.scope_column}"),
            ("from, to", f"{labels[0]}, {labels[-1]}"),
            *((f"in each row {name}", value) for name, value in result.lineage.items()),
            ("in each row produced_at", "the time of writing" if result.lineage else None),
        )
    )
    page.next_command(result.next)


def render_validate(page: TextPage, result: runs.ValidateResult) -> None:
    """Draw each gate, closed ones first, and what changed in short."""
    _headline(page, result)
    gates.render_gates(page, result.checks)
    gates.render_row_counts(page, result.diff.summary)
    page.records("totals over the run's partitions", "measure: name | old | new", result.totals)
    gates.render_edge(page, result.edge)
    gates.render_suite_time(page, result.spent)
    _moved_tables(page, result.moved_tables)
    page.facts(read_fields(result, "result digest: digest | evidence: report"))
    page.next_command(next_command(result))


def _moved_tables(page: TextPage, found: Mapping[str, Any] | None) -> None:
    """Draw what others committed while the run was staged, and how far that was looked at."""
    from lakehouse_backfill.core.validation.movements import describe_range

    if found is None:
        return
    page.records(
        "committed by others since staging began",
        "table | writer | commits | operations | last snapshot: last_snapshot_id",
        found["moved"],
        last_snapshot_id=lambda one: str(one["last_snapshot_id"]),
    )
    page.facts((("tables looked at", describe_range(found)),))


def render_rejudge(page: TextPage, result: runs.RejudgeResult) -> None:
    """Draw what suites found of an accepted version."""
    page.facts(
        (
            ("product", result.product),
            ("output version", result.version),
            ("read from", f"{result.table}@{result.snapshot_id}"),
            ("changed by live writes since", ", ".join(result.changed_since) or None),
        )
    )
    gates.render_gates(page, result.checks)


def render_status(page: TextPage, result: runs.StatusResult) -> None:
    """Draw one run as the answers to three questions, several as a table."""
    found = result.runs
    if not found:
        page.line("no open run; lakehouse-backfill status --all lists the closed ones")
    elif len(found) == 1:
        _run_details(page, found[0])
    else:
        columns = "run: run_id | product | state | since: at"
        page.records("runs", columns, found, most=None, state=_state_cell)
        page.next_command(found[0].next_command)


def render_log(page: TextPage, result: runs.LogResult) -> None:
    """Draw the events, oldest first."""
    columns = ": seq | at | who: actor | what: verb | state: to_state | detail"
    page.records("", columns, result.events, most=None, detail=_detail_cell)


def render_chunks(page: TextPage, result: runs.ChunksResult) -> None:
    """Draw the ledger: one line for each chunk."""
    styles = {"done": GOOD, "failed": BAD}
    page.records(
        "",
        "chunk: chunk_id | partitions | status | read: input_rows | written: output_rows | "
        "seconds | checksum",
        result.chunks,
        most=None,
        is_copied=True,
        status=lambda chunk: Text(chunk.status, style=styles.get(chunk.status, "")),
    )


def render_recover(page: TextPage, result: RecoverResult) -> None:
    """Draw what was found half done, and what became of it."""
    if not result.actions:
        page.line("nothing stopped half way; nothing was changed")
    page.records(
        "would be done; nothing was changed" if result.dry_run else "recovered",
        ": is_done | what: subject | action | because | result",
        result.actions,
        most=None,
        is_done=lambda one: verdict_mark(is_good=one.is_done),
    )


def next_command(result: RunResult) -> str:
    """Return what to type next, by the run's state."""
    from lakehouse_backfill.core.evidence.status import summarise_safety
    from lakehouse_backfill.domain.run import RunState
    from lakehouse_backfill.errors import MANIFEST_PLACEHOLDER

    file = getattr(result, "manifest_file", "") or MANIFEST_PLACEHOLDER
    return summarise_safety(
        RunState(result.state), result.run_id, result.product, manifest_file=file
    ).next_command


def _run_details(page: TextPage, item: runs.RunLine) -> None:
    answers = (
        "is my data safe?: is_safe | what do readers see?: readers_see | "
        "what to type next?: next_command | looked at: looked_at"
    )
    page.facts(read_fields(item, answers, looked_at=_looked_at))
    render_failed_gates(page, item.gates or ())
    page.records("decisions", ": decision | by | signature | at", item.approvals or (), most=None)
    _waivers(page, item.waivers or ())
    gates.render_readers(page, item.dual_reads or ())
    gates.render_steps(page, item.steps or ())
    page.line()
    facts = "run: run_id | product | state | since: at | driver"
    page.facts(read_fields(item, facts, state=_state_cell))


def _looked_at(item: runs.RunLine) -> str | None:
    """Describe what the answers rest on; None where they say it themselves."""
    if item.state not in ("published", "publish_halted") or "not looked at" in item.is_safe:
        return None
    return f"metadata; data files are opened by lakehouse-backfill verify {item.run_id}"


def _headline(page: TextPage, result: RunResult) -> None:
    page.draw(Text.assemble(f"{result.run_id}  ", _state_cell(result)))


def _state_cell(item: RunResult | runs.RunLine) -> Text:
    bad = dict.fromkeys(("failed", "rejected", "halted", "publish_halted"), BAD)
    return Text(item.state, style={"published": GOOD, **bad}.get(item.state, "bold"))


def _waivers(page: TextPage, waivers: Sequence[Mapping[str, Any]]) -> None:
    columns = "failed gate: gate | of: scope | by | signature | at | reason"
    page.records("passed although they failed", columns, waivers, most=None, reason=_reason)


def _reason(item: Mapping[str, Any]) -> str | None:
    return item["reason"] or None


def _detail_cell(event: Event) -> Text:
    there = {key: value for key, value in event.detail.items() if value not in (None, "", [], {})}
    if there.pop(SIGNATURE, None):
        there[SIGNATURE] = "stored; lakehouse-backfill verify checks it"
    return format_cell({key: shorten_hash(value) for key, value in there.items()})
