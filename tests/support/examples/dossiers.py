"""An evidence document as a published run leaves it behind: the same at every call."""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from lakehouse_backfill.domain.checks import (
    CheckResult,
    EdgePartition,
    EdgeReport,
    MeasurePoint,
    MeasureTotal,
    PartitionBalance,
    ValidationResult,
)
from lakehouse_backfill.domain.comparison.diff import (
    CellDiff,
    ColumnDiff,
    Diff,
    DiffSample,
    Distribution,
    DistributionBar,
    PartitionDiff,
    SharedFiles,
)
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import InputRange, RunManifest
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import (
    ChecklistQuestion,
    Plan,
    ResolvedManifest,
    SourcePin,
    TargetPin,
)
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import ChunkRecord, Event, RunState, RunStatus
from tests.support.examples.plans import an_event, estimate, plan_of

RUN, PRODUCT, SHADOW = "bf-0f3a9c2e71", "silver.arrivals_daily", "lhb_shadow.arrivals_daily__bf_1"
NOW = datetime(2026, 3, 2, 9, 30, tzinfo=timezone.utc)
DAYS = tuple((date(2013, 2, 15) + timedelta(days=number)).isoformat() for number in range(45))
CHUNKS = tuple(
    Chunk(chunk_id=f"c{number + 1:03d}", partitions=DAYS[number * 15 : number * 15 + 15])
    for number in range(3)
)
FIELD = ScopeField(column="arrival_date", transform="identity", type="date")
SCOPE = Scope(field=FIELD, partitions=DAYS)
DIGEST = "ab" * 32
WAIVER = {
    "gate": "mean delay moves by at most 1 %", "group": "business", "scope": "result",
    "bound_to": DIGEST, "observed": 0.013, "reason": "the old days were wrong by this much",
}  # fmt: skip
#: Delays of 32 minutes in each bar; the new ones are a little later.
SPREAD = Distribution(
    test="ks", value=0.13, limit=0.1,
    bars=tuple(
        DistributionBar(name=str(low), low=low, high=low + 32, old=old / 100, new=new / 100)
        for low, old, new in zip(
            range(-64, 320, 32), (9, 31, 24, 13, 8, 5, 4, 2, 1, 1, 1, 1),
            (5, 22, 29, 17, 10, 6, 4, 3, 1, 1, 1, 1), strict=True,
        )
    ),
)  # fmt: skip
#: What `code` of a document holds: the text of the job as it ran.
CODE = (
    '@transform(name="arrivals_daily", version="1.2.0")\n'
    "def arrivals_daily(flights, airports):\n"
    '    return flights.groupBy("arrival_date", "dest", "carrier").count()\n'
)
STEPS = (
    ("plan", RunState.DRAFT, RunState.PLANNED),
    ("approve", RunState.PLANNED, RunState.APPROVED),
    ("begin staging", RunState.APPROVED, RunState.STAGING),
    ("finish staging", RunState.STAGING, RunState.STAGED),
    ("waive", RunState.STAGED, RunState.STAGED),
    ("pass validation", RunState.STAGED, RunState.VALIDATED),
    ("accept", RunState.VALIDATED, RunState.ACCEPTED),
    ("begin publishing", RunState.ACCEPTED, RunState.PUBLISHING),
    ("finish publishing", RunState.PUBLISHING, RunState.PUBLISHED),
)


