"""A reader whose credentials end at the target's prefix, and files that were adopted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakehouse_backfill.core.planning.target.write_path import DATA_PATH_PROPERTY, staging_folder
from lakehouse_backfill.domain.tables.commits import AdoptRequest
from tests.stack.catalogs import Catalogs
from tests.stack.servers import BUCKET, READER, Seaweed
from tests.support.lakes.catalogs import NAMES_CATALOG, catalog_of
from tests.support.lakes.tables import DAY, TARGET, Kit, row

DAYS = ("2013-02-01", "2013-02-02")


@pytest.fixture
def lake(catalogs: Catalogs, seaweed: Seaweed, tmp_path: Path) -> Kit:
    """A target at the place that the narrow reader may see."""
    properties = catalogs.make("s3") | {"warehouse": f"s3://{BUCKET}/narrow"}
    file = tmp_path / NAMES_CATALOG
    file.write_text(json.dumps(properties | seaweed.s3(READER)), encoding="utf-8")
    reader = tmp_path / "reader"
    reader.mkdir()
    file.rename(reader / NAMES_CATALOG)
    file.write_text(json.dumps(properties), encoding="utf-8")
    kit = Kit(tmp_path)
    kit.create_days(DAYS)
    return kit


def publish(lake: Kit, staging_location: str) -> None:
    """Stage and adopt as `stage` and `publish` do, with files where the manifest says."""
    base, shadow = lake.head(), "shadow.bf_1"
    properties = {"lakehouse-backfill.run-id": "bf-1"}
    if staging_location == "under_target":
        target = lake.tables.describe(TARGET)
        assert target is not None
        properties[DATA_PATH_PROPERTY] = staging_folder(target, "bf-1")
    lake.shadows.open(TARGET, base, shadow, properties)
    lake.write_chunk(shadow, DAY, DAYS[1], [row(11, DAYS[1], "new")], "c0")
    request = AdoptRequest(
        target=TARGET, base_snapshot_id=base, shadow=shadow,
        shadow_snapshot_id=lake.head(shadow), chunk_ids=("c0",),
        scope={"field": DAY, "partitions": (DAYS[1],)}, token="token-1",
        tags={"before": "lhb-before", "after": "lhb-after"}, properties=properties,
    )  # fmt: skip
    lake.publisher.adopt(request)


def read_narrowly(lake: Kit) -> list[str]:
    """Read the target by the credentials that end at its prefix."""
    table = catalog_of(lake.root / "reader").load_table(TARGET)
    return sorted(table.scan().to_arrow().column("v").to_pylist())


def test_the_narrow_reader_sees_the_target_and_nothing_beside_it(lake: Kit, seaweed: Seaweed):
    assert read_narrowly(lake) == ["old", "old"]
    beside = lake.live.create_table("silver.u", lake.live.load_table(TARGET).schema())
    with pytest.raises(OSError, match=r"ACCESS_DENIED|Access Denied"):
        catalog_of(lake.root / "reader").load_table("silver.u")
    assert beside.location() == f"s3://{BUCKET}/narrow/silver/u"


@pytest.mark.req("X1")
def test_files_staged_under_the_target_are_read_by_its_readers(lake: Kit):
    publish(lake, "under_target")
    assert read_narrowly(lake) == ["new", "old"]


@pytest.mark.req("X1")
def test_files_staged_beside_the_target_are_refused_to_its_narrow_readers(lake: Kit):
    publish(lake, "shadow")
    assert sorted(one[3] for one in lake.rows()) == ["new", "old"]
    with pytest.raises(OSError, match=r"ACCESS_DENIED|Access Denied"):
        read_narrowly(lake)
