"""Assertions for the tests of a project's own transforms; see docs/determinism.md for an example.

They need a Spark session, and neither a catalog nor a lake: the inputs are DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.transforms import TransformInfo, transform_info

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakehouse_backfill.adapters.spark.staging.jobs import JobContext
    from lakehouse_backfill.domain.guards.determinism import Finding

__all__ = ["assert_deterministic", "assert_warm_up", "job_context"]

_Transform = Callable[..., Any]


def job_context(**fields: Any) -> JobContext:
    """Return the context that a transform gets, with values for tests where none is given.

    Its fields: run_id, mode, clock, transform_version, config, publish_from, publish_to,
    reference_versions, row_predicate.
    """
    from lakehouse_backfill.adapters.spark.staging.jobs import JobContext

    known: dict[str, Any] = {
        "run_id": "bf-test",
        "mode": "backfill",
        "clock": datetime(2024, 1, 1, tzinfo=timezone.utc),
        "transform_version": "0.0.0",
        "config": {},
    }
    given = known | fields
    given["config"] = MappingProxyType(dict(given["config"]))
    return JobContext(**given)


def assert_deterministic(
    transform: _Transform,
    inputs: Mapping[str, DataFrame],
    *,
    context: JobContext | None = None,
    allow: tuple[str, ...] = (),
) -> None:
    """Assert that a transform gives the same rows for the same input.

    Its source file is judged as `plan` does, the analysed plan as `stage` does, and its output is
    computed twice: with the rows of its inputs in another order, and with other shuffle partitions.
    `allow` names kinds of findings that are right all the same.

    Raises AssertionError, which names each finding with file and line, or the columns that differ.
    """
    from lakehouse_backfill.adapters.spark.session.session import analysed_plan_json
    from lakehouse_backfill.adapters.spark.staging.proofs import compare_repeated
    from lakehouse_backfill.core.guards.analysed_plan import find_in_plan, locate_facts
    from lakehouse_backfill.core.guards.determinism import scan_code

    info = _require_transform(transform)
    texts, reference = _code(transform, info)
    _refuse(scan_code(texts, reference), allow)

    def build(change: Callable[[DataFrame], DataFrame]) -> DataFrame:
        changed = {name: change(frame) for name, frame in inputs.items()}
        return _call(transform, info, changed, context)

    output = build(lambda frame: frame)
    text = analysed_plan_json(output)
    if text is not None:
        # The frames of a test are made in the session, so its own tables are no pinned inputs.
        facts = [fact for fact in find_in_plan(text) if fact.kind != "unpinned_read"]
        _refuse(locate_facts(facts, texts, reference), allow)
    repeated = compare_repeated(output.sparkSession, build)
    if not repeated.is_equal:
        columns = ", ".join(repeated.columns) or "none alone: values are combined in other rows"
        raise AssertionError(
            f"{info.name} {info.version} gives other rows when its input comes in another order: "
            f"{repeated.first.rows} rows, then {repeated.second.rows}; columns that differ: "
            f"{columns}"
        )


def assert_warm_up(
    transform: _Transform,
    inputs: Mapping[str, DataFrame],
    *,
    source: tuple[str, str],
    day: tuple[str, date],
    warm_up_days: int,
    context: JobContext | None = None,
) -> None:
    """Assert that a day comes out the same with the declared warm-up and with twice as much.

    `source` is an input and its column of time; `day` is a column of the output and its value.
    Inputs must reach back twice the warm-up, else nothing is proved. Raises AssertionError.
    """
    from pyspark.sql import functions as F

    from lakehouse_backfill.adapters.spark.row_hash import frame_checksum

    info = _require_transform(transform)
    (name, column), (output_column, value) = source, day

    def computed(days: int) -> Any:
        first, stop = value - timedelta(days=days), value + timedelta(days=1)
        frame = inputs[name]
        cut = frame.where((F.col(column) >= F.lit(first)) & (F.col(column) < F.lit(stop)))
        output = _call(transform, info, {**inputs, name: cut}, context)
        return frame_checksum(output.where(F.col(output_column) == F.lit(value)))

    declared, doubled = computed(warm_up_days), computed(max(2 * warm_up_days, 1))
    if declared != doubled:
        raise AssertionError(
            f"{info.name} {info.version} gives other rows for {value} with twice the warm-up of "
            f"{warm_up_days} days: {declared.rows} rows ({declared.text}) against {doubled.rows} "
            f"({doubled.text})"
        )


def _require_transform(transform: _Transform) -> TransformInfo:
    info = transform_info(transform)
    if info is None:
        raise TypeError(f"{transform!r} is no transform: decorate it with @transform")
    if info.state:
        raise TypeError(f"{info.name} has a state: call it with one, and compare rows and state")
    return info


def _call(
    transform: _Transform,
    info: TransformInfo,
    inputs: Mapping[str, DataFrame],
    context: JobContext | None,
) -> DataFrame:
    given = context or job_context(transform_version=info.version)
    return transform(given, *(inputs[name] for name in info.inputs))  # type: ignore[no-any-return]


def _code(transform: _Transform, info: TransformInfo) -> tuple[dict[str, str], Any]:
    """Return the texts of the transform's file and of the modules beside it that it imports."""
    from lakehouse_backfill.config.project_files import imported_modules
    from lakehouse_backfill.domain.manifest import TransformRef

    path = Path(transform.__code__.co_filename)
    folder = path.parent
    texts = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in (path.name, *imported_modules(folder, path.name))
        if (folder / name).is_file()
    }
    reference = TransformRef(name=info.name, version=info.version, file=path.name)
    return texts, reference


def _refuse(findings: tuple[Finding, ...], allow: tuple[str, ...]) -> None:
    lines = [
        f"{one}; instead: {one.spec.instead}"
        for one in findings
        if one.severity == "always" or (one.severity == "block" and one.kind not in allow)
    ]
    if lines:
        raise AssertionError("two runs may differ:\n" + "\n".join(lines))
