"""Each kind of table through all verbs, as PyIceberg and as Spark read it at the end.

The kinds are those of `tests/support/lakes/kinds.py`. PyIceberg stages; Spark reads all of them in
one job.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.domain.labels import names
from tests.support.lakes.kind_life import KindProject, Restated
from tests.support.lakes.kinds import KINDS
from tests.support.spark.lake import Lake
from tests.turn_plugin import of_turn

pytestmark = [pytest.mark.lake]


def project_of(lake: Lake, folder: Path) -> KindProject:
    """Give a project on the lake's catalog, as commands open it."""
    where = str(lake.profile_folder)
    real = {key: text.replace("${project}", where) for key, text in lake.profile.catalog.items()}
    profile = lake.profile.model_copy(update={"catalog": real})
    return KindProject(
        folder / "kinds", profile, lake.namespace, f"file://{where}/{lake.namespace}"
    )


def seen_by_spark(lake: Lake, tables: list[Restated]) -> dict[tuple[str, int], dict[int, Any]]:
    """Read all snapshots of all tables by one statement: whole rows, as JSON, by their ids."""
    asked = {
        (one.name, snapshot_id): f"{lake.name}.{'.'.join(map(names.quote_identifier, parts))}"
        for one in tables
        for parts in [names.table_parts(one.name)]
        for snapshot_id in one.ids
    }
    statement = " UNION ALL ".join(
        f"SELECT {number} AS number, to_json(struct(*)) AS held FROM {table} VERSION AS OF {at}"
        for number, ((_, at), table) in enumerate(asked.items())
    )
    places, found = list(asked), {place: {} for place in asked}
    for row in lake.spark.sql(statement).collect():
        held = json.loads(row["held"])
        place = found[places[row["number"]]]
        key = held.pop("id")
        assert key not in place
        place[key] = held
    return found


# 47 kinds, beside other suites on two cores.
@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.in_turn(1)
@pytest.mark.req("U16", "U1", "U12")
def test_each_kind_goes_through_all_verbs_and_back_as_both_readers_see_it(
    lake: Lake, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    assert len(KINDS) >= 45
    assert len({kind.id + str(kind.format) for kind in KINDS}) == len(KINDS)
    project = project_of(lake, tmp_path)
    kinds = of_turn(pytestconfig, list(enumerate(KINDS)), 6)
    done = [project.live(kind, number) for number, kind in kinds]
    by_spark = seen_by_spark(lake, done)
    for one in done:
        first = by_spark[one.name, next(iter(one.ids))]
        for snapshot_id, ids in one.ids.items():
            assert project.rows(one.name, snapshot_id) == project.written(one.kind, ids), (
                one.kind.id
            )
            found = by_spark[one.name, snapshot_id]
            assert sorted(found) == sorted(ids), one.kind.id
            # A row and its restated twin hold the same values.
            assert {key % 100: held for key, held in found.items()} == first, one.kind.id


HOSTILE = st.text(
    st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from("`.\"'@ ${};-/\\")),
    min_size=1,
    max_size=12,
)


@pytest.mark.req("U16")
def test_spark_reads_quoted_names_as_they_are(lake: Lake) -> None:
    session: Any = lake.spark
    parser = session._jsparkSession.sessionState().sqlParser()
    analysis = session._jvm.org.apache.spark.sql.catalyst.analysis
    column_parts = analysis.UnresolvedAttribute.parseAttributeName

    def listed(found: Any) -> list[str]:
        return [found.apply(at) for at in range(found.size())]

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(parts=st.lists(HOSTILE, min_size=1, max_size=3))
    def hold(parts: list[str]) -> None:
        quoted = ".".join(map(names.quote_identifier, parts))
        assert listed(column_parts(quoted)) == parts
        if "${" not in quoted:
            assert listed(parser.parseMultipartIdentifier(quoted)) == parts

    hold()
