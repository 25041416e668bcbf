"""Ports that choose by table: only the chosen adapter writes, and reading needs none but one."""

from __future__ import annotations

import pytest

from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import JvmState, TableFacts
from lakehouse_backfill.domain.publication import AdoptRequest
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.wiring.dispatch import (
    PinsByWritePath,
    PublisherByWritePath,
    ShadowsByWritePath,
    WritePathChooser,
)
from tests.support.fakes.lake import DAY, FakeLake

SCOPE = Scope(field=DAY, partitions=("2024-01-01",))


class Survey:
    """Facts by table."""

    def __init__(self, **facts: TableFacts) -> None:
        self.facts = facts
        self.asked: list[tuple[str, Scope | None]] = []

    def survey(self, table: str, scope: Scope | None) -> TableFacts | None:
        self.asked.append((table, scope))
        return self.facts.get(table)


SURVEY = {"old": TableFacts(format_version=2), "new": TableFacts(format_version=3)}


def lakes() -> tuple[FakeLake, FakeLake]:
    one, other = FakeLake(), FakeLake()
    for lake in (one, other):
        lake.add("old", **{"2024-01-01": "a"})
        lake.add("new", **{"2024-01-01": "a"})
    return one, other


def test_a_tag_is_written_by_the_way_of_its_table():
    pyiceberg, java = lakes()
    pins = PinsByWritePath(
        WritePathChooser(Survey(**SURVEY), JvmState), {"pyiceberg": pyiceberg, "java": java}
    )

    pins.pin("old", 1, "here")
    pins.pin("new", 1, "there")

    assert (pyiceberg.tables["old"].refs, pyiceberg.tables["new"].refs) == ({"here": 1}, {})
    assert (java.tables["old"].refs, java.tables["new"].refs) == ({}, {"there": 1})


def test_a_swap_is_judged_by_the_scope_it_changes():
    survey = Survey(**SURVEY)
    pyiceberg, java = lakes()
    publisher = PublisherByWritePath(
        WritePathChooser(survey, JvmState), {"pyiceberg": pyiceberg, "java": java}
    )
    request = AdoptRequest(
        target="new",
        base_snapshot_id=1,
        shadow="new",
        shadow_snapshot_id=1,
        chunk_ids=(),
        scope=SCOPE,
        token="t",
        tags={"before": "b", "after": "a"},
        properties={},
    )

    publisher.adopt(request)

    assert survey.asked == [("new", SCOPE)]
    assert (pyiceberg.tables["new"].head, java.tables["new"].head) == (1, 2)


@pytest.mark.req("U1")
def test_through_spark_connect_format_3_is_written_by_rows():
    pyiceberg, rows = lakes()
    ways = WritePathChooser(Survey(**SURVEY), lambda: JvmState(is_connect=True))
    pins = PinsByWritePath(ways, {"pyiceberg": pyiceberg, "rewrite": rows})

    pins.pin("new", 1, "there")

    assert rows.tables["new"].refs == {"there": 1}


def test_a_way_that_the_profile_does_not_have_is_refused_with_its_reason():
    pyiceberg, java = lakes()
    ways = WritePathChooser(Survey(**SURVEY), lambda: JvmState(is_connect=True))
    shadows = ShadowsByWritePath(ways, {"pyiceberg": pyiceberg, "java": java})

    with pytest.raises(Unsupported, match="out of reach of Spark Connect") as refused:
        shadows.open("new", 1, "shadow", {})

    assert "remove spark.remote" in refused.value.fix
