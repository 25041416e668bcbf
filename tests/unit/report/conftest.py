"""An evidence document as a published run leaves it behind."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from lakehouse_backfill.model.checks import (
    CheckResult,
    ColumnDiff,
    Diff,
    DiffSample,
    EdgePartition,
    EdgeReport,
    MeasureTotal,
    PartitionBalance,
    PartitionDiff,
    SharedFiles,
    Validation,
)
from lakehouse_backfill.model.contract import Contract
from lakehouse_backfill.model.manifest import InputRange, RunManifest
from lakehouse_backfill.model.plan import Estimate, Plan, Question, Resolved, SourcePin, TargetPin
from lakehouse_backfill.model.publication import Publication
from lakehouse_backfill.model.run import ChunkRecord, Event, RunStatus, State
from lakehouse_backfill.model.scope import Chunk, Scope, ScopeField

RUN, PRODUCT, SHADOW = "bf-0f3a9c2e71", "silver.arrivals_daily", "lhb_shadow.arrivals_daily__bf_1"
NOW = datetime(2026, 3, 2, 9, 30, tzinfo=timezone.utc)
DAYS = tuple((date(2013, 2, 15) + timedelta(days=number)).isoformat() for number in range(45))
CHUNKS = tuple(
    Chunk(chunk_id=f"c{number + 1:03d}", partitions=DAYS[number * 15 : number * 15 + 15])
    for number in range(3)
)
FIELD = ScopeField(column="arrival_date", transform="identity", type="date")
SCOPE = Scope(field=FIELD, partitions=DAYS)
STEPS = (
    ("plan", State.DRAFT, State.PLANNED),
    ("approve", State.PLANNED, State.APPROVED),
    ("begin staging", State.APPROVED, State.STAGING),
    ("finish staging", State.STAGING, State.STAGED),
    ("pass validation", State.STAGED, State.VALIDATED),
    ("accept", State.VALIDATED, State.ACCEPTED),
    ("begin publishing", State.ACCEPTED, State.PUBLISHING),
    ("finish publishing", State.PUBLISHING, State.PUBLISHED),
)


def contract() -> Contract:
    return Contract.model_validate(
        {
            "api_version": "lakehouse-backfill/v1",
            "product": PRODUCT,
            "table": PRODUCT,
            "description": "Flights from New York per local arrival day, destination and carrier.",
            "owner": "flight-data@example.com",
            "key": ["arrival_date", "dest", "carrier"],
            "partitioning": [{"column": "arrival_date"}],
            "columns": [{"name": "arrival_date", "type": "date"}],
            "measures": [{"name": "flights", "sum": "flights"}],
            "consumers": [
                {"name": "delay dashboard", "tolerates_restatement": True},
                {
                    "name": "yearly report",
                    "contact": "r@example.com",
                    "tolerates_restatement": False,
                },
            ],
        }
    )


def manifest() -> RunManifest:
    return RunManifest.model_validate(
        {
            "api_version": "lakehouse-backfill/v1",
            "run": {
                "requested_by": "ana",
                "reason": "Release 1.1.0 dated every flight by its New York departure day.",
                "reason_code": "bug_fix",
            },
            "product": PRODUCT,
            "transform": {"name": "arrivals_daily", "version": "1.2.0", "file": "jobs/arrivals.py"},
            "sources": {
                "flights": {
                    "table": "bronze.flights",
                    "range": {"column": "time_hour", "from": "2013-02-08", "to": "2013-04-08"},
                    "warm_up_days": 2,
                }
            },
            "reference_data": {"airports": {"table": "bronze.airports", "at": "complete"}},
            "target": {
                "partitions": {"column": "arrival_date", "from": "2013-02-15", "to": "2013-04-01"}
            },
        }
    )


def plan() -> Plan:
    days = InputRange(column="time_hour", from_=date(2013, 2, 8), to=date(2013, 4, 8))
    resolved = Resolved(
        manifest=manifest(),
        contract=contract(),
        scope=SCOPE,
        chunks=CHUNKS,
        sources=(
            SourcePin(
                name="flights", role="source", table="bronze.flights", requested="bronze.flights",
                snapshot_id=3051729675574597004, mode="tag", range=days, warm_up_days=2,
                cool_down_days=1,
            ),
            SourcePin(
                name="airports", role="reference", table="bronze.airports",
                requested="bronze.airports@complete", snapshot_id=6241882193877121, mode="tag",
            ),
        ),
        target=TargetPin(
            table=PRODUCT, uuid="c0ffee", snapshot_id=7171, schema_id=0, spec_id=0, format_version=2
        ),
        code_hash="9f" * 32,
        git_commit="4" * 40,
        lock_hash=None,
    )  # fmt: skip
    return Plan(
        run_id=RUN, revises=None, created_at=NOW, created_by="ana", resolved=resolved,
        manifest_hash=resolved.manifest_hash, estimate=estimate(), conflicts=(),
        checklist=tuple(
            Question(number=number, question=f"Question {number}?", answer="An answer.")
            for number in range(1, 17)
        ),
        notes=(), manifest_file="jobs/arrivals_daily/3-restate.yaml", shadow_table=SHADOW,
    )  # fmt: skip


def estimate() -> Estimate:
    return Estimate(
        input_files=2, input_rows=54_000, input_bytes=1_000_000, output_rows=11_000,
        output_bytes=None, output_files=45, shuffle_bytes=None, duration_s=None, core_hours=None,
        cost_usd=None, basis="no history",
    )  # fmt: skip


def diffs() -> tuple[PartitionDiff, ...]:
    rows = []
    for number, day in enumerate(DAYS):
        removed, added = 3 + number * 7 % 11, 2 + number * 5 % 9
        changed, unchanged = 20 + number * 13 % 61, 190 - number % 7
        rows.append(
            PartitionDiff(
                partition=day, old_rows=removed + changed + unchanged,
                new_rows=added + changed + unchanged, added=added, removed=removed,
                changed=changed, unchanged=unchanged,
            )
        )  # fmt: skip
    return tuple(rows)


def diff() -> Diff:
    rows = diffs()
    names = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")
    summary = {name: sum(getattr(row, name) for row in rows) for name in names}
    key = {"arrival_date": "2013-03-01", "dest": "LAX", "carrier": "UA"}
    return Diff(
        old=f"{PRODUCT}@7171", new=f"{SHADOW}@42", key=("arrival_date", "dest", "carrier"),
        summary=PartitionDiff(partition=None, **summary), partitions=rows,
        columns=(
            ColumnDiff(
                name="flights", changed=1508, shift=0.000213,
                old={"nulls": 0, "min": 1, "max": 17, "mean": 4.9180001},
                new={"nulls": 0, "min": 1, "max": 17, "mean": 4.91734},
            ),
            ColumnDiff(
                name="mean_delay", changed=2011, shift=0.004,
                old={"nulls": 61, "min": "-57.00", "max": "301.00", "mean": 6.2},
                new={"nulls": 58, "min": "-57.00", "max": "301.00", "mean": 6.3},
            ),
        ),
        samples=(
            DiffSample(kind="added", key=key, old=None, new={"flights": 4, "mean_delay": "3.25"}),
            DiffSample(kind="removed", key=key, old={"flights": 1, "mean_delay": None}, new=None),
            DiffSample(kind="changed", key=key, old={"flights": 5}, new={"flights": 4}),
        ),
        files=SharedFiles(shared=321, old_only=45, new_only=45), engine="local",
    )  # fmt: skip


def checks() -> tuple[CheckResult, ...]:
    return (
        CheckResult(name="all chunks are staged", group="technical", passed=True, detail="3 of 3"),
        CheckResult(name="keys are unique", group="diff", passed=True, detail="0 duplicate keys"),
        CheckResult(
            name="a wish", group="business", passed=False, detail="0.2 % more", blocking=False
        ),
        CheckResult(
            name="edges are closed", group="edge", passed=True, detail="4 partitions as accepted"
        ),
    )


def validation() -> Validation:
    edges = [("2013-02-13", "before"), ("2013-02-14", "before"), ("2013-04-01", "after")]
    return Validation(
        run_id=RUN, manifest_hash=plan().manifest_hash, shadow_snapshot_id=42, checks=checks(),
        diff=diff(),
        balances=tuple(
            PartitionBalance(
                partition=str(row.partition), old_count=row.old_rows, new_count=row.new_rows,
                old_checksum="a", new_checksum="b", equal=False,
            )
            for row in diffs()
        ),
        totals=(
            MeasureTotal(name="flights", old=40_210, new=40_200),
            MeasureTotal(name="arrived", old=38_904, new=38_897),
            MeasureTotal(name="cancelled", old=1_210, new=1_207),
            MeasureTotal(name="fares", old="120.50", new="119.25"),
        ),
        edge=EdgeReport(
            partitions=tuple(
                EdgePartition.model_validate(
                    {"partition": day, "side": side, "added": 0, "removed": 0, "changed": 0,
                     "counted_twice": {"flights": 0}, "lost": {}}
                )
                for day, side in edges
            ),
            is_closed=True, closing_from=None, closing_to=None,
        ),
    )  # fmt: skip


def events() -> tuple[Event, ...]:
    return tuple(
        Event(
            run_id=RUN, seq=number, at=NOW + timedelta(minutes=number), actor="lead", verb=verb,
            from_state=before, to_state=after, mode="backfill", detail={"reason": "looks right"},
        )
        for number, (verb, before, after) in enumerate(STEPS, start=1)
    )  # fmt: skip


def publication() -> Publication:
    return Publication(
        product=PRODUCT, version=3, token="5d41402abc4b2a76b9719d911017c592", action="publish",
        run_id=RUN, table=PRODUCT, snapshot_id=8181, before_snapshot_id=8080, scope=SCOPE,
        supersedes=1, at=NOW + timedelta(minutes=8), by="release-bot", approved_by=("lead",),
        accepted_by=("lead",),
    )  # fmt: skip


def chunk_records() -> tuple[ChunkRecord, ...]:
    return tuple(
        ChunkRecord(
            run_id=RUN, chunk_id=chunk.chunk_id, partitions=chunk.partitions, status="done",
            input_rows=18_200, output_rows=3_600, outside_rows=240,
            checksum="lhb-rowhash-1:00c0ffee:3600:" + "0f" * 16, seconds=3.214, snapshot_id=40,
            finished_at=NOW,
        )
        for chunk in CHUNKS
    )  # fmt: skip


def approval(decision: str, bound_to: str) -> dict[str, Any]:
    return {
        "decision": decision, "by": "lead", "at": NOW.isoformat(), "bound_to": bound_to,
        "reason": "looks right",
    }  # fmt: skip


@pytest.fixture
def document() -> dict[str, Any]:
    """The document of a published run, as `stages.look.evidence` gives it."""
    return published_document()


def published_document() -> dict[str, Any]:
    status = RunStatus(run_id=RUN, product=PRODUCT, state=State.PUBLISHED, seq=8, at=NOW)
    return {
        "run": status.model_dump(mode="json"),
        "standing": {
            "is_safe": "yes: the old partitions are pinned and can come back",
            "readers_see": "the restated partitions of this run",
            "next_command": f"lakehouse-backfill rollback {PRODUCT} --reason TEXT",
        },
        "plan": plan().model_dump(mode="json"),
        "scope": "45 partitions, 2013-02-15 to 2013-03-31",
        "events": [event.model_dump(mode="json") for event in events()],
        "approvals": [approval("approve", plan().manifest_hash), approval("accept", "ab" * 32)],
        "chunks": [chunk.model_dump(mode="json") for chunk in chunk_records()],
        "input_checks": [
            CheckResult(
                name="dest is a known airport", group="input", passed=True, detail="0 of 54,000"
            ).model_dump(mode="json")
        ],
        "validation": validation().model_dump(mode="json"),
        "validation_digest": "ab" * 32,
        "publication": publication().model_dump(mode="json"),
    }
