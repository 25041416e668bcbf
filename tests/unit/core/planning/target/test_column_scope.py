"""Which columns a run may restate, and in which words people read of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.planning.target import column_scope
from lakehouse_backfill.core.planning.target.column_scope import earlier_part_warnings
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.tables.table import PartitionField, TableInfo
from lakehouse_backfill.errors import BackfillError, ConfigError, Unsupported
from tests.support.examples.plans import columns_of, with_fields
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.steps import planned_run, published_run
from tests.support.fakes.timed import timed_world

TYPES = {
    "day": "date", "id": "long", "amount": "long", "cause": "string", "region": "string",
    "customer": "long", "produced_at": "timestamptz", "produced_by_run_id": "string",
}  # fmt: skip
PRODUCT = contract(tombstones=[{"table": "privacy.gone", "columns": {"customer": "customer"}}])
FREE = ("amount", "cause")
NOTE = {"add": "note", "type": "string"}


def base(**changes: Any) -> TableInfo:
    """The product's table; region is a column of its partitions that the contract does not name."""
    facts: dict[str, Any] = {
        "table": "silver.daily", "uuid": "u", "location": "file:///t", "format_version": 2,
        "snapshot_id": 7, "schema_id": 0, "spec_id": 0, "columns": columns_of(TYPES),
        "partitioning": tuple(
            PartitionField(column=name, transform="identity", name=name)
            for name in ("day", "region")
        ),
        "spec_count": 1, "properties": {}, "refs": {},
    }  # fmt: skip
    return TableInfo(**(facts | changes))


def manifest(*columns: str, **changes: Any) -> RunManifest:
    target = {"columns": list(columns)} | changes.pop("target", {})
    return declared(target=target, **changes).manifest


def refusal(wanted: RunManifest, of: Any = PRODUCT, table: TableInfo | None = None) -> Any:
    with pytest.raises(BackfillError) as refused:
        column_scope.require_fitting_columns(wanted, of, table or base(), "day")
    return refused.value


#: columns -> a piece of the problem
WRONG = {
    "key": (("id",), "id is part of the key"),
    "partition of the run": (("day",), "day is part of the key"),
    "partition of the table": (("region",), "region is a column of the partitions"),
    "named by tombstones": (("customer",), "customer is a column by which tombstones"),
    "lineage": (("produced_at",), "produced_at says which run made a row"),
    "unknown": (("amuont",), "the target has no column amuont"),
    "another case": (("Amount",), "the target has no column Amount"),
    "twice": (("amount", "amount"), "names amount twice"),
}


@pytest.mark.req("P9")
@pytest.mark.parametrize(("columns", "problem"), WRONG.values(), ids=WRONG)
def test_columns_by_which_rows_are_found_or_placed_cannot_be_restated(columns, problem) -> None:
    error = refusal(manifest(*columns))
    assert (type(error), error.field) == (ConfigError, "target.columns")
    assert problem in error.problem
    assert error.fix == "name one of: amount, cause"


#: what else the manifest says -> the field that does not fit
UNFIT = {
    "append": ("target.publish_mode", {"target": {"publish_mode": "append"}}),
    "correction events": ("target.publish_mode", {"target": {"publish_mode": "correction_events"}}),
    "merge": (
        "target.publish_mode", {"target": {"publish_mode": "merge", "merge": {"version": "amount"}}}
    ),
    "rows": ("target.row_predicate", {"target": {"row_predicate": {"id": 1}}}),
    "another engine": (
        "transform.writer",
        {"transform": {"name": "d", "version": "1.0.0", "file": "d.sql", "writer": "external"}},
    ),
    "widened": (
        "target.schema_change", {"target": {"schema_change": [{"widen": "x", "to": "long"}]}}
    ),
}  # fmt: skip


@pytest.mark.req("P9")
@pytest.mark.parametrize(("field", "changes"), UNFIT.values(), ids=UNFIT)
def test_what_takes_whole_rows_does_not_go_with_columns(field: str, changes: Any) -> None:
    error = refusal(manifest("amount", **changes))
    assert (type(error), error.field) == (Unsupported, field)
    assert error.fix.endswith(", or remove target.columns")


@pytest.mark.req("P9")
@pytest.mark.parametrize("mode", ["replace_partitions", "pointer_swap", "versioned", "shadow_only"])
def test_the_modes_that_publish_whole_partitions_fit(mode: str) -> None:
    wanted = manifest(*FREE, target={"publish_mode": mode})
    column_scope.require_fitting_columns(wanted, PRODUCT, base(), "day")


