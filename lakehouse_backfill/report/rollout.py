"""How the result reaches readers: comparisons of readers, and steps; as data and on the page."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.publication.stages_dual_read import Compared
from lakehouse_backfill.core.versions import rollout
from lakehouse_backfill.domain.partitions import describe
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import NOTHING, Markup, join, moment, tag
from lakehouse_backfill.report.parts import Column, code, folded, mark, table


def dual_read_result(done: Compared) -> dict[str, Any]:
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
    steps = rollout.preview(plan)
    return {"steps": steps} if steps else {}


def shown(dossier: Dossier) -> Markup:
    """Show what readers compared, and the steps, where there are any."""
    return join([_readers(dossier.dual_reads), _steps(dossier.steps)])


def _readers(found: tuple[dict[str, Any], ...]) -> Markup:
    if not found:
        return Markup("")
    heads = (
        Column("Reader", is_word=True), Column("Result"), Column("Rows old, new"),
        Column("By", is_word=True), Column("At", is_wide=True), Column("Seen", is_wide=True),
    )  # fmt: skip
    rows = [_reader(item) for item in found]
    lead = (
        "The same query of each reader, on the accepted version and on this candidate. A reader "
        "that is required and missing or different stops publication."
    )
    return tag(
        "div", tag("h3", "What readers compared"), tag("p", lead), table(heads, rows),
        *(_query(item) for item in found if item.get("comparison")),
    )  # fmt: skip


def _reader(item: dict[str, Any]) -> tuple[Any, ...]:
    known = item.get("comparison") or {}
    outcome = str(item["outcome"])
    result = mark(good=outcome in ("equal", "accepted"), yes=outcome, no=outcome)
    if not item.get("required"):
        result = join([result, " (not required)"])
    rows = f"{known['old_answer']['rows']:,}, {known['new_answer']['rows']:,}" if known else NOTHING
    seen: Any = NOTHING
    if item.get("accepted_by"):
        seen = f"accepted by {item['accepted_by']}: {item.get('reason') or NOTHING}"
    elif known and not known["equal"]:
        seen = join([f"only old {known['only_old']}, ", f"only new {known['only_new']}"])
    at = moment(str(item["at"])) if item.get("at") else NOTHING
    return item["reader"], result, rows, item.get("by") or NOTHING, at, seen


def _query(item: dict[str, Any]) -> Markup:
    known = item["comparison"]
    digests = tag(
        "p", "old ", code(known["old_answer"]["digest"][:16]), ", new ",
        code(known["new_answer"]["digest"][:16]), class_="small soft",
    )  # fmt: skip
    took = known.get("seconds")
    timed = f"It took {took[0]:.2f} s on the old and {took[1]:.2f} s on the new." if took else ""
    return folded(
        f"Query of {item['reader']}", tag("pre", code(known["sql"])), tag("p", timed), digests
    )


def _steps(found: tuple[dict[str, Any], ...]) -> Markup:
    if not found:
        return Markup("")
    heads = (
        Column("Step", is_number=True), Column("Partitions", is_wide=True),
        Column("Version", is_number=True), Column("Check"), Column("Seen", is_wide=True),
    )  # fmt: skip
    rows = [
        (
            item["step"], describe(tuple(item["partitions"])), item["version"],
            mark(good=bool(item["passed"])),
            "; ".join(str(check["detail"]) for check in item["checks"] if not check["passed"])
            or f"{len(item['checks'])} checks",
        )
        for item in found
    ]  # fmt: skip
    lead = "Each step is a version of its own, checked as readers see it before the next one."
    return tag("div", tag("h3", "Published in steps"), tag("p", lead), table(heads, rows))
