"""Rows named by columns and values: what fits the table, and how values are read."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from lakehouse_backfill.core.planning.target import row_changes
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.labels.values import NamedRange
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.partitions import WHOLE_TABLE_FIELD, Scope
from lakehouse_backfill.domain.tables.table import PartitionField, TableInfo
from lakehouse_backfill.errors import BackfillError, ConfigError, Unsupported
from tests.support.examples.plans import columns_of
from tests.support.fakes.context import contract, declared
from tests.support.fakes.lake import DAY
from tests.support.lakes.tables import field_of

TYPES = {
    "day": "date", "tenant": "string", "id": "long", "small": "int", "is_open": "boolean",
    "at": "timestamptz", "local": "timestamp", "amount": "decimal(10, 2)", "rate": "double",
    "produced_by_run_id": "string", "produced_at": "timestamptz",
}  # fmt: skip
COLUMNS = columns_of(TYPES)


def manifest(predicate: Any, **target: Any) -> RunManifest:
    return declared(target={"row_predicate": predicate, **target}).manifest


READ = {
    "text": ({"tenant": "A"}, {"tenant": ("A",)}),
    "a list": ({"tenant": ["A", None]}, {"tenant": ("A", None)}),
    "numbers": ({"id": 7, "small": [1, 2]}, {"id": (7,), "small": (1, 2)}),
    "truth": ({"is_open": False}, {"is_open": (False,)}),
    "a day": ({"day": date(2020, 1, 1)}, {"day": (date(2020, 1, 1),)}),
    "a day as stored": ({"day": "2020-01-01"}, {"day": (date(2020, 1, 1),)}),
    "an instant": (
        {"at": "2020-01-01T02:00:00+02:00"}, {"at": (datetime(2020, 1, 1, tzinfo=timezone.utc),)},
    ),
    "decimals": (
        {"amount": ["1.5", 2, "0.10", None]},
        {"amount": (Decimal("1.50"), Decimal("2.00"), Decimal("0.10"), None)},
    ),
    "days": (
        {"day": {"from": "2020-01-01", "to": date(2020, 2, 1)}},
        {"day": NamedRange(date(2020, 1, 1), date(2020, 2, 1))},
    ),
    "instants of days": (
        {"at": {"from": date(2020, 1, 1), "to": "2020-01-01T02:00:00+01:00"}},
        {"at": NamedRange(*(datetime(2020, 1, 1, hour, tzinfo=timezone.utc) for hour in (0, 1)))},
    ),
    "numbers and decimals": (
        {"id": {"from": -1, "to": 7}, "amount": {"from": "0.5", "to": 2}},
        {"id": NamedRange(-1, 7), "amount": NamedRange(Decimal("0.50"), Decimal("2.00"))},
    ),
    "no time zone": (
        {"local": "2020-01-01T02:00:00"}, {"local": (datetime(2020, 1, 1, 2),)},  # noqa: DTZ001 (a value without one)
    ),
}  # fmt: skip


@pytest.mark.req("U1b")
@pytest.mark.parametrize(("given", "expected"), READ.values(), ids=READ)
def test_values_are_read_as_their_columns_hold_them(given: Any, expected: Any) -> None:
    assert row_changes.resolve_row_predicate(manifest(given).target, TYPES) == expected


@pytest.mark.req("U1b")
@pytest.mark.parametrize(("given", "expected"), READ.values(), ids=READ)
def test_a_stored_manifest_names_the_same_rows(given: Any, expected: Any) -> None:
    stored = RunManifest.model_validate_json(manifest(given).model_dump_json())
    assert row_changes.resolve_row_predicate(stored.target, TYPES) == expected


#: predicate, what else the target says -> error, field, piece of the fix
REFUSED: dict[str, tuple[Any, dict[str, Any], type[BackfillError], str, str]] = {
    "lineage column": (
        {"produced_by_run_id": "x"}, {}, ConfigError,
        "target.row_predicate.produced_by_run_id", "name one of",
    ),
    "too many digits": (
        {"amount": "1.005"}, {}, ConfigError, "target.row_predicate.amount", 'e.g. "0.01"',
    ),
    "no number": (
        {"amount": "NaN"}, {}, ConfigError, "target.row_predicate.amount", "decimal(10, 2)",
    ),
    "too large a decimal": (
        {"amount": 10**8}, {}, ConfigError, "target.row_predicate.amount", "decimal(10, 2)",
    ),
    "a fraction": ({"rate": 1}, {}, Unsupported, "target.row_predicate.rate", "name one of"),
    "too large": (
        {"small": [1, 2**31]}, {}, ConfigError, "target.row_predicate.small", "at most 32 bits",
    ),
    "truth as number": ({"id": True}, {}, ConfigError, "target.row_predicate.id", "whole number"),
    "number as text": ({"tenant": 7}, {}, ConfigError, "target.row_predicate.tenant", "quote it"),
    "no zone": (
        {"at": "2020-01-01T00:00:00"}, {}, ConfigError, "target.row_predicate.at", "its offset",
    ),
    "no order": (
        {"tenant": {"from": "2020-01-01", "to": "B"}}, {}, Unsupported,
        "target.row_predicate.tenant", "list its values",
    ),
    "nothing between": (
        {"local": {"from": date(2020, 1, 2), "to": "2020-01-02"}}, {}, ConfigError,
        "target.row_predicate.local", "a later `to`",
    ),
    "merged": (
        {"tenant": "A"}, {"publish_mode": "merge", "merge": {"version": "id"}}, Unsupported,
        "target.row_predicate", "replace_partitions, pointer_swap, versioned, shadow_only",
    ),
}  # fmt: skip


@pytest.mark.req("U1b")
@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_names_no_rows_of_the_table_is_refused_by_field(case: Any) -> None:
    predicate, target, kind, field, fix = case
    with pytest.raises(kind) as refused:
        row_changes.require_fitting_predicate(manifest(predicate, **target), COLUMNS, "day")
    assert (refused.value.field, fix in refused.value.fix) == (field, True), refused.value


def test_what_fits_passes() -> None:
    for given in ({"tenant": ["A", "B"], "id": 7}, None):
        row_changes.require_fitting_predicate(manifest(given), COLUMNS, "day")


def test_rows_are_described_in_words() -> None:
    target = manifest({"tenant": ["A", None], "id": 7}).target
    assert row_changes.describe_row_predicate(target) == "tenant in A, null and id = 7"
    days = manifest({"day": {"from": date(2020, 1, 1), "to": date(2020, 2, 1)}}).target
    assert row_changes.describe_row_predicate(days) == "day from 2020-01-01 to before 2020-02-01"


@pytest.mark.req("U1b")
def test_other_rows_are_proven_by_count_and_checksum_of_each_partition() -> None:
    scope = Scope(field=DAY, partitions=("2020-01-02", "2020-01-03"))
    one, other = (Checksum(rows=5, xor=mark, total=mark, shape="s") for mark in (1, 2))
    held = {"2020-01-02": one, "2020-01-03": one}
    equal = row_changes.check_other_rows_unchanged(scope, held, dict(held))
    assert (equal.passed, equal.waivable, equal.detail) == (
        True, False, "10 rows carried over, counts and checksums equal",
    )  # fmt: skip
    for found in ({**held, "2020-01-03": other}, {"2020-01-02": one}):
        wrong = row_changes.check_other_rows_unchanged(scope, held, found)
        assert (wrong.passed, wrong.detail) == (False, "1 partitions differ, first 2020-01-03")


def test_a_transform_reads_the_predicate_with_the_types_that_the_contract_knows() -> None:
    """Other columns have the values of the manifest: a stored one holds days as text."""
    wanted = manifest({"day": "2020-01-01", "tenant": ["A", None]})
    known = contract()
    assert row_changes.context_row_predicate(wanted, known) == {
        "day": (date(2020, 1, 1),), "tenant": ("A", None),
    }  # fmt: skip
    assert row_changes.context_row_predicate(declared().manifest, known) == {}


def by(column: str, transform: str) -> tuple[PartitionField, ...]:
    return (PartitionField(name=f"p_{column}", column=column, transform=transform),)


def table(**facts: Any) -> TableInfo:
    fields = [("day", "identity"), ("tenant", "identity"), ("small", "identity"),
              ("is_open", "identity"), ("id", "bucket[4]"), ("at", "identity"),
              ("amount", "identity")]  # fmt: skip
    known: dict[str, Any] = {
        "table": "silver.t", "uuid": "u", "location": "l", "format_version": 2, "snapshot_id": 1,
        "schema_id": 0, "spec_id": 0, "columns": COLUMNS, "properties": {}, "refs": {},
        "spec_count": 1, "partitioning": tuple(one for each in fields for one in by(*each)),
    }  # fmt: skip
    return TableInfo(**(known | facts))


DAYS = Scope(field=DAY, partitions=("2020-01-02",))


@pytest.mark.req("U1b")
def test_partition_fields_of_the_predicate_narrow_the_scope_by_their_labels() -> None:
    named = manifest({
        "tenant": ["null", None, "B"], "small": [10, 9], "id": [1, 34, None], "is_open": True,
        "at": "2020-01-01T02:00:00.5+02:00", "amount": ["10", "9.5", None],
    })  # fmt: skip
    found = row_changes.narrow_scope(named, contract(key=()), table(), DAYS)
    assert found.partitions == DAYS.partitions
    assert {one.field.column: one.partitions for one in found.field.only} == {
        "tenant": ("null", "=null", "B"), "small": ("9", "10"), "is_open": ("true",),
        "at": ("2020-01-01T00:00:00.500000+00:00",), "amount": ("null", "9.50", "10.00"),
        "id": ("null", "0", "3"),
    }  # fmt: skip
    assert found.whole == DAYS
    assert Scope.model_validate_json(found.model_dump_json()) == found


#: A partition field, values of its column -> its partitions that hold them, and whether rows of
#: other values lie there.
HOLDERS: dict[str, tuple[tuple[str, str], Any, tuple[str, ...], bool]] = {
    "days": (
        ("day", "identity"), {"from": date(2020, 1, 30), "to": date(2020, 2, 2)},
        ("2020-01-30", "2020-01-31", "2020-02-01"), False,
    ),
    "days of instants": (
        ("at", "day"), {"from": date(2020, 1, 31), "to": date(2020, 2, 2)},
        ("2020-01-31", "2020-02-01"), False,
    ),
    "parts of months": (
        ("local", "month"), {"from": date(2019, 12, 31), "to": "2020-02-01T00:00:01"},
        ("2019-12", "2020-01", "2020-02"), True,
    ),
    "months": (
        ("local", "month"), {"from": date(2019, 12, 1), "to": date(2020, 2, 1)},
        ("2019-12", "2020-01"), False,
    ),
    "the hour of an instant": (
        ("at", "hour"), "2020-01-01T02:30:00+02:00", ("2020-01-01T00",), True,
    ),
    "numbers": (("small", "identity"), {"from": 9, "to": 12}, ("9", "10", "11"), False),
    "truncated text": (("tenant", "truncate[2]"), ["ABC", "ABD", "A"], ("A", "AB"), True),
    "truncated numbers": (("id", "truncate[10]"), [-1, 19], ("-10", "10"), True),
}  # fmt: skip


@pytest.mark.req("U1b")
@pytest.mark.parametrize("case", HOLDERS.values(), ids=HOLDERS)
def test_ranges_units_and_truncations_narrow_to_the_partitions_that_hold_them(case: Any) -> None:
    (column, transform), given, labels, has_others = case
    scope = Scope(field=field_of("region"), partitions=("EU",))
    base, named = table(partitioning=by(column, transform)), manifest({column: given})
    found = row_changes.narrow_scope(named, contract(key=()), base, scope)
    assert [one.partitions for one in found.field.only] == [labels]
    assert bool(row_changes.carried_over_by(named.target, base, found)) is has_others
    assert Scope.model_validate_json(found.model_dump_json()) == found


#: What a field does not tell apart, or not in a way that files without a value can be read.
UNKNOWN: dict[str, tuple[tuple[str, str], Any]] = {
    "values beside null": (("at", "day"), [None, "2020-01-01T00:00:00Z"]),
    "a range of single instants": (("at", "identity"), {"from": "2020-01-01", "to": "2020-01-02"}),
    "a range of buckets": (("id", "bucket[4]"), {"from": 1, "to": 3}),
    "a range of truncations": (("id", "truncate[10]"), {"from": 1, "to": 3}),
    "too many": (("id", "identity"), {"from": 0, "to": 10_002}),
    "below the smallest number": (("id", "truncate[10]"), -(2**63)),
}


@pytest.mark.req("U1b")
@pytest.mark.parametrize("case", UNKNOWN.values(), ids=UNKNOWN)
def test_values_whose_partitions_are_not_known_do_not_narrow(case: Any) -> None:
    (column, transform), given = case
    scope = Scope(field=field_of("region"), partitions=("EU",))
    base, named = table(partitioning=by(column, transform)), manifest({column: given})
    assert row_changes.narrow_scope(named, contract(key=()), base, scope) == scope
    assert "no column" in row_changes.why_not_narrowed(named, contract(key=()), base, scope)


NOT_NARROWED = {
    "the key does not hold tenant": ({"tenant": "A"}, {}, {}, DAYS),
    "3 partition specs": ({"tenant": "A"}, {}, {"spec_count": 3}, DAYS),
    "no column of the predicate": ({"local": "2020-01-01T00:00:00"}, {}, {}, DAYS),
    "publish_mode is shadow_only": ({"tenant": "A"}, {"publish_mode": "shadow_only"}, {}, DAYS),
    "names no value": ({"tenant": []}, {}, {}, DAYS),
    "whole table": ({"tenant": "A"}, {}, {}, Scope(field=WHOLE_TABLE_FIELD, partitions=("all",))),
}


@pytest.mark.req("U1b")
@pytest.mark.parametrize("why", NOT_NARROWED)
def test_what_partitions_do_not_decide_is_rewritten(why: str) -> None:
    given, target, facts, scope = NOT_NARROWED[why]
    named, base = manifest(given, **target), table(**facts)
    declared_by = contract(key=("day", "id") if why.startswith("the key") else ())
    assert row_changes.narrow_scope(named, declared_by, base, scope) == scope
    assert why in row_changes.why_not_narrowed(named, declared_by, base, scope)
