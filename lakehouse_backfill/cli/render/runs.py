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
    format_identity,
    format_moment,
    format_partitions,
    verdict_mark,
)

if TYPE_CHECKING:
    from lakehouse_backfill.results.base import RunResult
    from lakehouse_backfill.results.publications import RecoverResult
    from lakehouse_backfill.results.runs import (
        ChunksResult,
        DecisionResult,
        LogResult,
        RejudgeResult,
        RunLine,
        RunProgressResult,
        ShadowOpenResult,
        StageResult,
        StatusResult,
        ValidateResult,
        WaiveResult,
    )


def render_decision(page: TextPage, result: DecisionResult) -> None:
    """Draw the state after a decision, and the decisions that stand."""
    _headline(page, result)
    rows = [
        (
            item["decision"],
            item["by"],
            format_moment(item["at"]),
            _shorten_hash(item["bound_to"]),
            item["reason"] or None,
        )
        for item in result.approvals
    ]
    page.table("decisions", ("", "by", "at", "bound to", "reason"), rows)
    _waivers(page, result.waivers)
    page.next_command(next_command(result))


def render_waive(page: TextPage, result: WaiveResult) -> None:
    """Draw the failed gates of a run, after a waiver or as they were asked for."""
    _headline(page, result)
    if not result.gates:
        page.line("no gate keeps this run where it is")
    render_failed_gates(page, result.gates)
    page.next_command(result.next_command or next_command(result))


def render_run(page: TextPage, result: RunProgressResult) -> None:
    """Draw what `run` got done."""
    _staged(page, result)
    gates.render_gates(page, result.checks or ())
    page.facts((("evidence", result.report),))
    page.next_command(next_command(result))


def render_stage(page: TextPage, result: StageResult) -> None:
    """Draw what was staged."""
    _staged(page, result)
    page.next_command(next_command(result))


def _staged(page: TextPage, result: StageResult | RunProgressResult) -> None:
    _headline(page, result)
    page.facts(
        (
            ("chunks done", result.chunks_done),
            ("chunks redone", result.chunks_redone),
            ("rows", result.rows),
        )
    )


def render_shadow_open(page: TextPage, result: ShadowOpenResult) -> None:
    """Draw which table to write."""
    _headline(page, result)
    labels = result.partitions
    page.facts(
        (
            ("table to write", result.table),
            ("location", result.location),
            ("it starts as", f"the target at snapshot {result.base_snapshot_id}"),
            ("write only", f"{len(labels)} partitions of {result.scope_column}"),
            ("from, to", f"{labels[0]}, {labels[-1]}"),
            *((f"in each row {name}", value) for name, value in result.lineage.items()),
            ("in each row produced_at", "the time of writing" if result.lineage else None),
        )
    )
    page.next_command(result.next)


def render_validate(page: TextPage, result: ValidateResult) -> None:
    """Draw each gate, closed ones first, and what changed in short."""
    _headline(page, result)
    gates.render_gates(page, result.checks)
    gates.render_row_counts(page, result.diff.summary)
    gates.render_totals(page, result.totals)
    gates.render_edge(page, result.edge)
    gates.render_suite_time(page, result.spent)
    _moved_tables(page, result.moved_tables)
    page.facts((("result digest", result.digest), ("evidence", result.report)))
    page.next_command(next_command(result))


def _moved_tables(page: TextPage, found: Mapping[str, Any] | None) -> None:
    """Draw what others committed while the run was staged, and how far that was looked at."""
    from lakehouse_backfill.core.validation.movements import describe_range

    if found is None:
        return
    columns = ("table", "writer", "commits", "operations", "last snapshot")
    rows = [
        (one["table"], one["writer"], one["commits"], ", ".join(one["operations"]),
         str(one["last_snapshot_id"]))
        for one in found["moved"]
    ]  # fmt: skip
    page.table("committed by others since staging began", columns, rows)
    page.facts((("tables looked at", describe_range(found)),))


def render_rejudge(page: TextPage, result: RejudgeResult) -> None:
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


def render_status(page: TextPage, result: StatusResult) -> None:
    """Draw one run as the answers to three questions, several as a table."""
    found = result.runs
    if not found:
        page.line("no open run; lakehouse-backfill status --all lists the closed ones")
    elif len(found) == 1:
        _run_details(page, found[0])
    else:
        rows = [
            (item.run_id, item.product, _state_text(item.state), format_moment(item.at))
            for item in found
        ]
        page.table("runs", ("run", "product", "state", "since"), rows, most=None)
        page.next_command(found[0].next_command)


