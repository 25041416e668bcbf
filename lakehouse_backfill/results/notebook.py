"""HTML of results for notebooks: tables and small bars; Jinja2 escapes every text in it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template

    from lakehouse_backfill.domain.checks import PartitionDiff
    from lakehouse_backfill.results.comparison import DiffResult
    from lakehouse_backfill.results.plans import PlanResult
    from lakehouse_backfill.results.runs import StatusResult

#: More rows than this are counted below the table, not drawn.
MAX_ROWS = 50
#: Blue, orange and grey: told apart by people who do not see red and green apart.
_COLOURS = {"added": "#2b6cb0", "removed": "#c05621", "changed": "#718096"}
_BAR_WIDTH = 240


def plan_html(plan: PlanResult) -> str:
    """Draw a plan: what it changes, the pinned snapshots, open questions and notes."""
    return _template("plan.html").render(plan=plan)


def diff_html(diff: DiffResult) -> str:
    """Draw a diff: the sums, a bar for each differing partition, changed columns and samples."""
    differing = [one for one in diff.partitions if _differing_rows(one)]
    most = max(map(_differing_rows, differing), default=1)
    return _template("diff.html").render(diff=diff, differing=differing, most=most)


def status_html(status: StatusResult) -> str:
    """Draw one run as the answers to three questions and its gates, several as a table."""
    return _template("status.html").render(runs=status.runs)


def _differing_rows(one: PartitionDiff) -> int:
    return one.added + one.removed + one.changed


@cache
def _template(name: str) -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("lakehouse_backfill.results"),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
        finalize=lambda value: "\N{EN DASH}" if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"max_rows": MAX_ROWS, "colours": _COLOURS, "bar_width": _BAR_WIDTH}
    environment.filters["thousands"] = "{:,}".format
    return environment.get_template(name)
