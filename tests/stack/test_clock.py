"""A process whose clock is really off, on catalogs that have a clock of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill.adapters.iceberg.clock import clock_of
from tests.support.lakes.catalogs import catalog_of
from tests.support.skew import build_skew

REPOSITORY = Path(__file__).resolve().parents[2]
#: A store on S3 answers no request that is 15 minutes off.
AHEAD_S = 300
_COMMIT = """
import sys
from pathlib import Path
import pyarrow as pa
from lakehouse_backfill.errors import BackfillError
from tests.support.lakes.catalogs import catalog_of
try:
    catalog_of(Path(sys.argv[1])).load_table("silver.t").append(pa.table({"id": [1]}))
except BackfillError as error:
    sys.exit(f"{error.code}: {error.problem}")
"""


@pytest.mark.req("T8")
@pytest.mark.parametrize(
    ("kind", "whose"),
    [
        ("postgres", "the catalog's database"), ("rest", "the catalog's server"),
        ("s3", "the store"),
    ],
)  # fmt: skip
def test_a_process_whose_clock_is_ahead_commits_nothing(
    named, tmp_path: Path, kind: str, whose: str
) -> None:
    named(kind)
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("silver")
    made = catalog.create_table("silver.t", Schema(NestedField(1, "id", LongType(), False)))
    ended = subprocess.run(
        [sys.executable, "-c", _COMMIT, str(tmp_path)],
        env={
            **os.environ, "PYTHONPATH": str(REPOSITORY), "LD_PRELOAD": build_skew(tmp_path),
            "SKEW_S": str(AHEAD_S),
        },
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    told = ended.stderr.splitlines()[-1]
    assert told.startswith("wrong-clock: this machine's clock is ")
    assert f" s ahead of that of {whose}: " in told
    assert catalog.load_table("silver.t").metadata_location == made.metadata_location

    with made.transaction() as change, change.update_snapshot().fast_append():
        pass
    clock = clock_of(catalog)
    assert clock is not None
    found = clock.skew()
    assert found is not None
    assert (found.whose, found.is_wrong) == (whose, False)
