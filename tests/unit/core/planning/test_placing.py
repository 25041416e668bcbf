"""A plan says which partition tuples its labels stand for, and refuses to cut a file in two."""

from __future__ import annotations

import dataclasses

import pytest

from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.files import ScopedFiles, SpecPartitions
from lakehouse_backfill.errors import Unsupported
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.lake import FakeLake

pytestmark = pytest.mark.req("U1")

DAYS = ("2020-01-02", "2020-01-03")


class Coarse(FakeLake):
    """A target whose old files are of months."""

    def scoped(self, table: str, snapshot_id: int | None, scope: Scope) -> ScopedFiles:
        old = SpecPartitions(spec_id=0, spec="month as m", partitions=("m=2020-01",), spans=(DAYS,))
        found = super().scoped(table, snapshot_id, scope)
        return found._replace(places=(old, *found.places))


def test_a_plan_names_the_tuples_that_its_partitions_stand_for() -> None:
    plan = make_plan(context(lake()), declared(), "bob", None)
    assert plan.places == (
        SpecPartitions(
            spec_id=0, spec="identity as day", partitions=("day=2020-01-02", "day=2020-01-03")
        ),
    )
    assert not any("partition specs" in note for note in plan.notes)


def test_a_file_with_rows_of_two_chunks_is_refused_with_what_to_set() -> None:
    found = dataclasses.replace(context(where := lake()), tables=Coarse(tables=where.tables))
    with pytest.raises(Unsupported, match="hold rows of several chunks") as refused:
        make_plan(found, declared(), "bob", None)
    assert "partitions_per_chunk" in refused.value.fix


@pytest.mark.req("X4")
def test_a_stateful_run_is_told_its_own_field_of_the_size_of_chunks() -> None:
    found = dataclasses.replace(context(where := lake()), tables=Coarse(tables=where.tables))
    stateful = {
        "state": {"derived_from_input": True, "key": ["id"]}, "start_boundary": "empty",
        "timers": "event_time", "late": "include", "watermark": {"policy": "batch_equivalent"},
        "warm_up_days": 1,
    }  # fmt: skip
    with pytest.raises(Unsupported, match="hold rows of several chunks") as refused:
        make_plan(found, declared(stateful=stateful), "bob", None)
    assert "set stateful.snapshot.every_partitions so that" in refused.value.fix


def test_files_of_an_old_spec_in_one_chunk_are_named_in_the_plan() -> None:
    found = dataclasses.replace(context(where := lake()), tables=Coarse(tables=where.tables))
    plan = make_plan(found, declared(limits={"partitions_per_chunk": 2}), "bob", None)
    assert [note for note in plan.notes if "specs" in note] == [
        "files of several partition specs are replaced: 1 of spec 0 (month as m), "
        "2 of spec 0 (identity as day)"
    ]
