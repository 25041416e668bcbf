"""Each kind of table through all verbs, as PyIceberg and as Spark read it at the end.

The kinds are those of `tests/support/lakes/kinds.py`. PyIceberg stages; Spark reads all of them in
one job.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.domain.labels import names
from tests.support.lakes.kind_life import KindProject, Restated
from tests.support.lakes.kinds import KINDS
from tests.support.spark.lake import Lake

pytestmark = [pytest.mark.lake]


def project_of(lake: Lake, folder: Path) -> KindProject:
    """Give a project on the lake's catalog, as commands open it."""
    where = str(lake.profile_folder)
    real = {key: text.replace("${project}", where) for key, text in lake.profile.catalog.items()}
    profile = lake.profile.model_copy(update={"catalog": real})
    return KindProject(
        folder / "kinds", profile, lake.namespace, f"file://{where}/{lake.namespace}"
    )


def seen_by_spark(lake: Lake, tables: list[Restated]) -> dict[tuple[str, int], list[Any]]:
    """Read all snapshots of all tables in one job: rows of all tables have one shape, as text."""
    frames: list[DataFrame] = []
    for one in tables:
        for snapshot_id in one.ids:
            frame = lake.tables.read(one.name, snapshot_id)
            held = F.to_json(F.struct(frame[names.quote_identifier(one.kind.path[0])].alias("v")))
            mark = F.lit(one.name).alias("name"), F.lit(snapshot_id).alias("at")
            frames.append(frame.select(*mark, "id", held.alias("v")))
    found: dict[tuple[str, int], list[Any]] = {}
    for row in reduce(DataFrame.unionAll, frames).collect():
        found.setdefault((row["name"], row["at"]), []).append((row["id"], row["v"]))
    return {key: sorted(rows) for key, rows in found.items()}


# 47 kinds, beside other suites on two cores.
@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.req("U16", "U1", "U12")
def test_each_kind_goes_through_all_verbs_and_back_as_both_readers_see_it(
    lake: Lake, tmp_path: Path
) -> None:
    assert len(KINDS) >= 45
    assert len({kind.id + str(kind.format) for kind in KINDS}) == len(KINDS)
    project = project_of(lake, tmp_path)
    done = [project.live(kind, number) for number, kind in enumerate(KINDS)]
    by_spark = seen_by_spark(lake, done)
    for one in done:
        texts = set()
        for snapshot_id, ids in one.ids.items():
            rows = project.rows(one.name, snapshot_id)
            assert [row["id"] for row in rows] == sorted(ids), one.kind.id
            found = by_spark[one.name, snapshot_id]
            assert [key for key, _ in found] == sorted(ids), one.kind.id
            # A row and its restated twin hold the same value.
            texts.add(tuple(sorted((key % 100, text) for key, text in found)))
        assert len(texts) == 1, one.kind.id


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
