"""A restatement by Spark in a process of its own, which meets a trouble that is not of its making.

python -m tests.chaos.troubled_spark stage FOLDER RUN
python -m tests.chaos.troubled_spark full FOLDER        (on a small disk, if it may mount one)
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from lakehouse_backfill import fault_points
from lakehouse_backfill.errors import BackfillError
from lakehouse_backfill.project import Project
from tests.chaos.faults import At, FullDisk
from tests.support.spark.declared import QUICK_JAVA
from tests.support.spark.reading import Rows, rows_of
from tests.support.spark.restating import DAYS, RestateLab

WHO = "ana"
#: The days of the run, each of which is a chunk.
SCOPE = DAYS[:4]
SETTINGS = {"spark.master": "local[2]", "spark.driver.extraJavaOptions": QUICK_JAVA}
_DISK = "48m"
_FIELDS = (("id", LongType()), ("d", DateType()), ("v", LongType()))
_SCHEMA = Schema(*(NestedField(n, name, kind) for n, (name, kind) in enumerate(_FIELDS, 1)))
_BY_DAY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "d"))


def begin(folder: Path) -> tuple[RestateLab, str]:
    """Make the project and its tables without Spark; plan and approve a run of a chunk a day."""
    lab = RestateLab(folder, SETTINGS, "r")
    lab.declare("plain.py")
    lab.amend(
        target={"partitions": {"column": "d", "from": SCOPE[0], "to": DAYS[4]}},
        limits={"partitions_per_chunk": 1},
    )
    lab.catalog.create_namespace("r")
    for short, rows in (("src", _rows(1, 1)), ("out", _rows(100, 10))):
        columns = {
            "id": [key for _, key, _ in rows], "d": [date.fromisoformat(row[0]) for row in rows],
            "v": [value for *_, value in rows],
        }  # fmt: skip
        table = lab.catalog.create_table(lab.table(short), _SCHEMA, partition_spec=_BY_DAY)
        table.append(pa.table(columns))
    run = str(lab.project.plan("jobs/run.yaml", by=WHO).run_id)
    lab.project.approve(run, WHO)
    return lab, run


def restated() -> Rows:
    """Give the rows of the target after the restatement."""
    return set(_rows(10, 10))


def _rows(wrong: int, right: int) -> list[tuple[str, int, int]]:
    """Give day, key and value of the rows, where the rate on the days of the run is `wrong`."""
    days = ((DAYS[n % 5], n) for n in range(50))
    return [(day, n, n * (wrong if day in SCOPE else right)) for day, n in days]


def committed_chunks(lab: RestateLab) -> list[str]:
    """Give the chunk of each commit on the shadow, in their order."""
    marks = [one.summary.additional_properties for one in _shadow(lab).snapshots() if one.summary]
    mark = "lakehouse-backfill.chunk-id"
    return [found[mark] for found in marks if mark in found]


def staged_rows(lab: RestateLab) -> Rows:
    """Give what the shadow holds of the days of the run."""
    return {row for row in rows_of(_shadow(lab)) if row[0] in SCOPE}


def _shadow(lab: RestateLab) -> Table:
    ((space, name),) = lab.catalog.list_tables(f"{lab.namespace}_shadow")
    return lab.catalog.load_table((space, name))


def stage(folder: Path, run: str) -> int:
    """Stage the run; give the exit code, after the error."""
    try:
        Project.open(folder).stage(run, WHO)
    except BackfillError as error:
        sys.stderr.write(str(error))
        return error.exit_code
    return 0


class TooLarge(FullDisk):
    """From here on no file of this process and its JVM may grow any more."""

    def act(self) -> None:
        super().act()
        resource.prlimit(_jvm(), resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE))

    @staticmethod
    def end() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        for process in (os.getpid(), _jvm()):
            resource.prlimit(process, resource.RLIMIT_FSIZE, (most, most))


class Filled(At):
    """From here on the disk of the lake is full."""

    ballast = Path()

    def act(self) -> None:
        with self.ballast.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    return

    @classmethod
    def end(cls) -> None:
        cls.ballast.unlink()


def _jvm() -> int:
    from pyspark import SparkContext

    return int(SparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def _mounted(folder: Path) -> bool:
    """Mount a small disk there, in the namespace that `unshare` has made for this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={_DISK}".encode()
    return libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, options) == 0


@contextmanager
def _met(trouble: Any, found: list[int]) -> Iterator[None]:
    """Meet a trouble in the block, which has to fail; note its exit code and end the trouble."""
    fault_points.install_hook(trouble)
    try:
        yield
        found.append(0)
    except BackfillError as error:
        found.append(error.exit_code)
    finally:
        fault_points.install_hook(None)
        trouble.end()


def fill_up(folder: Path, *, is_mounted: bool) -> dict[str, Any]:
    """Restate where no file can be written any more, once at a time; tell how all of it ended."""
    Filled.ballast = folder / "ballast"
    full: Any = Filled if is_mounted else TooLarge
    lab, run = begin(folder)
    project, codes = lab.project, list[int]()
    before = lab.rows()
    for trouble in (TooLarge("Spark.overwrite:committing", 2), full("Spark.overwrite:committing")):
        with _met(trouble, codes):
            project.run(run, WHO)
    with _met(full("ControlLog.backfill_chunk_run:committing"), codes):
        project.run(run, WHO)
    project.run(run, WHO)
    untouched = lab.rows() == before
    project.accept(run, WHO)
    with _met(full("Publisher.swap:committing"), codes):
        project.publish(run, WHO)
    if lab.state(run) != "published":
        project.recover(run, WHO)
    if lab.state(run) != "published":
        project.publish(run, WHO)
    return {
        "codes": codes, "untouched until published": untouched,
        "rows are right": lab.rows() == restated(), "state": lab.state(run),
        "intact": project.verify(run, deep=True).intact,
        "publications": len(lab.tokens()), "commits": committed_chunks(lab),
    }  # fmt: skip


def main() -> None:
    what, folder, *rest = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    if what == "stage":
        sys.exit(stage(folder, *rest))
    is_mounted = _mounted(folder)
    told = fill_up(folder, is_mounted=is_mounted) | {"mounted": is_mounted}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
