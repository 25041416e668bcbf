"""Views of status, log, chunks, run, stage, and the decisions on a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

Data = Mapping[str, Any]


def render_decision(page: TextPage, data: Data) -> None:
    """Draw the state after a decision, and the decisions that stand."""
    _headline(page, data)
    _approvals(page, data.get("approvals") or ())
    _waivers(page, data.get("waivers") or ())
    page.next_command(next_command(data))


def render_waive(page: TextPage, data: Data) -> None:
    """Draw the failed gates of a run, after a waiver or as they were asked for."""
    _headline(page, data)
    gates = data.get("gates") or ()
    if not gates:
        page.line("no gate keeps this run where it is")
    render_failed_gates(page, gates)
    page.next_command(next_command(data))


def render_run(page: TextPage, data: Data) -> None:
    """Draw what `run` got done."""
    render_stage(page, data, is_last=False)
    gates.render_gates(page, data.get("checks") or ())
    page.facts(_publication_facts(data))
    page.next_command(next_command(data))


def render_stage(page: TextPage, data: Data, *, is_last: bool = True) -> None:
    """Draw what was staged."""
    _headline(page, data)
    page.facts(
        (
            ("chunks done", data.get("chunks_done")),
            ("chunks redone", data.get("chunks_redone")),
            ("rows", data.get("rows")),
        )
    )
    page.next_command(next_command(data) if is_last else None)


def render_shadow_open(page: TextPage, data: Data) -> None:
    """Draw which table to write."""
    _headline(page, data)
    labels = data["partitions"]
    page.facts(
        (
            ("table to write", data["table"]),
            ("location", data["location"]),
            ("it starts as", f"the target at snapshot {data['base_snapshot_id']}"),
            ("write only", f"{len(labels)} partitions of {data['scope_column']}"),
            ("from, to", f"{labels[0]}, {labels[-1]}"),
            *((f"in each row {name}", value) for name, value in data["lineage"].items()),
            ("in each row produced_at", "the time of writing" if data["lineage"] else None),
        )
    )
    page.next_command(data["next"])


def render_validate(page: TextPage, data: Data) -> None:
    """Draw each gate, closed ones first, and what changed in short."""
    _headline(page, data)
    if "run_id" not in data:
        page.facts(
            (
                ("product", data.get("product")),
                ("output version", data.get("version")),
                ("read from", f"{data.get('table')}@{data.get('snapshot_id')}"),
                (
                    "changed by live writes since",
                    ", ".join(data.get("changed_since") or ()) or None,
                ),
            )
        )
    gates.render_gates(page, data.get("checks") or ())
    gates.render_row_counts(page, data)
    gates.render_totals(page, data.get("totals") or ())
    gates.render_edge(page, data.get("edge") or {})
    gates.render_suite_time(page, data)
    page.facts((("result digest", data.get("digest")), ("evidence", data.get("report"))))
    page.next_command(next_command(data))


def render_status(page: TextPage, data: Data) -> None:
    """Draw one run as the answers to three questions, several as a table."""
    found = list(data["runs"])
    if not found:
        page.line("no open run; lakehouse-backfill status --all lists the closed ones")
    elif len(found) == 1:
        _run_details(page, found[0])
    else:
        rows = [
            (
                item.get("run_id"),
                item.get("product"),
                _state_text(item),
                format_moment(item.get("at")),
            )
            for item in found
        ]
        page.table("runs", ("run", "product", "state", "since"), rows, most=None)
        page.next_command(next_command(found[0]))


def render_log(page: TextPage, data: Data) -> None:
    """Draw the events, oldest first."""
    rows = [
        (
            format_identity(event.get("seq")),
            format_moment(event.get("at")),
            event.get("actor"),
            event.get("verb"),
            event.get("to_state"),
            _detail_cell(event.get("detail") or {}),
        )
        for event in data["events"]
    ]
    page.table("", ("", "at", "who", "what", "state", "detail"), rows, most=None)


def render_chunks(page: TextPage, data: Data) -> None:
    """Draw the ledger: one line for each chunk."""
    rows = [
        (
            chunk.get("chunk_id"),
            format_partitions(list(chunk.get("partitions") or ())),
            _chunk_status_text(str(chunk.get("status"))),
            chunk.get("input_rows"),
            chunk.get("output_rows"),
            chunk.get("seconds"),
            _shorten_hash(chunk.get("checksum")),
        )
        for chunk in data["chunks"]
    ]
    names = ("chunk", "partitions", "status", "read", "written", "seconds", "checksum")
    page.table("", names, rows, most=None, is_copied=True)


def render_recover(page: TextPage, data: Data) -> None:
    """Draw what was found half done, and what became of it."""
    found = list(data["actions"])
    if not found:
        page.line("nothing stopped half way; nothing was changed")
    rows = [
        (
            verdict_mark(is_good=bool(item.get("is_done"))),
            item.get("subject"),
            item.get("action"),
            item.get("because"),
            item.get("result"),
        )
        for item in found
    ]
    title = "would be done; nothing was changed" if data.get("dry_run") else "recovered"
    page.table(title, ("", "what", "action", "because", "result"), rows, most=None)


def next_command(data: Data) -> str | None:
    """Return what to type next: as the result says, else by the run's state."""
    if data.get("next_command"):
        return str(data["next_command"])
    run, state = data.get("run_id"), data.get("state")
    if not run or not state:
        return None
    from lakehouse_backfill.core.evidence.status import summarise_safety
    from lakehouse_backfill.domain.run import RunState
    from lakehouse_backfill.errors import MANIFEST_PLACEHOLDER

    product, file = (
        data.get("product") or "PRODUCT",
        data.get("manifest_file") or MANIFEST_PLACEHOLDER,
    )
    return summarise_safety(
        RunState(state), str(run), str(product), manifest_file=str(file)
    ).next_command


