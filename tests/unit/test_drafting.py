"""Drafts of a project's own tables, and folders that are no project."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
)
from pyiceberg.types import (
    DateType,
    DoubleType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
)

from lakehouse_backfill.adapters.iceberg.clock import ReferenceClock
from lakehouse_backfill.config.drafts import draft_repair
from lakehouse_backfill.config.scaffold import create_project
from lakehouse_backfill.core.evidence.staleness import (
    PartitionStatus,
    ProductStatus,
    StaleCause,
)
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported
from lakehouse_backfill.project import Project
from tests.support.fakes.context import PRODUCT, context, declared, lake

DAYS = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day"))
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "at", TimestamptzType())
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A new project with a partitioned and an unpartitioned table."""
    create_project(tmp_path)
    found = Project.open(tmp_path)
    found.wiring.create_lake()
    catalog = found.wiring.catalog
    catalog.create_namespace("silver")
    catalog.create_table("silver.orders", SCHEMA, partition_spec=DAYS)
    catalog.create_table("silver.heap", SCHEMA)
    return found


@pytest.mark.parametrize("table", ["silver", "a.b; drop", "../x.y", "silver.nope"])
def test_a_name_that_is_no_table_is_not_found(project: Project, table: str) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        project.add_product(table)


def test_who_mistypes_a_table_reads_its_name(project: Project) -> None:
    with pytest.raises(NotFound, match=r"tables of silver: silver\.heap, silver\.orders") as near:
        project.add_product("silver.order")
    assert near.value.fix == "name one that exists: silver.orders"
    with pytest.raises(NotFound, match=r"namespaces: silver\n"):
        project.add_product("bronze.orders")


def test_doctor_names_a_fault_of_the_catalog_once(tmp_path: Path) -> None:
    create_project(tmp_path)
    found = Project.open(tmp_path).doctor()
    bad = {check.name: check for check in found.checks if not check.ok}
    assert "there is no lake at" in bad.pop("catalog").detail
    assert {(check.detail, check.fix) for check in bad.values()} == {
        ("not looked at: catalog failed", "")
    }


@pytest.mark.parametrize(
    ("off_s", "is_ok", "told"),
    [
        (None, True, "no other clock is known here"),
        (1.0, True, "agrees with that of a server: off by +1.0 s"),
        (7200.0, False, "is 7,200 s ahead of that of a server: "),
        (-90.0, False, "is 90 s behind that of a server: "),
    ],
)
def test_doctor_tells_how_far_the_clock_is_off_and_what_that_costs(
    project: Project, off_s: float | None, is_ok: bool, told: str
) -> None:
    if off_s is not None:
        clock = ReferenceClock()
        clock.note("a server", time.time() - off_s, clock.uptime())
        vars(project.wiring.catalog)["reference_clock"] = clock
    found = project.doctor()
    (check,) = (one for one in found.checks if one.name == "clock")
    assert check.ok is is_ok
    assert told in check.detail
    assert ("no command commits anything" in check.detail) is not is_ok
    # What could not be tried out is not taken for what the catalog lacks.
    assert (found.capabilities is not None) is is_ok