def contract() -> Contract:
    return Contract.model_validate(
        {
            "api_version": "lakehouse-backfill/v1", "product": PRODUCT, "table": PRODUCT,
            "description": "Flights from New York per local arrival day, destination and carrier.",
            "owner": "flight-data@example.com", "key": ["arrival_date", "dest", "carrier"],
            "partitioning": [{"column": "arrival_date"}],
            "columns": [{"name": "arrival_date", "type": "date"}],
            "measures": [{"name": "flights", "sum": "flights"}],
            "consumers": [
                {"name": "delay dashboard", "tolerates_restatement": True},
                {
                    "name": "yearly report", "contact": "r@example.com",
                    "tolerates_restatement": False,
                },
            ],
        }
    )  # fmt: skip


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
    resolved = ResolvedManifest(
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
    return plan_of(
        resolved, run_id=RUN, created_at=NOW, created_by="ana",
        estimate=estimate(
            input_files=2, input_rows=54_000, input_bytes=1_000_000, output_rows=11_000,
            output_files=45,
        ),
        checklist=tuple(
            ChecklistQuestion(number=number, question=f"Question {number}?", answer="An answer.")
            for number in range(1, 17)
        ),
        manifest_file="jobs/arrivals_daily/3-restate.yaml", shadow_table=SHADOW,
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
    rows, changed = diffs(), Counter[str]()
    for cell in cells():
        changed[cell.column] += cell.changed
    names = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")
    summary = {name: sum(getattr(row, name) for row in rows) for name in names}
    key = {"arrival_date": "2013-03-01", "dest": "LAX", "carrier": "UA"}
    return Diff(
        old=f"{PRODUCT}@7171", new=f"{SHADOW}@42", key=("arrival_date", "dest", "carrier"),
        summary=PartitionDiff(partition=None, **summary), partitions=rows,
        columns=(
            ColumnDiff(
                name="flights", changed=changed["flights"], shift=0.000213,
                old={"nulls": 0, "min": 1, "max": 17, "mean": 4.9180001},
                new={"nulls": 0, "min": 1, "max": 17, "mean": 4.91734},
            ),
            ColumnDiff(
                name="cancelled", changed=changed["cancelled"], shift=0.0,
                old={"nulls": 0, "min": 0, "max": 9}, new={"nulls": 0, "min": 0, "max": 9},
            ),
            ColumnDiff(
                name="diverted", changed=0, shift=0.0,
                old={"nulls": 0, "min": 0, "max": 2}, new={"nulls": 0, "min": 0, "max": 2},
            ),
            ColumnDiff(
                name="mean_delay", changed=changed["mean_delay"], shift=0.004,
                old={"nulls": 61, "min": "-57.00", "max": "301.00", "mean": 6.2},
                new={"nulls": 58, "min": "-57.00", "max": "301.00", "mean": 6.3},
                distribution=SPREAD,
            ),
        ),
        samples=(
            DiffSample(kind="added", key=key, old=None, new={"flights": 4, "mean_delay": "3.25"}),
            DiffSample(kind="removed", key=key, old={"flights": 1, "mean_delay": None}, new=None),
            DiffSample(kind="changed", key=key, old={"flights": 5}, new={"flights": 4}),
        ),
        files=SharedFiles(shared=321, old_only=45, new_only=45), engine="local",
        cells=cells(),
    )  # fmt: skip


def checks() -> tuple[CheckResult, ...]:
    return (
        CheckResult(name="all chunks are staged", group="technical", passed=True, detail="3 of 3"),
        CheckResult(name="keys are unique", group="diff", passed=True, detail="0 duplicate keys"),
        CheckResult(
            name="nothing outside the partitions changed", group="technical", passed=True,
            detail="321 files shared, 0 differ", waivable=False,
        ),
        CheckResult(
            name="a wish", group="business", passed=False, detail="0.2 % more", blocking=False
        ),
        CheckResult(
            name="mean delay moves by at most 1 %", group="business", passed=False, detail="1.3 %",
            observed=0.013, limit=0.01,
        ),
        CheckResult(
            name="edges are closed", group="edge", passed=True, detail="4 partitions as accepted"
        ),
    )  # fmt: skip


def cells() -> tuple[CellDiff, ...]:
    """Give cells as the diff engines do: above zero only, at most the changed rows."""
    found = []
    for number, row in enumerate(diffs()):
        counts = {
            "flights": row.changed * (number % 4) // 4,
            "mean_delay": row.changed,
            "cancelled": number % 3 if number > 30 else 0,
        }
        found += [
            CellDiff(partition=row.partition, column=name, changed=count)
            for name, count in counts.items()
            if count
        ]
    return tuple(found)


def totals() -> tuple[MeasureTotal, ...]:
    """Give totals with series: whole numbers, decimals as text, one without any change."""
    flights, fares, cancelled = [], [], []
    for number, day in enumerate(DAYS):
        old = 880 + 60 * (number % 7) - number * 3
        change = (number * 5 % 11) - 6 if number % 5 else 0
        flights.append(MeasurePoint(partition=day, old=old, new=old + change))
        fares.append(
            MeasurePoint(
                partition=day, old=None if number == 7 else f"{old}.50", new=f"{old + change}.25"
            )
        )
        cancelled.append(MeasurePoint(partition=day, old=number % 6, new=number % 6))
    return tuple(_total(*each) for each in (
        ("flights", flights), ("fares", fares), ("cancelled", cancelled),
    ))  # fmt: skip


def _total(name: str, series: list[MeasurePoint]) -> MeasureTotal:
    sides = []
    for side in ("old", "new"):
        values = [getattr(point, side) for point in series if getattr(point, side) is not None]
        total = sum(Decimal(str(value)) for value in values)
        sides.append(str(total) if isinstance(values[0], str) else int(total))
    return MeasureTotal(name=name, old=sides[0], new=sides[1], series=tuple(series))


def seal(number: int) -> str:
    """Give a hash for an event's number; none before the first."""
    return f"{number:02x}" * 32 if number else ""


def validation() -> ValidationResult:
    edges = [("2013-02-13", "before"), ("2013-02-14", "before"), ("2013-04-01", "after")]
    return ValidationResult(
        run_id=RUN, manifest_hash=plan().manifest_hash, shadow_snapshot_id=42, checks=checks(),
        diff=diff(),
        balances=tuple(
            PartitionBalance(
                partition=str(row.partition), old_count=row.old_rows, new_count=row.new_rows,
                old_checksum="a", new_checksum="b", equal=False,
            )
            for row in diffs()
        ),
        totals=totals(),
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
        an_event(
            RUN, number, before, after, at=NOW + timedelta(minutes=number), actor="lead", verb=verb,
            detail=WAIVER if verb == "waive" else {"reason": "looks right"},
            previous=seal(number - 1), hash=seal(number),
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


def chunk_checks() -> list[dict[str, Any]]:
    check = CheckResult(name="rows were written", group="technical", passed=True, detail="3,600")
    return [
        {
            "chunk_id": record.chunk_id, "checksum": record.checksum, "status": record.status,
            "checks": [check.model_dump(mode="json")],
        }
        for record in chunk_records()
    ]  # fmt: skip


def approval(decision: str, bound_to: str) -> dict[str, Any]:
    return {
        "decision": decision, "by": "lead", "at": NOW.isoformat(), "bound_to": bound_to,
        "reason": "looks right",
    }  # fmt: skip


def published_document() -> dict[str, Any]:
    """Give the document of a published run, as `stages.look.evidence` does."""
    status = RunStatus(
        run_id=RUN, product=PRODUCT, state=RunState.PUBLISHED, seq=9, at=NOW, head=seal(9)
    )
    return {
        "run": status.model_dump(mode="json"),
        "standing": {
            "is_safe": "yes: the old partitions are pinned and can come back",
            "readers_see": "the restated partitions of this run",
            "next_command": f"lakehouse-backfill rollback {PRODUCT} --reason TEXT",
        },
        "plan": plan().model_dump(mode="json"), "scope": "45 partitions, 2013-02-15 to 2013-03-31",
        "events": [event.model_dump(mode="json") for event in events()],
        "approvals": [approval("approve", plan().manifest_hash), approval("accept", DIGEST)],
        "chunks": [chunk.model_dump(mode="json") for chunk in chunk_records()],
        "input_checks": [
            CheckResult(
                name="dest is a known airport", group="input", passed=True, detail="0 of 54,000"
            ).model_dump(mode="json")
        ],
        "chunk_checks": chunk_checks(),
        "waivers": [WAIVER | {"by": "lead", "at": (NOW + timedelta(minutes=5)).isoformat()}],
        "validation": validation().model_dump(mode="json"), "validation_digest": DIGEST,
        "publication": publication().model_dump(mode="json"),
        "code": [
            {
                "file": "jobs/arrivals.py", "sha256": hashlib.sha256(CODE.encode()).hexdigest(),
                "text": CODE,
            }
        ],
    }  # fmt: skip