def _run_details(page: TextPage, item: Mapping[str, Any]) -> None:
    answers = (
        ("is my data safe?", item.get("is_safe")),
        ("what do readers see?", item.get("readers_see")),
        ("what to type next?", item.get("next_command") or next_command(item)),
    )
    page.facts(answers)
    render_failed_gates(page, item.get("gates") or ())
    _waivers(page, item.get("waivers") or ())
    gates.render_readers(page, item.get("dual_reads") or ())
    gates.render_steps(page, item.get("steps") or ())
    page.line()
    page.facts(
        (
            ("run", item.get("run_id")),
            ("product", item.get("product")),
            ("state", _state_text(item)),
            ("since", format_moment(item["at"]) if item.get("at") else None),
            ("driver", item.get("driver")),
        )
    )


def _headline(page: TextPage, data: Data) -> None:
    if data.get("run_id"):
        page.draw(Text.assemble(f"{data['run_id']}  ", _state_text(data)))
    elif data.get("state"):
        page.draw(_state_text(data))


def _state_text(item: Mapping[str, Any]) -> Text:
    state = str(item.get("state"))
    bad = dict.fromkeys(("failed", "rejected", "halted", "publish_halted"), BAD)
    style = {"published": GOOD, **bad}.get(state, "bold")
    return Text(state, style=style)


def _chunk_status_text(text: str) -> Text:
    return Text(text, style={"done": GOOD, "failed": BAD}.get(text, ""))


def _approvals(page: TextPage, approvals: Sequence[Any]) -> None:
    rows = [
        (
            item.get("decision"),
            item.get("by"),
            format_moment(item.get("at")),
            _shorten_hash(item.get("bound_to")),
            item.get("reason") or None,
        )
        for item in approvals
    ]
    page.table("decisions", ("", "by", "at", "bound to", "reason"), rows)


def _waivers(page: TextPage, waivers: Sequence[Any]) -> None:
    rows = [
        (
            item.get("gate"),
            item.get("scope"),
            item.get("by"),
            format_moment(item.get("at")),
            item.get("reason") or None,
        )
        for item in waivers
    ]
    names = ("failed gate", "of", "by", "at", "reason")
    page.table("passed although they failed", names, rows, most=None)


def _publication_facts(data: Data) -> list[tuple[str, Any]]:
    version = data.get("version")
    return [
        ("output version", format_identity(version) if version is not None else None),
        ("evidence", data.get("report")),
    ]


def _detail_cell(detail: Mapping[str, Any]) -> Text:
    there = {key: value for key, value in detail.items() if value not in (None, "", [], {})}
    return format_cell({key: _shorten_hash(value) for key, value in there.items()})


def _shorten_hash(value: Any) -> str:
    """Hashes are recognised by their first letters; nobody reads all 64."""
    text = "-" if value is None else str(value)
    is_hash = len(text) >= 32 and " " not in text
    return f"{text[:12]}…{text[-8:]}" if is_hash else text
