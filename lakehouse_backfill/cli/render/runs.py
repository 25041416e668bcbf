"""status, log, chunks, run, stage, validate, and the decisions on a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from lakehouse_backfill.cli.render import rollout, verdicts
from lakehouse_backfill.cli.render.gates import stopped
from lakehouse_backfill.cli.render.page import (
    BAD,
    GOOD,
    Page,
    cell,
    mark,
    moment,
    name_of,
    span,
)

Data = Mapping[str, Any]


def decision(page: Page, data: Data) -> None:
    """Draw the state after a decision, and the decisions that stand."""
    _headline(page, data)
    _approvals(page, data.get("approvals") or ())
    _waivers(page, data.get("waivers") or ())
    page.next(next_of(data))


def waived(page: Page, data: Data) -> None:
    """Draw the failed gates of a run, after a waiver or as they were asked for."""
    _headline(page, data)
    gates = data.get("gates") or ()
    if not gates:
        page.line("no gate keeps this run where it is")
    stopped(page, gates)
    page.next(next_of(data))


def driven(page: Page, data: Data) -> None:
    """Draw what `run` got done."""
    staged(page, data, is_last=False)
    verdicts.gates(page, data.get("checks") or ())
    page.facts(_publication(data))
    page.next(next_of(data))


def staged(page: Page, data: Data, *, is_last: bool = True) -> None:
    """Draw what was staged."""
    _headline(page, data)
    page.facts(
        (
            ("chunks done", data.get("chunks_done")),
            ("chunks redone", data.get("chunks_redone")),
            ("rows", data.get("rows")),
        )
    )
    page.next(next_of(data) if is_last else None)


def shadow_opened(page: Page, data: Data) -> None:
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
    page.next(data["next"])


def validated(page: Page, data: Data) -> None:
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
    verdicts.gates(page, data.get("checks") or ())
    verdicts.summary(page, data)
    verdicts.totals(page, data.get("totals") or ())
    verdicts.edge(page, data.get("edge") or {})
    verdicts.spent(page, data)
    page.facts((("result digest", data.get("digest")), ("evidence", data.get("report"))))
    page.next(next_of(data))


def status(page: Page, data: Data) -> None:
    """Draw one run as the answers to three questions, several as a table."""
    found = list(data["runs"])
    if not found:
        page.line("no open run; lakehouse-backfill status --all lists the closed ones")
    elif len(found) == 1:
        _one(page, found[0])
    else:
        rows = [
            (item.get("run_id"), item.get("product"), _state(item), moment(item.get("at")))
            for item in found
        ]
        page.table("runs", ("run", "product", "state", "since"), rows, most=None)
        page.next(next_of(found[0]))


def log(page: Page, data: Data) -> None:
    """Draw the events, oldest first."""
    rows = [
        (
            name_of(event.get("seq")),
            moment(event.get("at")),
            event.get("actor"),
            event.get("verb"),
            event.get("to_state"),
            _detail(event.get("detail") or {}),
        )
        for event in data["events"]
    ]
    page.table("", ("", "at", "who", "what", "state", "detail"), rows, most=None)


def chunks(page: Page, data: Data) -> None:
    """Draw the ledger: one line for each chunk."""
    rows = [
        (
            chunk.get("chunk_id"),
            span(list(chunk.get("partitions") or ())),
            _chunk_state(str(chunk.get("status"))),
            chunk.get("input_rows"),
            chunk.get("output_rows"),
            chunk.get("seconds"),
            _short(chunk.get("checksum")),
        )
        for chunk in data["chunks"]
    ]
    names = ("chunk", "partitions", "status", "read", "written", "seconds", "checksum")
    page.table("", names, rows, most=None, is_copied=True)


def recovered(page: Page, data: Data) -> None:
    """Draw what was found half done, and what became of it."""
    found = list(data["actions"])
    if not found:
        page.line("nothing stopped half way; nothing was changed")
    rows = [
        (
            mark(is_good=bool(item.get("is_done"))),
            item.get("subject"),
            item.get("action"),
            item.get("because"),
            item.get("result"),
        )
        for item in found
    ]
    title = "would be done; nothing was changed" if data.get("dry_run") else "recovered"
    page.table(title, ("", "what", "action", "because", "result"), rows, most=None)


def next_of(data: Data) -> str | None:
    """Give what to type next: as the result says, else by the run's state."""
    if data.get("next_command"):
        return str(data["next_command"])
    run, state = data.get("run_id"), data.get("state")
    if not run or not state:
        return None
    from lakehouse_backfill.commands import MANIFEST
    from lakehouse_backfill.core.evidence.standing import standing
    from lakehouse_backfill.domain.run import State

    product, file = data.get("product") or "PRODUCT", data.get("manifest_file") or MANIFEST
    return standing(State(state), str(run), str(product), manifest_file=str(file)).next_command


def _one(page: Page, item: Mapping[str, Any]) -> None:
    answers = (
        ("is my data safe?", item.get("is_safe")),
        ("what do readers see?", item.get("readers_see")),
        ("what to type next?", item.get("next_command") or next_of(item)),
    )
    page.facts(answers)
    stopped(page, item.get("gates") or ())
    _waivers(page, item.get("waivers") or ())
    rollout.readers(page, item.get("dual_reads") or ())
    rollout.steps(page, item.get("steps") or ())
    page.line()
    page.facts(
        (
            ("run", item.get("run_id")),
            ("product", item.get("product")),
            ("state", _state(item)),
            ("since", moment(item["at"]) if item.get("at") else None),
            ("driver", item.get("driver")),
        )
    )


def _headline(page: Page, data: Data) -> None:
    if data.get("run_id"):
        page.draw(Text.assemble(f"{data['run_id']}  ", _state(data)))
    elif data.get("state"):
        page.draw(_state(data))


def _state(item: Mapping[str, Any]) -> Text:
    state = str(item.get("state"))
    bad = dict.fromkeys(("failed", "rejected", "halted", "publish_halted"), BAD)
    style = {"published": GOOD, **bad}.get(state, "bold")
    return Text(state, style=style)


def _chunk_state(text: str) -> Text:
    return Text(text, style={"done": GOOD, "failed": BAD}.get(text, ""))


def _approvals(page: Page, approvals: Sequence[Any]) -> None:
    rows = [
        (
            item.get("decision"),
            item.get("by"),
            moment(item.get("at")),
            _short(item.get("bound_to")),
            item.get("reason") or None,
        )
        for item in approvals
    ]
    page.table("decisions", ("", "by", "at", "bound to", "reason"), rows)


def _waivers(page: Page, waivers: Sequence[Any]) -> None:
    rows = [
        (
            item.get("gate"),
            item.get("scope"),
            item.get("by"),
            moment(item.get("at")),
            item.get("reason") or None,
        )
        for item in waivers
    ]
    names = ("failed gate", "of", "by", "at", "reason")
    page.table("passed although they failed", names, rows, most=None)


def _publication(data: Data) -> list[tuple[str, Any]]:
    version = data.get("version")
    return [
        ("output version", name_of(version) if version is not None else None),
        ("evidence", data.get("report")),
    ]


def _detail(detail: Mapping[str, Any]) -> Text:
    there = {key: value for key, value in detail.items() if value not in (None, "", [], {})}
    return cell({key: _short(value) for key, value in there.items()})


def _short(value: Any) -> str:
    """Hashes are recognised by their first letters; nobody reads all 64."""
    text = "-" if value is None else str(value)
    is_hash = len(text) >= 32 and " " not in text
    return f"{text[:12]}…{text[-8:]}" if is_hash else text
