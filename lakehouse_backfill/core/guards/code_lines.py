"""Finds the line of the code that an analysed plan comes from: a plan has functions, no lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from lakehouse_backfill.core.guards.analysed_plan import PlanFact
from lakehouse_backfill.core.guards.python_source import parse_job
from lakehouse_backfill.domain.guards.determinism import Finding
from lakehouse_backfill.domain.manifest import TransformRef

#: Other names in code for what a plan calls by the name at the left.
_NAMES = {
    "avg": ("avg", "mean"), "stddev": ("stddev", "stddev_samp", "std"),
    "variance": ("variance", "var_samp"), "sum": ("sum", "sum_distinct"),
    "current_date": ("current_date", "curdate"), "collect_list": ("collect_list", "array_agg"),
    "listagg": ("listagg", "string_agg"),
    "first": ("first", "first_value"), "last": ("last", "last_value"),
    "dropDuplicates": ("dropDuplicates", "drop_duplicates"), "limit": ("limit", "head", "take"),
    "sample": ("sample", "sampleBy", "randomSplit", "tablesample"),
    "groupBy": ("groupBy", "groupby", "group"), "orderBy": ("orderBy", "sort", "order"),
    "partitionBy": ("partitionBy", "over", "partition"),
    "repartition": ("repartition", "repartitionByRange", "distribute"),
    "read": ("table", "load", "parquet", "csv", "json", "orc", "sql"),
}  # fmt: skip


def locate_facts(
    facts: Iterable[PlanFact], texts: Mapping[str, str], transform: TransformRef
) -> tuple[Finding, ...]:
    """Return a finding for each fact, with the line of the code that most likely makes it.

    Line 0: the code doesn't name it, as it stands in a package, or is put together at run time.
    """
    lines = list(_code_lines(texts, transform))
    return tuple(_locate(fact, lines, transform.file) for fact in facts)


def _locate(fact: PlanFact, lines: list[tuple[str, int, str, str]], job: str) -> Finding:
    first = fact.function.split()[0]
    names = _NAMES.get(first, (first,))
    found = [one for one in lines if one[2].lower() in (name.lower() for name in names)]
    best = [one for one in found if any(column in one[3] for column in fact.columns)] or found
    file, line = best[0][:2] if best else (job, 0)
    others = "".join(f", or line {other}" for _, other, _, _ in best[1:3])
    return Finding(
        kind=fact.kind, file=file, line=line, found=f"{fact}{others}", severity=fact.severity
    )


def _code_lines(
    texts: Mapping[str, str], transform: TransformRef
) -> Iterator[tuple[str, int, str, str]]:
    """Yield file, line, name and text of each function that the code calls."""
    if transform.file.endswith(".sql"):
        yield from _sql_lines(texts.get(transform.file, ""), transform.file, 1)
        return
    python = {file: text for file, text in texts.items() if file.endswith(".py")}
    if transform.file not in python:
        return
    source = parse_job(python, transform.file)
    reached = source.reached(transform.name, transform.version)
    for use in source.uses_of(reached):
        if use.kind == "call":
            name = use.name.rpartition(".")[2]
            line = getattr(use.node, "end_lineno", use.line) if "." in use.name else use.line
            yield use.file, _call_line(use.node, line), name, ast.unparse(use.node)
    for place in source.places():
        value = place.node.value if isinstance(place.node, ast.Constant) else None
        if isinstance(value, str) and place.scope.definition in reached:
            yield place.file, place.line, value, value
            yield from _sql_lines(value, place.file, place.line)


def _call_line(node: ast.AST, default: int) -> int:
    """Return the line of a method's name, in a chain over several lines."""
    function = getattr(node, "func", None)
    end = getattr(function, "end_lineno", None)
    return end if isinstance(end, int) else default


def _sql_lines(text: str, file: str, first: int) -> Iterator[tuple[str, int, str, str]]:
    for number, row in enumerate(text.splitlines()):
        for match in re.finditer(r"(\w+)", row.partition("--")[0]):
            yield file, first + number, match.group(1), row