@pytest.mark.req("U16")
def test_a_table_without_partitions_is_restated_as_a_whole(project: Project) -> None:
    found = project.add_product("silver.heap")
    assert "partitioning: the table has none, so a run restates the whole table; is it small?" in (
        found.questions
    )
    assert project.wiring.contract("silver.heap").partitioning == ()
    with pytest.raises(ConfigError, match="has no partitions, so no range of them"):
        project.new_manifest("silver.heap", "1", "2", "why", "bug_fix", "ana")
    with pytest.raises(ConfigError, match="--from is given without --to"):
        project.new_manifest("silver.heap", "1", None, "why", "bug_fix", "ana")
    project.add_product("silver.orders")
    with pytest.raises(ConfigError, match="has partitions, and none of them is named"):
        project.new_manifest("silver.orders", None, None, "why", "bug_fix", "ana")
    draft = project.new_manifest("silver.heap", None, None, "why", "bug_fix", "ana")
    target = yaml.safe_load(Path(draft.file).read_text())["target"]
    assert target["partitions"] == {"whole_table": True}


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    "transform", [BucketTransform(16), TruncateTransform(3)], ids=["bucket", "truncate"]
)
def test_partitions_without_order_are_named_one_by_one(project, transform) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, transform, "part"))
    project.wiring.catalog.create_table("silver.buckets", SCHEMA, partition_spec=spec)
    project.add_product("silver.buckets")
    (declared,) = project.wiring.contract("silver.buckets").partitioning
    assert (declared.column, declared.transform) == ("id", str(transform))
    draft = project.new_manifest("silver.buckets", "0", "3", "why", "bug_fix", "ana")
    target = yaml.safe_load(Path(draft.file).read_text())["target"]
    assert target["partitions"] == {"column": "id", "values": ["0"]}


@pytest.mark.req("U16")
def test_fields_that_name_no_partitions_are_left_out_of_the_contract(project: Project) -> None:
    schema = Schema(
        NestedField(1, "s", StructType(NestedField(2, "x", DoubleType()))),
        NestedField(3, "f", DoubleType()),
        NestedField(4, "day", DateType()),
    )
    fields = (
        PartitionField(source, 1000 + source, IdentityTransform(), f"p{source}")
        for source in (2, 3, 4)
    )
    catalog = project.wiring.catalog
    catalog.create_table("silver.mixed", schema, partition_spec=PartitionSpec(*fields))
    project.add_product("silver.mixed")
    assert [part.column for part in project.wiring.contract("silver.mixed").partitioning] == ["day"]


@pytest.mark.req("U16")
def test_a_table_by_several_fields_is_said_to_be_restated_by_one_of_them(project: Project) -> None:
    schema = Schema(NestedField(1, "day", DateType()), NestedField(2, "region", StringType()))
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "day"),
        PartitionField(2, 1001, IdentityTransform(), "region"),
    )
    project.wiring.catalog.create_table("silver.pairs", schema, partition_spec=spec)
    said = " ".join(project.add_product("silver.pairs").questions)
    assert "a run names partitions of one of day, region, and rows by the others in target" in said


#: Names that need quoting somewhere: in YAML, in SQL, in Avro, or in a path.
ODD_NAMES = ("a b", "a.b", 'q"', "it's", "tick`", "é", "𝄞", "select", "null", "1st", "x" * 254,
             "#c", "{a: b}", "- x", "../up", "<b>", "%20", "${id}", "*", "A\u00a0B")  # fmt: skip


@pytest.mark.req("U16")
@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_that_need_quotes_are_carried_from_the_table_into_contract_and_manifest(
    project: Project, name: str
) -> None:
    catalog = project.wiring.catalog
    fields = (NestedField(1, name, LongType()), NestedField(2, f"{name}2", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), f"{name} of p"))
    catalog.create_table("silver.odd", Schema(*fields), partition_spec=spec)
    found = project.add_product("silver.odd")
    contract = project.wiring.contract("silver.odd")
    assert [column.name for column in contract.columns] == [name, f"{name}2"]
    assert [part.column for part in contract.partitioning] == [name]
    assert {measure.sum for measure in contract.measures} >= {f"{name}2"} - set(found.key)
    draft = project.new_manifest("silver.odd", "1", "3", "why", "bug_fix", "ana")
    target = yaml.safe_load(Path(draft.file).read_text())["target"]
    assert target["partitions"] == {"column": name, "from": 1, "to": 3}


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (("a", "A"), "column 'A' differs from 'a' only by the case of letters"),
        (("a\tb",), "holds invisible characters"),
        (("x" * 256,), "is longer than 255"),
        (("_file",), "has the name of a column that Iceberg or this toolkit adds"),
        (("lhb_hash",), "has the name of a column that Iceberg or this toolkit adds"),
        (("a b", "a_x20b"), "column 'a_x20b' is stored under the name of 'a b'"),
    ],
)
def test_columns_that_no_run_can_read_are_refused_with_the_reason(
    project: Project, columns: tuple[str, ...], problem: str
) -> None:
    fields = (NestedField(at, name, LongType()) for at, name in enumerate(columns, 1))
    project.wiring.catalog.create_table("silver.odd", Schema(*fields))
    with pytest.raises(Unsupported, match=re.escape(problem)):
        project.add_product("silver.odd")
    assert project.wiring.contracts() == []


