"""Each kind of table, restated and put back, as PyIceberg and as Spark read it.

The kinds are those of `tests/support/lakes/kinds.py`. PyIceberg writes; Spark reads all of them at
once, so that a kind costs a fraction of a second.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.partitions import (
    ANY_COLUMN,
    Scope,
    ScopeField,
    partition_label,
    partition_start,
)
from tests.support.lakes.catalogs import NAMES_CATALOG
from tests.support.lakes.kinds import KINDS, Kind, full_name
from tests.support.lakes.tables import Kit
from tests.support.spark.lake import Lake

pytestmark = [pytest.mark.lake]


@dataclass(frozen=True)
class Restated:
    """What became of a table: its snapshots, and the ids of its rows at each."""

    kind: Kind
    name: str
    ids: dict[int, list[int]]


def kit_of(lake: Lake, folder: Path) -> Kit:
    """Give the adapters over the lake's catalog, as commands open it."""
    where = str(lake.profile_folder)
    real = {key: text.replace("${project}", where) for key, text in lake.profile.catalog.items()}
    (folder / NAMES_CATALOG).write_text(json.dumps(real))
    return Kit(folder)


def create(lake: Lake, kit: Kit, kind: Kind, number: int) -> str:
    """Create the kind's table with a row for each of its values; give its text."""
    name = names.table_text((lake.namespace, *(kind.table or (f"t{number}",))))
    schema = kind.schema()
    table = kit.live.create_table(
        name, schema, partition_spec=kind.spec(schema),
        location=f"file://{lake.profile_folder}/{lake.namespace}/{number}",
        properties={"format-version": str(kind.format)},
    )  # fmt: skip
    rows = kind.rows()
    half = len(rows) // 2
    append(kit, table, rows[:half])
    for path, transform in kind.respec:
        with kit.live.load_table(name).update_spec() as update:
            update.add_field(full_name(path), transform, f"later {transform}")
    append(kit, table, rows[half:])
    return name


def append(kit: Kit, table: Table, rows: list[dict[str, Any]]) -> None:
    loaded = table.refresh()
    loaded.append(pa.Table.from_pylist(rows, schema=loaded.schema().as_arrow()))


def label_of(kind: Kind, field: ScopeField, value: Any) -> str:
    """Give the label of the partition that PyIceberg writes a value into."""
    if field.is_whole_table:
        return "all"
    if value is None:
        return "null"
    from pyiceberg.expressions.literals import literal
    from pyiceberg.transforms import parse_transform

    stored = literal(value).to(kind.type).value if not isinstance(value, bool) else value
    stored = parse_transform(field.transform).transform(kind.type)(stored)
    return partition_label(field, partition_start(field.transform, field.type, stored))


def restate(kit: Kit, kind: Kind, name: str, number: int) -> Restated:
    """Restate the partition of the first value, and put it back."""
    info = kit.tables.describe(name)
    assert info is not None
    by = ANY_COLUMN if kind.by is None else full_name(kind.path)
    field = kit.tables.scope_field(info, by)
    labels = [label_of(kind, field, value) for value in kind.values]
    inside = [labels[0] == label for label in labels]
    files = kit.tables.files(name, info.snapshot_id, field)
    assert {label for file in files for label in file.spans or (file.partition,)} >= set(labels)
    new = [row for row, is_in in zip(kind.rows(100), inside, strict=True) if is_in]
    base = kit.head(name)
    request = kit.stage(field, {labels[0]: new}, run=f"k{number}", name=name)
    swap = kit.publisher.adopt(request)
    back = kit.publisher.revert(
        kit.revert_request(swap, Scope(field=field, partitions=(labels[0],)), run=f"k{number}")
    )
    old = list(range(len(labels)))
    changed = [at + 100 if is_in else at for at, is_in in enumerate(inside)]
    assert base is not None
    return Restated(kind, name, {base: old, swap.snapshot_id: changed, back.snapshot_id: old})


def seen_by_pyiceberg(kit: Kit, name: str, snapshot_id: int) -> list[dict[str, Any]]:
    found = kit.live.load_table(name).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["id"])


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


@pytest.mark.long
@pytest.mark.req("U16")
def test_each_kind_is_restated_and_put_back_as_both_readers_see_it(
    lake: Lake, tmp_path: Path
) -> None:
    assert len(KINDS) >= 45
    assert len({kind.id + str(kind.format) for kind in KINDS}) == len(KINDS)
    kit = kit_of(lake, tmp_path)
    done = []
    for number, kind in enumerate(KINDS):
        name = create(lake, kit, kind, number)
        done.append(restate(kit, kind, name, number))
    by_spark = seen_by_spark(lake, done)
    for one in done:
        texts = set()
        for snapshot_id, ids in one.ids.items():
            rows = seen_by_pyiceberg(kit, one.name, snapshot_id)
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
