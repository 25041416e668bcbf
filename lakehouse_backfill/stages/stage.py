"""stage: judge the pinned input, then compute the chunks into the shadow."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.errors import ApprovalMissing, BackfillError, ChecksFailed
from lakehouse_backfill.model.checks import CheckResult
from lakehouse_backfill.model.manifest import SuiteRef
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.run import ChunkRecord, RunStatus
from lakehouse_backfill.model.scope import Chunk
from lakehouse_backfill.rules import roles
from lakehouse_backfill.rules.plain import plain_value
from lakehouse_backfill.stages.workbench import Compute, Workbench

INPUT_CHECKS = "input-checks"


def stage(bench: Workbench, run_id: str, by: str) -> tuple[RunStatus, dict[str, Any]]:
    """Stage what is not staged yet; chunks that the shadow already holds are not redone.

    Raises ApprovalMissing (also when the code is not what was approved), ChecksFailed (the input),
    RunMoved (another process drives the run).
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    roles.require_decision(bench.runs.events(run_id), "approve", plan.manifest_hash, run_id)
    require_approved_code(bench, plan)
    bench.require_no_other_driver(status)
    status = bench.move(status, plan, "begin staging", by, driver=bench.driver)
    try:
        done, redone = _stage_all(bench, plan)
    except ChecksFailed as error:
        bench.move(status, plan, "halt", by, problem=error.problem)
        raise
    except BackfillError as error:
        bench.move(status, plan, "fail", by, problem=error.problem)
        raise
    rows = sum(record.output_rows for record in done)
    status = bench.move(status, plan, "finish staging", by, chunks=len(done), rows=rows)
    return status, {"chunks_done": len(done), "chunks_redone": redone, "rows": rows}


def require_approved_code(bench: Workbench, plan: Plan) -> None:
    """Raise ApprovalMissing when the transform's file is not the one that was planned.

    Else the evidence would name code that did not run, or chunks of one run would mix two.
    """
    transform, planned = plan.resolved.manifest.transform, plan.resolved.code_hash
    found = bench.code_hash(transform.file)
    if found != planned:
        raise ApprovalMissing(
            f"{transform.file} changed since {plan.run_id} was planned: its code is {found[:12]}, "
            f"approved was {planned[:12]}",
            state="nothing was computed",
            fix=f"put the file back, or lakehouse-backfill plan MANIFEST --revise {plan.run_id}",
        )


def _stage_all(bench: Workbench, plan: Plan) -> tuple[list[ChunkRecord], int]:
    journal = bench.journal.bind(**plan.labels)
    compute = bench.compute()
    compute.staging.load(plan)
    _judge_inputs(bench, compute, plan)
    _open_shadow(bench, plan)
    committed = {item.chunk_id: item for item in bench.shadows.chunks(plan.shadow_table)}
    recorded = {record.chunk_id: record for record in bench.ledger.chunks(plan.run_id)}
    bench.progress.start("stage", len(plan.resolved.chunks), "chunks")
    done: list[ChunkRecord] = []
    fresh = 0
    for chunk in plan.resolved.chunks:
        commit, record = committed.get(chunk.chunk_id), recorded.get(chunk.chunk_id)
        if commit is None:
            record, fresh = _compute(bench, compute, plan, chunk), fresh + 1
        elif record is None or record.snapshot_id != commit.snapshot_id:
            # The chunk landed, its ledger row did not: a crash in between.
            record = compute.staging.remeasure(plan, chunk, commit.snapshot_id)
            bench.ledger.record(record)
            journal.log("chunk found in the shadow", chunk_id=chunk.chunk_id)
        done.append(record)
        bench.progress.advance(1, record.output_rows)
    bench.progress.finish()
    return done, fresh if committed else 0


def _compute(bench: Workbench, compute: Compute, plan: Plan, chunk: Chunk) -> ChunkRecord:
    journal = bench.journal.bind(**plan.labels)
    span = {
        "chunk_id": chunk.chunk_id,
        "source_range": f"{chunk.partitions[0]}..{chunk.partitions[-1]}",
    }
    with journal.span("stage chunk", **span):
        record = compute.staging.stage(plan, chunk)
    bench.ledger.record(record)
    return record


def _open_shadow(bench: Workbench, plan: Plan) -> None:
    target = plan.resolved.target
    if target.uuid is None:
        bench.tables.create(plan.resolved.contract)
    properties = {
        "lakehouse-backfill.run-id": plan.run_id,
        "lakehouse-backfill.manifest-hash": plan.manifest_hash,
    }
    if plan.resolved.manifest.compute.staging_location == "under_target":
        info = bench.tables.describe(target.table)
        if info is not None:
            properties["write.data.path"] = f"{info.location}/data/{plan.run_id}"
    bench.shadows.open(target.table, target.snapshot_id, plan.shadow_table, properties)


def _judge_inputs(bench: Workbench, compute: Compute, plan: Plan) -> None:
    """The pinned input is judged before staging costs anything."""
    results: list[CheckResult] = []
    for suite in suites(plan):
        if suite.on != "output":
            frame = compute.measuring.input(plan, suite.on)
            parameters = suite_parameters(compute, plan, suite)
            results += compute.judge.judge(frame, suite.file, parameters, "input")
    if not results:
        return
    document = {"checks": [plain_value(result.model_dump(mode="json")) for result in results]}
    bench.evidence.record(plan.run_id, INPUT_CHECKS, document)
    failed = [result for result in results if result.blocking and not result.passed]
    if failed:
        raise ChecksFailed(
            f"the pinned input failed {len(failed)} of {len(results)} checks: "
            + "; ".join(f"{result.name}: {result.detail}" for result in failed),
            state="nothing was staged; readers see what they saw before",
            fix=f"pin a corrected input: lakehouse-backfill plan MANIFEST --revise {plan.run_id}",
        )


def suites(plan: Plan) -> tuple[SuiteRef, ...]:
    """The suites of the contract and of the run manifest."""
    return plan.resolved.contract.suites + plan.resolved.manifest.validation.suites


def suite_parameters(compute: Compute, plan: Plan, suite: SuiteRef) -> dict[str, list[Any]]:
    """Fill a suite's parameters (`name: input.column`) from the pinned inputs."""
    values = {}
    for name, origin in suite.parameters.items():
        source, _, column = origin.partition(".")
        values[name] = compute.measuring.distinct(plan, source, column)
    return values
