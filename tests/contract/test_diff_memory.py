"""The memory of a diff: that of a process of its own, as the system counts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

#: Rows of each side in a month: two months are a batch, and one month is many buckets.
FEW, MANY = 20_000, 410_000

#: Prints the changed rows, and the highest MiB above the process before the diff.
DIFF = """
import re, sys
from pathlib import Path
from lakehouse_backfill.cli.session import use_system_memory
use_system_memory()
from pyiceberg.catalog.sql import SqlCatalog
from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.ports.comparison import DiffRequest

def resident(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

folder, rows = sys.argv[1:]
catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
head = catalog.load_table(f"n.t{rows}").metadata.current_snapshot_id
first = catalog.load_table(f"n.t{rows}").metadata.snapshots[1].snapshot_id
request = DiffRequest(
    old_table=f"n.t{rows}", old_snapshot_id=first,
    new_table=f"n.t{rows}", new_snapshot_id=head, key=("day", "id"),
)
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
print(LocalDiffer(catalog).diff(request).summary.changed, resident("VmHWM") - before)
"""


def _month(number: int, rows: int, due: int) -> pa.Table:
    """Return the rows of a month in no order; every seventh differs by when it is due."""
    ids = np.random.default_rng(number).permutation(rows)
    days = np.datetime64(f"2025-{number:02d}-01") + ids % 28
    texts = pa.array(["open", "paused", "decided"]).take(pa.array(ids % 3))
    return pa.table(
        {"day": days, "id": ids, "state": texts, "due": days + due * (ids % 7 == 0),
         "place": texts, "owner": texts, "age": ids % 90, "paused": ids % 9}
    )  # fmt: skip


def _make(catalog: SqlCatalog, rows: int, months: int) -> None:
    """Make a table by month; its last snapshot holds the months anew, its second none of these."""
    table = catalog.create_table(f"n.t{rows}", _month(1, 1, 0).schema)
    with table.update_spec() as spec:
        spec.add_field("day", "month", "month")
    old, new = (
        pa.concat_tables(_month(number, rows, due) for number in range(1, months + 1))
        for due in (0, 1)
    )
    table.append(old.slice(0, 0))
    table.append(old)
    table.overwrite(new)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_month_of_many_rows_takes_little_more_memory_than_a_batch(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    peaks = {}
    for rows, months in ((FEW, 4), (MANY, 1)):
        _make(catalog, rows, months)
        command = [sys.executable, "-c", DIFF, str(tmp_path), str(rows)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert int(found[0]) == months * -(-rows // 7)
        peaks[rows] = float(found[1])
    assert peaks[MANY] < 1.5 * peaks[FEW], peaks