@pytest.mark.req("U16")
@pytest.mark.parametrize("name", ["my orders", "a.b", "tick`", "é", "2024", "select", "x@y", "<b>"])
def test_a_table_whose_name_needs_quotes_has_a_product_that_names_no_path(
    project: Project, name: str
) -> None:
    catalog = project.wiring.catalog
    catalog.create_namespace(("my ns",))
    catalog.create_table(("my ns", name), SCHEMA, partition_spec=DAYS)
    text = names.table_text(("my ns", name))
    found = project.add_product(text)
    (contract,) = project.wiring.contracts()
    assert (contract.table, Path(found.file).stem) == (text, contract.product)
    assert re.fullmatch(r"my_ns\.\w+", contract.product, re.ASCII)
    assert Path(found.file).parent == project.folder / "catalog/contracts"
    with pytest.raises(ConfigError, match="is there already"):
        project.add_product(text)


@pytest.mark.req("U16")
def test_tables_whose_names_look_alike_have_products_of_their_own(project: Project) -> None:
    catalog = project.wiring.catalog
    for name in ("a b", "a-b"):
        catalog.create_table(("silver", name), SCHEMA)
        project.add_product(names.table_text(("silver", name)))
    found = {one.product: one.table for one in project.wiring.contracts()}
    assert found == {"silver.a_b": "silver.`a b`", "silver.a_b_2": "silver.`a-b`"}


@pytest.mark.req("U16")
def test_a_table_is_added_under_the_name_that_its_catalog_has(project: Project) -> None:
    catalog = project.wiring.catalog
    catalog.create_namespace(("deep", "er"))
    catalog.create_table(("deep", "er", "t"), SCHEMA)
    with pytest.raises(NotFound, match=r"name one that exists: deep\.er\.t"):
        project.add_product("`deep.er`.t")
    project.add_product("`deep`.`er`.`t`")
    assert [one.product for one in project.wiring.contracts()] == ["deep.er.t"]


@pytest.mark.req("U16")
def test_a_table_by_fields_of_structs_is_restated_by_them(project: Project) -> None:
    inner = StructType(NestedField(3, "to day", DateType()), NestedField(4, "n", LongType()))
    schema = Schema(NestedField(1, "s", StructType(NestedField(2, "in", inner))))
    spec = PartitionSpec(
        PartitionField(3, 1000, MonthTransform(), "m"),
        PartitionField(4, 1001, BucketTransform(4), "n"),
    )
    project.wiring.catalog.create_table("silver.deep", schema, partition_spec=spec)
    project.add_product("silver.deep")
    day, number = project.wiring.contract("silver.deep").partitioning
    assert (day.column, day.path, day.type) == ("s.in.to day", ("s", "in", "to day"), "date")
    assert (number.column, number.root) == ("s.in.n", "s")
    draft = project.new_manifest("silver.deep", "2024-01", "2024-03", "why", "bug_fix", "ana")
    target = yaml.safe_load(Path(draft.file).read_text())["target"]
    assert target["partitions"]["column"] == "s.in.to day"
    info = project.wiring.context.tables.describe("silver.deep")
    assert info is not None
    found = project.wiring.context.tables.scope_field(info, "s.in.to day")
    assert (found.path, found.transform, found.root) == (("s", "in", "to day"), "month", "s")


