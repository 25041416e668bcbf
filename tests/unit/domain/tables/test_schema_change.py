"""Declared changes of columns: which are possible, what they do, and what a plan says of them."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.planning.target import schema_changes
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.tables.schema_change import (
    SchemaStep,
    schema_change_notes,
    schema_differences,
)
from lakehouse_backfill.domain.tables.table import Column, TableInfo
from lakehouse_backfill.errors import BackfillError, ConfigError, Unsupported
from tests.support.examples.plans import columns_of
from tests.support.fakes.context import contract, declared
from tests.support.fakes.lake import FakeLake

TYPES = {
    "day": "date", "id": "long", "amount": "long", "small": "int", "price": "decimal(10, 2)",
    "rate": "float", "tags": "list<string>", "region": "string", "produced_by_run_id": "string",
}  # fmt: skip
COLUMNS = columns_of(TYPES)


def base(**changes: Any) -> TableInfo:
    lake = FakeLake()
    lake.add("silver.daily", **{"2020-01-01": "a"})
    info = lake.describe("silver.daily")
    return info.model_copy(update={"columns": COLUMNS, "properties": {}} | changes)


def steps(*change: dict[str, Any]) -> tuple[SchemaStep, ...]:
    return tuple(SchemaStep.model_validate(step) for step in change)


def manifest(*change: dict[str, Any], target: dict[str, Any] | None = None, **more: Any) -> Any:
    return declared(target={"schema_change": change} | (target or {}), **more).manifest


def refusal(wanted: RunManifest, given: Contract, info: TableInfo | None) -> BackfillError:
    with pytest.raises(BackfillError) as caught:
        schema_changes.require_possible_schema_change(wanted, given, info)
    return caught.value


def test_what_iceberg_can_read_from_old_files_is_possible() -> None:
    change = (
        {"add": "note", "type": "string"}, {"add": "cost", "type": "decimal(12, 3)"},
        {"widen": "small", "to": "long"}, {"widen": "rate", "to": "double"},
        {"widen": "price", "to": "decimal(12, 2)"}, {"rename": "price", "to": "fare"},
        {"rename": "amount", "to": "total"},
    )  # fmt: skip
    schema_changes.require_possible_schema_change(manifest(*change), contract(), base())
    schema_changes.require_possible_schema_change(manifest(), contract(), None)
    append = manifest(*change, target={"publish_mode": "append"})
    schema_changes.require_possible_schema_change(append, contract(), base())


WRONG = {
    "nothing": ({}, "exactly one of add, widen, rename"),
    "two at once": ({"add": "a", "type": "int", "rename": "region", "to": "b"}, "exactly one"),
    "an add without type": ({"add": "note"}, "needs `type`"),
    "an add of a nested type": ({"add": "note", "type": "list<string>"}, "no simple Iceberg type"),
    "an add of no type": ({"add": "note", "type": "varchar"}, "no simple Iceberg type"),
    "an unknown column": ({"widen": "nothing", "to": "long"}, "has no column nothing"),
    "another scale": ({"widen": "price", "to": "decimal(12, 3)"}, "cannot become"),
    "fewer digits": ({"widen": "price", "to": "decimal(9, 2)"}, "cannot become"),
    "too many digits": ({"widen": "price", "to": "decimal(39, 2)"}, "cannot become"),
    "another kind": ({"widen": "small", "to": "string"}, "cannot become string"),
    "a whole number as a float": ({"widen": "small", "to": "double"}, "cannot become double"),
    "a nested column": ({"rename": "tags", "to": "labels"}, "tags is list<string>"),
    "a name that is taken": ({"rename": "region", "to": "ID"}, "name of another column"),
    "a name with a space": ({"rename": "region", "to": "the region"}, "is no name"),
    "no name": ({"rename": "region"}, "nothing is no name"),
    "a lineage column": ({"rename": "produced_by_run_id", "to": "run"}, "is a lineage column"),
    "an add of a lineage column": ({"add": "produced_at", "type": "string"}, "lineage column"),
    "a type at a rename": ({"rename": "region", "to": "r", "type": "string"}, "takes no type"),
}


@pytest.mark.parametrize(("step", "problem"), WRONG.values(), ids=WRONG)
def test_what_would_break_files_or_readers_is_refused(step: dict[str, Any], problem: str) -> None:
    error = refusal(manifest({"add": "fine", "type": "int"}, step), contract(), base())
    assert (type(error), error.field) == (ConfigError, "target.schema_change[1]")
    assert problem in error.problem
    assert error.fix


def test_a_partition_source_and_columns_that_others_name_stay() -> None:
    keyless = contract(key=[])
    error = refusal(manifest({"rename": "day", "to": "date"}), keyless, base())
    assert "day is the source of a partition field" in error.problem
    named = contract(tombstones=[{"table": "bronze.gone", "columns": {"region": "region"}}])
    error = refusal(manifest({"rename": "region", "to": "area"}), named, base())
    assert "region is a column that tombstones name" in error.problem
    measured = contract(measures=[{"name": "total", "sum": "amount"}])
    error = refusal(manifest({"rename": "amount", "to": "sum"}), measured, base())
    assert error.fix == "correct it to sum there"


def test_one_column_is_changed_once_in_each_way() -> None:
    twice = ({"widen": "small", "to": "long"}, {"widen": "small", "to": "long"})
    assert "stands twice" in refusal(manifest(*twice), contract(), base()).problem
    both = ({"add": "fare", "type": "int"}, {"rename": "price", "to": "Fare"})
    assert "another column" in refusal(manifest(*both), contract(), base()).problem


UNFIT = {
    "target.publish_mode": {"target": {"publish_mode": "merge"}},
    "target.row_predicate": {"target": {"row_predicate": {"region": "EU"}}},
    "target.dual_read": {"target": {"dual_read": {"readers": ["board"]}}},
    "safety.on_conflict": {"safety": {"on_conflict": "catch_up"}},
    "transform.writer": {
        "transform": {"name": "d", "version": "1.0.0", "file": "d.sql", "writer": "external"}
    },
}


@pytest.mark.parametrize(("field", "changes"), UNFIT.items(), ids=UNFIT)
def test_it_goes_only_with_whole_partitions_published_at_once(field, changes) -> None:
    error = refusal(manifest({"add": "note", "type": "string"}, **changes), contract(), base())
    assert (type(error), error.field) == (Unsupported, field)
    assert error.fix.endswith(", or remove target.schema_change")


def test_no_table_names_in_files_and_other_writers_are_refused() -> None:
    wanted = manifest({"add": "note", "type": "string"})
    assert "does not exist" in refusal(wanted, contract(), None).problem
    mapped = base(properties={schema_changes.NAME_MAPPING_PROPERTY: "[]"})
    assert isinstance(refusal(wanted, contract(), mapped), Unsupported)
    schema_changes.require_no_row_rewrite(wanted, "silver.daily", "pyiceberg")
    schema_changes.require_no_row_rewrite(wanted, "silver.daily", "java")
    schema_changes.require_no_row_rewrite(manifest(), "silver.daily", "rewrite")
    with pytest.raises(Unsupported, match="`rewrite`, whose commits carry no change of columns"):
        schema_changes.require_no_row_rewrite(wanted, "silver.daily", "rewrite")


def test_the_plan_says_what_changes_for_whom_and_what_the_contract_lacks() -> None:
    change = steps(
        {"add": "note", "type": "string"}, {"widen": "amount", "to": "decimal(20, 0)"},
        {"rename": "amount", "to": "total"},
    )  # fmt: skip
    given = contract(consumers=[{"name": "board", "tolerates_restatement": True}])
    assert schema_change_notes(change, given) == (
        "columns change in the commit of the publication: add note string, widen amount to "
        "decimal(20,0), rename amount to total",
        "the contract does not list note, total: add it before the next run",
        "the contract says amount as before: correct it once the run is published, or later runs "
        "fail the gate of kept columns",
        "consumers who see other columns: board",
        "rollback puts the rows back and leaves the columns: old rows read null",
    )
    assert schema_change_notes((), given) == ()


CHANGE = steps(
    {"add": "note", "type": "string"}, {"widen": "small", "to": "long"},
    {"rename": "small", "to": "wide"},
)  # fmt: skip


def after(**changes: Any) -> tuple[Column, ...]:
    changed = COLUMNS[3].model_copy(update={"name": "wide", "type": "long"} | changes)
    note = Column(field_id=20, name="note", type="string")
    return (*COLUMNS[:3], changed, *COLUMNS[4:], note)


@pytest.mark.req("Q2")
def test_columns_are_held_against_the_change_by_their_ids() -> None:
    assert schema_differences(COLUMNS, after(), CHANGE) == ()
    assert schema_differences(COLUMNS, COLUMNS, ()) == ()
    assert schema_differences(COLUMNS, COLUMNS, CHANGE) == ("small", "note")
    assert schema_differences(COLUMNS, after(type="int"), CHANGE) == ("wide",)
    assert schema_differences(COLUMNS, after(required=True), CHANGE) == ("wide",)
    assert schema_differences(COLUMNS, after()[1:], CHANGE) == ("day",)
    other = after()[-1].model_copy(update={"type": "int"})
    assert schema_differences(COLUMNS, (*after()[:-1], other), CHANGE) == ("note",)
    # The right columns under other ids are others.
    swapped = after(field_id=30)
    assert schema_differences(COLUMNS, swapped, CHANGE) == ("wide", "wide")


@pytest.mark.req("Q2")
def test_the_gate_of_kept_columns_allows_exactly_the_declared_change() -> None:
    info = base(columns=after())
    old = [{"name": "day", "type": "date"}, {"name": "small", "type": "int"}]
    new = [{"name": "wide", "type": "long"}, {"name": "note", "type": "string"}]
    for columns in (old, new):
        assert [
            c.passed for c in gates.check_schema_kept(contract(columns=columns), info, CHANGE)
        ] == [True]
    assert gates.check_schema_kept(contract(columns=old), info)[0].detail == "small is missing"
    narrow = base(columns=after(type="int"))
    said = gates.check_schema_kept(contract(columns=new), narrow, CHANGE)
    assert said[0].detail == "wide is int, the contract says long"
    stolen = base(columns=after()[1:])
    assert (
        gates.check_schema_kept(contract(columns=old), stolen, CHANGE)[0].detail == "day is missing"
    )