@pytest.mark.req("P9")
def test_without_key_rows_or_columns_there_is_nothing_to_restate() -> None:
    assert "has no key" in refusal(manifest("amount"), contract(key=[])).problem
    assert "names no column" in refusal(manifest()).problem
    assert "holds no rows" in refusal(manifest("amount"), table=base(snapshot_id=None)).problem
    with pytest.raises(ConfigError, match="holds no rows"):
        column_scope.require_fitting_columns(manifest("amount"), PRODUCT, None, "day")


@pytest.mark.req("P9")
def test_an_added_column_is_restated_by_the_same_run() -> None:
    added = {"target": {"schema_change": [NOTE]}}
    column_scope.require_fitting_columns(manifest("note", **added), PRODUCT, base(), "day")
    assert "note is added" in refusal(manifest("amount", **added)).problem
    assert "no column note" in refusal(manifest("note")).problem


@pytest.mark.req("P9")
@given(st.lists(st.sampled_from([*TYPES, "other"]), min_size=1, max_size=4))
def test_exactly_free_columns_are_accepted_once_each(names: list[str]) -> None:
    fits = set(names) <= set(FREE) and len(set(names)) == len(names)
    try:
        column_scope.require_fitting_columns(manifest(*names), PRODUCT, base(), "day")
    except ConfigError:
        assert not fits, names
    else:
        assert fits, names


@pytest.mark.req("P9", "M4")
def test_a_manifest_without_columns_keeps_its_hash_and_one_with_them_has_another() -> None:
    assert "columns" not in manifest_of(None)
    assert manifest_of(["amount"])["columns"] == ["amount"]
    found = context(lake())
    whole, part = (
        found.runs.plan(planned_run(found, declared(target=target)))
        for target in ({}, {"columns": ["amount"]})
    )
    assert whole.manifest_hash != part.manifest_hash


def manifest_of(columns: list[str] | None) -> dict[str, Any]:
    wanted = declared(target={"columns": columns} if columns else {}).manifest
    return dict(wanted.target.model_dump(mode="json"))


@pytest.mark.req("P9")
def test_the_plan_says_which_columns_change_and_that_no_other_does() -> None:
    found = context(lake())
    plan = found.runs.plan(planned_run(found, declared(target={"columns": ["amount"]})))
    assert (
        "only columns amount: rows are found by day, id and stay, all other columns are carried "
        "over and proven equal"
    ) in plan.notes
    answer = plan.checklist[1].answer
    assert answer is not None
    assert answer.endswith("of day, columns amount of their rows; no other column, no other row")


@pytest.mark.parametrize(
    ("part", "version", "wanted", "words"),
    [
        ({"columns": ("amount",)}, "2.0.0", None, "changed only columns amount of 2020-01-03"),
        ({"columns": ("amount",)}, "1.0.0", None, ""),
        ({"columns": ("amount",)}, "2.0.0", ("amount",), ""),
        ({"publish_mode": "merge"}, "2.0.0", None, "changed only some rows of 2020-01-03"),
        ({}, "2.0.0", None, ""),
    ],
)
def test_whole_rows_are_warned_of_the_parts_that_other_code_restated(
    part: dict[str, Any], version: str, wanted: tuple[str, ...] | None, words: str
) -> None:
    """Else the repair of a stale partition takes back, unsaid, what was put right since."""
    _, found = timed_world(lake())
    published_run(found, declared())
    fixed = published_run(found, declared("2020-01-03", "2020-01-04"))
    plan = found.runs.plans[fixed]
    changes = {f"target__{name}": value for name, value in part.items()}
    manifest = with_fields(plan.resolved.manifest, transform__version=version, **changes)
    done = plan.resolved.model_copy(update={"manifest": manifest})
    found.runs.plans[fixed] = plan.model_copy(update={"resolved": done})
    again = make_plan(found, declared("2020-01-02", "2020-01-05"), "bob", None)
    shown = [text for text in again.warnings if "writes whole rows over" in text]
    assert len(shown) == bool(words or wanted)
    asked = with_fields(again.resolved.manifest, target__columns=wanted)
    resolved = again.resolved.model_copy(update={"manifest": asked})
    warnings = earlier_part_warnings(found, resolved)
    assert len(warnings) == bool(words)
    assert words in "".join(warnings)
    found.runs.plans.pop(fixed)
    assert earlier_part_warnings(found, resolved) == ()