@pytest.mark.req("U16")
@pytest.mark.parametrize("of", [TimeType(), ListType(2, TimeType())], ids=["column", "list"])
def test_a_table_with_columns_that_spark_does_not_read_gets_no_contract(project, of) -> None:
    project.wiring.catalog.create_table("silver.odd", Schema(NestedField(1, "x", of)))
    with pytest.raises(Unsupported, match="x is of type time, which Spark does not read"):
        project.add_product("silver.odd")
    assert project.wiring.contracts() == []


@pytest.mark.parametrize(
    ("first", "stop", "fix"),
    [
        ("2026-01-20", "2026-01-10", "write --from 2026-01-10 --to 2026-01-20"),
        ("2026-01-20", "2026-01-20", "write a later --to"),
        ("yesterday", "2026-01-20", "write e.g. --from 2026-01-31"),
        ("2026-01-20", "../../x", "write e.g. --to 2026-01-31"),
        ("2013-02-30", "2013-03-02", "write e.g. --from 2026-01-31"),
        ("2013-02-01", "2013-13", "write e.g. --to 2026-01-31"),
    ],
)
def test_a_draft_is_refused_for_a_range_that_holds_nothing(project, first, stop, fix) -> None:
    project.add_product("silver.orders")
    with pytest.raises(ConfigError) as caught:
        project.new_manifest("silver.orders", first, stop, "why", "bug_fix", "ana")
    assert caught.value.fix == fix
    assert not (project.folder / "jobs" / "orders").exists()
    found = project.new_manifest(
        "silver.orders", "2026-01-10", "2026-01-20T12:00:00Z", "why", "bug_fix", "ana"
    )
    assert found.file.endswith("restate-2026-01-10-2026-01-20T12_00_00Z.yaml")


def test_a_wrong_contract_is_no_obstacle_to_comparing_other_tables(project: Project) -> None:
    (project.folder / "catalog/contracts/silver.heap.yaml").write_text("product: [")
    with pytest.raises(NotFound, match="has no snapshot yet"):
        project.diff("silver.orders", "silver.orders")


def test_evidence_is_not_exported_into_a_file(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    file.write_text("mine")
    for export in (file, file / "below"):
        with pytest.raises(ConfigError, match="is a file, not a folder"):
            project.evidence("bf-1", export)
    assert file.read_text() == "mine"


@pytest.mark.req("Q3")
def test_a_drafted_product_comes_with_a_suite_unless_there_is_one(project: Project) -> None:
    found = project.add_product("silver.orders")
    suite = project.folder / "expectations/silver.orders.json"
    assert found.suite == str(suite)
    assert json.loads(suite.read_text()) == {
        "name": "silver.orders",
        "expectations": [
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}
        ],
    }
    text = (project.folder / "catalog/contracts/silver.orders.yaml").read_text()
    assert "expectations/silver.orders.json" in text
    suite.write_text("mine")
    (project.folder / "catalog/contracts/silver.orders.yaml").unlink()
    project.add_product("silver.orders")
    assert suite.read_text() == "mine"


@pytest.mark.req("E3")
def test_a_repair_takes_no_waiver_of_the_earlier_run_over() -> None:
    said = {"by": "lead", "reason": "a court asked for these days"}
    safety = {
        "retention_exception": said, "incomplete_input": said, "max_rows": 10**9,
        "restricted_flows": [{"column": "n", **said}],
        "allow_nondeterminism": [{"kind": "wall_clock", "reason": "rounded to the day"}],
    }  # fmt: skip
    run = declared(run={"purpose": "correct_rates"}, safety=safety)
    made = make_plan(context(lake()), run, "bob", None)
    late = StaleCause("late rows", "late rows of raw")
    found = ProductStatus(PRODUCT, (PartitionStatus("2020-01-09", "stale", (late,)),), code="1")
    text = draft_repair(found, made, "bob")
    draft = yaml.safe_load(text)
    assert draft["safety"] == {"max_rows": 10**9}
    assert draft["run"]["purpose"] == "correct_rates"
    left_out = next(line for line in text.splitlines() if line.startswith("# Left out"))
    for name in set(safety) - {"max_rows"}:
        assert f"safety.{name}" in left_out
    assert made.run_id in left_out
