"""From raw input to a published partition: each kind of source, by one pipeline."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from lakehouse_backfill.domain.run import LINEAGE_COLUMNS
from tests.support.spark.lake import Lake
from tests.support.spark.modes import LakeProject

pytestmark = pytest.mark.lake

JOB = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="landed_totals", version="1.0.0", inputs=("src",))
def job(context, src):
    return src.groupBy("d", "k").agg(F.sum("v").alias("v"))
"""
COLUMNS = (("d", "date"), ("k", "long"), ("v", "long"))
#: d, k, v of the first and of the second delivery.
FIRST = (("2024-01-02", 1, 10), ("2024-01-02", 1, 5), ("2024-01-03", 2, 7), ("2024-01-09", 3, 1))
SECOND = (("2024-01-02", 1, 1000),)
Records = tuple[tuple[str, int, int], ...]


class LandedTotals(LakeProject):
    """A product that sums up what a source holds by day and key."""

    transform = "landed_totals"


class FileKind:
    """CSV files in a folder of the project."""

    fields: ClassVar[dict[str, Any]] = {
        "kind": "files",
        "files": {"location": "inbox", "pattern": "*.csv", "format": "csv"},
    }

    def __init__(self, folder: Path) -> None:
        self.inbox = folder / "inbox"
        self.inbox.mkdir()

    def deliver(self, records: Records) -> None:
        lines = [f"{d},{k},{v}" for d, k, v in records]
        name = f"{len(list(self.inbox.iterdir()))}.csv"
        (self.inbox / name).write_text("\n".join(["d,k,v", *lines, ""]))


KINDS: dict[str, Callable[[Path], FileKind]] = {"files": FileKind}


@pytest.mark.req("S4")
@pytest.mark.parametrize("kind", KINDS)
def test_raw_input_is_landed_and_published_and_a_later_landing_does_not_change_the_run(
    kind: str, lake: Lake
) -> None:
    product = LandedTotals(lake, JOB, COLUMNS)
    lake.create("out", (*COLUMNS, *LINEAGE_COLUMNS))
    source = KINDS[kind](lake.project)
    declared = {
        "api_version": "lakehouse-backfill/v1", "source": "src", "table": lake.table("src"),
        "columns": [{"name": name, "type": kind_} for name, kind_ in COLUMNS], **source.fields,
    }  # fmt: skip
    lake.job(yaml.safe_dump(declared), "catalog/sources/src.yaml")
    source.deliver(FIRST)
    landed = product.project.land("src")
    run = product.plan(source={"at": landed.tag})
    source.deliver(SECOND)
    assert product.project.land("src").rows == 1
    product.project.run(run, "ann")
    product.project.accept(run, by="lead")
    product.project.publish(run, by="lead")
    rows = product.project.accepted(product.product).select(["d", "k", "v"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [
        (date(2024, 1, 2), 1, 15), (date(2024, 1, 3), 2, 7),
    ]  # fmt: skip
