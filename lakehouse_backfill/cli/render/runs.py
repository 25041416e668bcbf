"""Views of status, log, chunks, run, stage, and the decisions on a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakehouse_backfill.cli.render import compare, gates
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
from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.domain.identity.statement import SIGNATURE

if TYPE_CHECKING:
    from lakehouse_backfill.domain.checks import MeasureTotal
    from lakehouse_backfill.domain.run import Event
    from lakehouse_backfill.results import runs
    from lakehouse_backfill.results.base import RunResult
    from lakehouse_backfill.results.publications import NoteResult, RecoverResult


def render_decision(page: TextPage, result: runs.DecisionResult) -> None:
    """Draw the state after a decision, and the decisions that stand."""
    _headline(page, result)
    page.records(
        "decisions", ": decision | by | signature | at | bound to: bound_to | reason",
        result.approvals, reason=_reason,
    )  # fmt: skip
    _waivers(page, result.waivers)
    if result.proof_limit:
        page.line(f"not proven: {result.proof_limit}")
    ask_for_note(page, result.note_command)
    page.next_command(next_command(result))


def ask_for_note(page: TextPage, command: str | None) -> None:
    """Write the command for the note that a closed run lacks."""
    if command:
        page.line()
        page.other_command("what was learned, for the next plan", command)


def render_note(page: TextPage, result: NoteResult) -> None:
    """Draw the notes on a run."""
    _headline(page, result)
    page.records("notes", "at | who: by | note: text", result.notes, most=None)


def render_waive(page: TextPage, result: runs.WaiveResult) -> None:
    """Draw the failed gates of a run, after a waiver or as they were asked for."""
    _headline(page, result)
    if not result.gates:
        page.line("no gate keeps this run where it is")
    render_failed_gates(page, result.gates)
    page.next_command(next_command(result))


def render_run(page: TextPage, result: runs.RunProgressResult) -> None:
    """Draw what `run` got done: only gates that did not pass, then one line that sums up."""
    if result.chunks_done or result.checks:
        _staged(page, result)
    else:
        _headline(page, result)
        page.line("nothing was left to compute")
    gates.render_gates(page, result.checks or (), is_short=True)
    page.facts(read_fields(result, "evidence: report"))
    if result.changes is not None:
        page.line()
        page.line(describe_outcome(result), "bold")
    page.next_command(next_command(result))


#: Totals that the last line of `run` names: those that moved most.
_MAX_TOTALS = 3


def describe_outcome(result: runs.RunProgressResult) -> str:
    """Describe in one line how many rows change, how totals move, and how many checks failed."""
    from lakehouse_backfill.core.runs.gate_registry import find_verdict

    changes, checks = result.changes, result.checks or ()
    parts = []
    if changes is not None:
        count = changes.added + changes.removed + changes.changed
        kinds = f"{changes.added:,} added, {changes.removed:,} removed, {changes.changed:,} changed"
        parts.append(f"{count:,} of {changes.old_rows:,} rows change ({kinds})")
    moves = [(name, move) for name, move in map(_move, result.totals or ()) if move is not None]
    moves = sorted(moves, key=lambda each: -abs(each[1]))[:_MAX_TOTALS]
    totals = [f"{name} {move * 100:+.2f} %" if move else f"{name} ±0 %" for name, move in moves]
    parts += [", ".join(totals)] if totals else []
    verdicts = [find_verdict(check) for check in checks]
    parts.append(f"{verdicts.count('failed')} of {len(checks)} checks failed")
    if weak := verdicts.count("failed without blocking"):
        parts[-1] += f", {weak} more without blocking"
    return "; ".join(parts)


def _move(total: MeasureTotal) -> tuple[str, float | None]:
    """Return the name of a total and by which part it moved; None where that says nothing."""
    try:
        old, new = float(total.old or 0), float(total.new or 0)
    except ValueError:
        return total.name, None
    if total.of is not None or not math.isfinite(old) or not math.isfinite(new) or not old:
        return total.name, None
    return total.name, (new - old) / abs(old)


def render_stage(page: TextPage, result: runs.StageResult) -> None:
    """Draw what was staged."""
    _staged(page, result)
    page.next_command(next_command(result))


def _staged(page: TextPage, result: runs.StageResult | runs.RunProgressResult) -> None:
    _headline(page, result)
    counts = (
        "chunks done: chunks_done | done before this call: chunks_before | "
        "chunks redone: chunks_redone | rows"
    )
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


def render_try(page: TextPage, result: runs.TryResult) -> None:
    """Draw the rows of the partition, its checks, and what would change."""
    page.line(f"{result.product} {result.partition}, tried: nothing of it is kept", "bold")
    counts = "rows read: input_rows | rows computed: output_rows | rows outside, left out: "
    page.facts(read_fields(result, f"{counts}outside_rows | seconds"))
    gates.render_gates(page, result.checks)
    gates.render_row_counts(page, result.diff.summary)
    page.records("totals of the partition", "measure: name | old | new", result.totals)
    compare.render_changed_columns(page, result.diff)
    if result.not_judged:
        page.line()
        page.line(f"not judged on one partition: {', '.join(result.not_judged)}")
    page.next_command(plan_command(result.manifest_file) if result.passed else result.command)


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
        _attention(page, result)
        page.next_command(found[0].next_command)
        return
    _attention(page, result)


def _attention(page: TextPage, result: runs.StatusResult) -> None:
    """Draw the runs that were forgotten, and the pins that end, each with what to type."""
    columns = "what: kind | run: run_id | product | why: text | command: next_command"
    page.records("needs attention", columns, result.attention or (), is_copied=True)


def render_list(page: TextPage, result: runs.ListResult) -> None:
    """Draw the runs that a filter found, as a table."""
    columns = "run: run_id | product | state | since: at"
    page.records(f"{len(result.runs):,} runs", columns, result.runs, state=_state_cell)
    if not result.runs:
        page.line("no run is like that")


def render_alerts(page: TextPage, result: runs.AlertsResult) -> None:
    """Draw the alerts, each with what to type, and the hooks that were called for it now."""
    columns = "cause | run: run_id | product | since | why: text | called | command: next_command"
    page.records("alerts", columns, result.alerts, most=None, is_copied=True, called=_called_cell)
    if not result.alerts:
        page.line("no alert")


def _called_cell(alert: Any) -> str | None:
    return ", ".join(f"{one.hook}: {one.detail}" for one in alert.calls) or None


def render_metrics(page: TextPage, result: runs.MetricsResult) -> None:
    """Write the exposition itself, so that it can be sent to a file."""
    page.stream.write(result.text)


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


def render_run_preview(page: TextPage, result: runs.RunPreviewResult) -> None:
    """Draw what `run` would do with each chunk."""
    _headline(page, result)
    acts = Counter(chunk.act for chunk in result.chunks)
    labels = {name: name.replace("_", " ") for name in acts}
    counts = ", ".join(f"{count:,} to {labels[name]}" for name, count in acts.items())
    page.line(f"run {result.then}; of {len(result.chunks):,} chunks {counts}")
    page.records(
        "chunks; nothing was changed",
        "chunk: chunk_id | partitions | act | because",
        result.chunks,
        most=None,
        is_copied=True,
        act=lambda chunk: labels[chunk.act],
    )
    page.next_command(result.next_command)


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
    """Return what to type next: as the verb found it, else by the run's state."""
    if result.next_command:
        return result.next_command
    from lakehouse_backfill.core.evidence.status import summarise_safety
    from lakehouse_backfill.domain.run import RunState

    file = getattr(result, "manifest_file", "")
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
    page.facts(("messages", text) for text in item.messages_lost or ())
    page.facts(("note", text) for text in item.notes or ())
    ask_for_note(page, item.note_command)


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
    from lakehouse_backfill.core.runs import gate_registry

    page.records(
        "passed although they failed",
        "failed check: gate | of: scope | by | signature | at | reason",
        waivers,
        most=None,
        reason=_reason,
        gate=lambda one: gate_registry.gate_question(one["gate"], one.get("group") or ""),
    )


def _reason(item: Mapping[str, Any]) -> str | None:
    return item["reason"] or None


def _detail_cell(event: Event) -> Text:
    from lakehouse_backfill.core.runs import gate_registry

    told = gate_registry.with_questions(event.detail)
    there = {key: value for key, value in told.items() if value not in (None, "", [], {})}
    if there.pop(SIGNATURE, None):
        there[SIGNATURE] = "stored; lakehouse-backfill verify checks it"
    return format_cell({key: _shorten_text(value) for key, value in there.items()})


def _shorten_text(value: Any) -> Any:
    return shorten_hash(value) if isinstance(value, str) else value
