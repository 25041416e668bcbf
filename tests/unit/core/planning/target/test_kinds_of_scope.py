"""Runs of a whole table beside runs of its partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from lakehouse_backfill.core.planning.target.column_scope import require_one_kind_of_scope
from lakehouse_backfill.domain.labels import spans
from lakehouse_backfill.domain.partitions import WHOLE_TABLE_FIELD, Scope, ScopeField
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.errors import Unsupported
from tests.support.examples.plans import a_publication

DAY = ScopeField(column="d", transform="identity", type="date")
REGION = ScopeField(column="region", transform="bucket[4]", type="string")
WHOLE = Scope(field=WHOLE_TABLE_FIELD, partitions=("all",))
DAYS = Scope(field=DAY, partitions=("2024-01-01", "2024-01-02"))


@dataclass
class History:
    """A context that knows the versions of one product."""

    rows: tuple[Publication, ...]

    @property
    def versions(self) -> History:
        return self

    def history(self, product: str) -> tuple[Publication, ...]:
        return tuple(row for row in self.rows if row.product == product)


def context(*scopes: Scope) -> Any:
    rows = (
        a_publication(number, "publish", product="silver.t", scope=scope)
        for number, scope in enumerate(scopes, start=1)
    )
    return cast("Any", History(tuple(rows)))


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("before", "field", "problem", "fix"),
    [
        pytest.param(
            DAYS, WHOLE_TABLE_FIELD,
            "version 1 of silver.t restated identity(d), and this run restates the whole table",
            "name partitions of d in target.partitions", id="whole table after partitions",
        ),
        pytest.param(
            WHOLE, REGION,
            "version 1 of silver.t restated the whole table, and this run restates "
            "bucket[4](region)",
            "write target.partitions: {whole_table: true}", id="partitions after whole table",
        ),
    ],
)  # fmt: skip
def test_a_product_is_restated_as_a_whole_or_by_partitions(before, field, problem, fix) -> None:
    with pytest.raises(Unsupported) as refused:
        require_one_kind_of_scope(context(before), "silver.t", field)
    assert refused.value.problem.startswith(problem)
    assert refused.value.fix == fix


def test_the_same_kind_of_scope_is_no_obstacle() -> None:
    require_one_kind_of_scope(context(DAYS, DAYS), "silver.t", REGION)
    require_one_kind_of_scope(context(WHOLE), "silver.t", WHOLE_TABLE_FIELD)
    require_one_kind_of_scope(context(WHOLE), "silver.other", DAY)


@pytest.mark.req("U16")
def test_an_open_run_of_the_whole_table_overlaps_with_every_other() -> None:
    assert spans.overlap(WHOLE, DAYS) == ("all",)
    assert spans.overlap(DAYS, WHOLE) == DAYS.partitions
    later = Scope(field=DAY, partitions=("2024-01-02", "2024-01-03"))
    assert spans.overlap(DAYS, later) == ("2024-01-02",)


@pytest.mark.req("U16")
def test_labels_of_other_fields_do_not_say_that_runs_touch_other_rows() -> None:
    in_region = Scope(field=REGION, partitions=("1", "3"))
    assert spans.overlap(DAYS, in_region) == DAYS.partitions
    assert spans.overlap(in_region, DAYS) == in_region.partitions
    finer = REGION.model_copy(update={"transform": "bucket[8]"})
    assert spans.overlap(in_region, Scope(field=finer, partitions=("5",))) == ("1", "3")


@pytest.mark.req("U16")
def test_months_and_days_of_one_column_overlap_where_they_share_days() -> None:
    month = DAY.model_copy(update={"transform": "month"})
    of_months = Scope(field=month, partitions=("null", "2024-01", "2024-03"))
    assert spans.overlap(of_months, DAYS) == ("2024-01",)
    days = Scope(field=DAY, partitions=("null", "2023-12-31", "2024-01-31", "2024-02-01"))
    assert spans.overlap(days, of_months) == ("null", "2024-01-31")


def tuples(field: ScopeField, labels: tuple[str, ...], *others: Scope) -> Scope:
    """Partitions of which only the files with some values of other fields are meant."""
    return Scope(field=field.model_copy(update={"only": others}), partitions=labels)


K = ScopeField(column="k", transform="identity", type="int")
ONE, TWO = (Scope(field=K, partitions=(label,)) for label in ("1", "2"))
LONG_TWO = Scope(field=K.model_copy(update={"type": "long"}), partitions=("2", "null"))
TEXT_TWO = Scope(field=K.model_copy(update={"type": "string"}), partitions=("2",))
BUCKET_TWO = Scope(field=K.model_copy(update={"transform": "bucket[4]"}), partitions=("2",))
BUCKET_ONE = BUCKET_TWO.model_copy(update={"partitions": ("1", "null")})


@pytest.mark.req("U11")
@pytest.mark.parametrize(("one", "other", "shared"), [
    pytest.param(tuples(DAY, ("a", "b"), ONE), tuples(DAY, ("b", "c"), ONE), ("b",), id="same"),
    pytest.param(tuples(DAY, ("a",), ONE), tuples(DAY, ("a",), TWO), (), id="apart"),
    pytest.param(tuples(DAY, ("a",), ONE), tuples(DAY, ("a",), LONG_TWO), (), id="promoted"),
    pytest.param(tuples(DAY, ("a",), ONE), tuples(DAY, ("a",), TEXT_TWO), ("a",), id="other type"),
    pytest.param(tuples(DAY, ("a",), ONE), tuples(DAY, ("a",)), ("a",), id="whole day"),
    pytest.param(tuples(DAY, ("a",), ONE), TWO, (), id="tuple and value"),
    pytest.param(tuples(DAY, ("a",), ONE), ONE, ("a",), id="tuple and its value"),
    pytest.param(tuples(DAY, ("a",), ONE), BUCKET_TWO, ("a",), id="tuple and bucket"),
    pytest.param(tuples(DAY, ("a",), BUCKET_ONE), BUCKET_TWO, (), id="buckets"),
    pytest.param(tuples(K, ("1",), DAYS), tuples(DAY, ("2024-01-03",), ONE), (), id="crosswise"),
    pytest.param(tuples(K, ("1",), DAYS), WHOLE, ("1",), id="whole table"),
])  # fmt: skip
def test_tuples_overlap_unless_a_column_tells_them_apart(
    one: Scope, other: Scope, shared: tuple[str, ...]
) -> None:
    assert spans.overlap(one, other) == shared
    assert bool(spans.overlap(other, one)) == bool(shared)
