"""Values for the tests of `ports/control.py`, and moving a run as a stage does."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from lakehouse_backfill.adapters.iceberg.control.audit import IcebergAudit
from lakehouse_backfill.adapters.iceberg.control.evidence import IcebergEvidence
from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from lakehouse_backfill.core.runs import event_log as audit_rules
from lakehouse_backfill.core.runs.lifecycle import next_event
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import ChunkRecord, Lease, RunStatus
from lakehouse_backfill.ports.control import Runs
from tests.support.examples.plans import NOON, a_first_event, a_plan, a_publication

PRODUCT = "silver.arrivals_daily"
LATER = NOON + timedelta(minutes=5)


def control_ports(catalog: Any) -> SimpleNamespace:
    """The ports of the control tables of a catalog."""
    tables = ControlTables(catalog, "lakehouse_backfill")
    return SimpleNamespace(
        runs=IcebergRuns(tables), audit=IcebergAudit(tables), versions=IcebergVersions(tables),
        evidence=IcebergEvidence(tables), tables=tables,
    )  # fmt: skip


def move(runs: Runs, run_id: str, verb: str, driver: str | None = None, actor="ann", **detail: Any):
    """Move a run as a stage does."""
    status = runs.status(run_id)
    at = status.at + timedelta(seconds=1)
    event = next_event(status, verb, actor=actor, mode="backfill", at=at, detail=detail)
    return runs.append(event, Lease(holder=driver, until=LATER) if driver else None)


def put(versions: Any, *rows: Publication) -> Pointer:
    """Write the rows, each in a move of its own; give the pointer after the last one."""
    for row in rows:
        pointer = versions.move(row.product, lambda _, row=row: (row,))
    return pointer


def is_intact(control: SimpleNamespace) -> bool:
    """Tell whether the logs of all runs verify against their seal."""
    chains, seal = control.audit.chains(), control.audit.seal()
    return audit_rules.verify_logs(chains, seal, control.runs.list()).is_intact


def begun(runs: Runs, run_id: str = "bf-1", driver: str | None = None, **detail: Any) -> RunStatus:
    """Register a run; with a driver, also approve it and begin to stage."""
    plan = a_plan(run_id)
    status = runs.register(plan, a_first_event(plan))
    if driver:
        move(runs, run_id, "approve", **detail)
        status = move(runs, run_id, "begin staging", driver=driver)
    return status


def a_chunk(chunk_id: str, rows: int = 5, run_id: str = "bf-1") -> ChunkRecord:
    return ChunkRecord(
        run_id=run_id, chunk_id=chunk_id, partitions=("2013-02-15", "2013-02-16"), status="done",
        input_rows=10, output_rows=rows, outside_rows=1, checksum="lhb-rowhash-1:00000000:5:0",
        seconds=0.25, snapshot_id=8_700_000_000_000_000_001, finished_at=NOON,
    )  # fmt: skip


def bare(value: Any) -> Any:
    """Take the seals away, which no test can know beforehand."""
    if isinstance(value, tuple):
        return tuple(bare(one) for one in value)
    if isinstance(value, dict):
        return {name: bare(one) for name, one in value.items()}
    if isinstance(value, Publication):
        return value.model_copy(update={"seal": ""})
    if isinstance(value, Pointer):
        changes = {"accepted": bare(value.accepted), "pending": bare(value.pending), "head": ""}
        return value.model_copy(update=changes)
    return value


def a_row(version: int, action: str, product: str = PRODUCT, **changes: Any) -> Publication:
    known = {
        "product": product, "token": f"{product}-{version}-{action}", "run_id": "bf-1",
        "table": product, "snapshot_id": 8_700_000_000_000_000_000 + version,
        "scope": Scope(
            field=ScopeField(column="arrival_date", transform="identity", type="date"),
            partitions=("2013-02-15", "null"),
        ),
        "supersedes": version - 1, "at": NOON + timedelta(microseconds=version),
        "approved_by": ("bob",), "reason": "fix",
    }  # fmt: skip
    return a_publication(version, action, **(known | changes))
