"""From raw input to a published partition: each kind of source, by one pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from lakehouse_backfill.adapters.iceberg.control.imports import IcebergImportLedger
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.domain.run import LINEAGE_COLUMNS
from lakehouse_backfill.domain.sources.landings import FileDelivery
from tests.support.sources.api import SECRET, VARIABLE, Vendor, serving
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

    #: The lake, and so the ledger, is shared by all kinds.
    name = "totals_by_files"

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


class ApiKind:
    """An HTTP API on this machine that answers with everything."""

    name = "totals_by_api"

    def __init__(self, _folder: Path) -> None:
        os.environ[VARIABLE] = SECRET
        self.vendor = Vendor("export")

    @property
    def fields(self) -> dict[str, Any]:
        declared = {
            "url": self.vendor.url, "records": "data.items", "id": "n",
            "credentials": {"env": VARIABLE},
        }  # fmt: skip
        return {"kind": "api", "api": declared}

    def deliver(self, records: Records) -> None:
        for d, k, v in records:
            number = len(self.vendor.records)
            self.vendor.records.append({"n": number, "d": d, "k": k, "v": v})


KINDS: dict[str, Callable[[Path], FileKind | ApiKind]] = {"files": FileKind, "api": ApiKind}


@pytest.mark.req("S4", "S5")
@pytest.mark.parametrize("kind", KINDS)
def test_raw_input_is_landed_and_published_and_a_later_landing_does_not_change_the_run(
    kind: str, lake: Lake
) -> None:
    product = LandedTotals(lake, JOB, COLUMNS)
    lake.create("out", (*COLUMNS, *LINEAGE_COLUMNS))
    source = KINDS[kind](lake.project)
    if isinstance(source, ApiKind):
        with serving(source.vendor):
            require_published(product, source)
    else:
        require_published(product, source)


def ledger(product: LandedTotals) -> list[FileDelivery]:
    wiring = product.project.wiring
    control = ControlTables(wiring.catalog, wiring.profile.control_namespace)
    return list(IcebergImportLedger(control).deliveries(FileKind.name))


def require_published(product: LandedTotals, source: FileKind | ApiKind) -> None:
    lake = product.lake
    declared = {
        "api_version": "lakehouse-backfill/v1", "source": source.name, "table": lake.table("src"),
        "columns": [{"name": name, "type": kind_} for name, kind_ in COLUMNS], **source.fields,
    }  # fmt: skip
    lake.job(yaml.safe_dump(declared), f"catalog/sources/{source.name}.yaml")
    source.deliver(FIRST)
    landed = product.project.land(source.name)
    run = product.plan(source={"at": landed.tag})
    source.deliver(SECOND)
    assert product.project.land(source.name).rows == 1
    product.project.run(run, "ann")
    product.project.accept(run, by="lead")
    product.project.publish(run, by="lead")
    if isinstance(source, FileKind):
        # Each file names the run that read it; the second one was landed too late.
        named = [(one.path, one.accepted_run_id) for one in ledger(product)]
        assert named == [("0.csv", None), ("1.csv", None), ("0.csv", run)]
        product.project.publish(run, by="lead")
        assert len(ledger(product)) == 3
    rows = product.project.accepted(product.product).select(["d", "k", "v"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [
        (date(2024, 1, 2), 1, 15), (date(2024, 1, 3), 2, 7),
    ]  # fmt: skip
