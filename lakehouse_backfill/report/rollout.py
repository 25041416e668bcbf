"""How the result reaches readers: comparisons of readers, and steps; as data and on the page."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.publication.stages_dual_read import DualReadResult
from lakehouse_backfill.core.versions import rollout
from lakehouse_backfill.domain.partitions import describe_labels
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import NO_VALUE, Markup, format_moment, html_tag, join
from lakehouse_backfill.report.parts import (
    TableColumn,
    code_text,
    folded_details,
    page_table,
    verdict_mark,
)


def dual_read_result(done: DualReadResult) -> dict[str, Any]:
    """Say what a comparison found, and where the run's readers stand."""
    found = done.comparison.model_dump(mode="json")
    return {
        "run_id": done.status.run_id,
        "product": done.status.product,
        "state": done.status.state.value,
        "digest": done.digest,
        "comparison": found,
        "equal": done.comparison.equal,
        "readers": [vars(item) for item in done.readers],
    }


def steps_result(plan: Plan) -> dict[str, Any]:
    """List the partitions of each step; nothing for a run that is published at once."""
    steps = rollout.preview_steps(plan)
    return {"steps": steps} if steps else {}


def rollout_section(dossier: Dossier) -> Markup:
    """Show what readers compared, and the steps, where there are any."""
    return join([_reader_comparisons(dossier.dual_reads), _step_table(dossier.steps)])


def _reader_comparisons(found: tuple[dict[str, Any], ...]) -> Markup:
    if not found:
        return Markup("")
    heads = (
        TableColumn("Reader", is_word=True), TableColumn("Result"), TableColumn("Rows old, new"),
        TableColumn("By", is_word=True), TableColumn("At", is_wide=True), TableColumn("Seen", is_wide=True),
    )  # fmt: skip
    rows = [_reader_row(item) for item in found]
    lead = (
        "The same query of each reader, on the accepted version and on this candidate. A reader "
        "that is required and missing or different stops publication."
    )
    return html_tag(
        "div", html_tag("h3", "What readers compared"), html_tag("p", lead), page_table(heads, rows),
        *(_reader_query(item) for item in found if item.get("comparison")),
    )  # fmt: skip


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
        TableColumn("Step", is_number=True), TableColumn("Partitions", is_wide=True),
        TableColumn("Version", is_number=True), TableColumn("Check"), TableColumn("Seen", is_wide=True),
    )  # fmt: skip
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