def render_log(page: TextPage, result: LogResult) -> None:
    """Draw the events, oldest first."""
    rows = [
        (
            format_identity(event.seq),
            format_moment(event.at),
            event.actor,
            event.verb,
            event.to_state.value,
            _detail_cell(event.detail),
        )
        for event in result.events
    ]
    page.table("", ("", "at", "who", "what", "state", "detail"), rows, most=None)


def render_chunks(page: TextPage, result: ChunksResult) -> None:
    """Draw the ledger: one line for each chunk."""
    rows = [
        (
            chunk.chunk_id,
            format_partitions(chunk.partitions),
            Text(chunk.status, style={"done": GOOD, "failed": BAD}.get(chunk.status, "")),
            chunk.input_rows,
            chunk.output_rows,
            chunk.seconds,
            _shorten_hash(chunk.checksum),
        )
        for chunk in result.chunks
    ]
    names = ("chunk", "partitions", "status", "read", "written", "seconds", "checksum")
    page.table("", names, rows, most=None, is_copied=True)


def render_recover(page: TextPage, result: RecoverResult) -> None:
    """Draw what was found half done, and what became of it."""
    if not result.actions:
        page.line("nothing stopped half way; nothing was changed")
    rows = [
        (verdict_mark(is_good=one.is_done), one.subject, one.action, one.because, one.result)
        for one in result.actions
    ]
    title = "would be done; nothing was changed" if result.dry_run else "recovered"
    page.table(title, ("", "what", "action", "because", "result"), rows, most=None)


def next_command(result: RunResult) -> str:
    """Return what to type next, by the run's state."""
    from lakehouse_backfill.core.evidence.status import summarise_safety
    from lakehouse_backfill.domain.run import RunState
    from lakehouse_backfill.errors import MANIFEST_PLACEHOLDER

    file = getattr(result, "manifest_file", "") or MANIFEST_PLACEHOLDER
    return summarise_safety(
        RunState(result.state), result.run_id, result.product, manifest_file=file
    ).next_command


def _run_details(page: TextPage, item: RunLine) -> None:
    page.facts(
        (
            ("is my data safe?", item.is_safe),
            ("what do readers see?", item.readers_see),
            ("what to type next?", item.next_command),
            ("looked at", _looked_at(item)),
        )
    )
    render_failed_gates(page, item.gates or ())
    _waivers(page, item.waivers or ())
    gates.render_readers(page, item.dual_reads or ())
    gates.render_steps(page, item.steps or ())
    page.line()
    page.facts(
        (
            ("run", item.run_id),
            ("product", item.product),
            ("state", _state_text(item.state)),
            ("since", format_moment(item.at)),
            ("driver", item.driver),
        )
    )


def _looked_at(item: RunLine) -> str | None:
    """Describe what the answers rest on; None where they say it themselves."""
    if item.state not in ("published", "publish_halted") or "not looked at" in item.is_safe:
        return None
    return f"metadata; data files are opened by lakehouse-backfill verify {item.run_id}"


def _headline(page: TextPage, result: RunResult) -> None:
    page.draw(Text.assemble(f"{result.run_id}  ", _state_text(result.state)))


def _state_text(state: str) -> Text:
    bad = dict.fromkeys(("failed", "rejected", "halted", "publish_halted"), BAD)
    return Text(state, style={"published": GOOD, **bad}.get(state, "bold"))


def _waivers(page: TextPage, waivers: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (item["gate"], item["scope"], item["by"], format_moment(item["at"]), item["reason"] or None)
        for item in waivers
    ]
    names = ("failed gate", "of", "by", "at", "reason")
    page.table("passed although they failed", names, rows, most=None)


def _detail_cell(detail: Mapping[str, Any]) -> Text:
    there = {key: value for key, value in detail.items() if value not in (None, "", [], {})}
    return format_cell({key: _shorten_hash(value) for key, value in there.items()})


def _shorten_hash(value: Any) -> str:
    """Hashes are recognised by their first letters; nobody reads all 64."""
    text = "-" if value is None else str(value)
    is_hash = len(text) >= 32 and " " not in text
    return f"{text[:12]}…{text[-8:]}" if is_hash else text
