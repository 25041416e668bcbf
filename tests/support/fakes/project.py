"""A project that answers every verb with one fixed result, or with one error."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lakehouse_backfill.core.approval.decisions import FailedGate
from lakehouse_backfill.core.evidence.reproduce import ReproducedPartition
from lakehouse_backfill.core.publication.dual_read import ReaderComparison
from lakehouse_backfill.core.publication.recover import RecoveryOutcome
from lakehouse_backfill.core.rehearsal.rehearse import Difference, RehearsedStep
from lakehouse_backfill.core.runs.notes import Attention, RunNote
from lakehouse_backfill.core.staging.pause import ChunkPreview
from lakehouse_backfill.domain import rollout
from lakehouse_backfill.domain.guards.outside import HookCall
from lakehouse_backfill.domain.retention import (
    DeletedFiles,
    LeftoverFiles,
    OrphanFiles,
    RetentionItem,
)
from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.results import (
    cascades,
    comparison,
    events,
    migrations,
    origins,
    plans,
    proof,
    publications,
    runs,
    sources,
)
from lakehouse_backfill.results.base import Result

CHECKS = [
    {"name": "keys_unique", "group": "technical", "passed": True, "detail": "0 repeat a key",
     "blocking": True},
    {"name": "edges", "group": "edge", "passed": False, "detail": "2013-02-14 differs",
     "blocking": True},
]  # fmt: skip
SUMMARY = {"old_rows": 31, "new_rows": 30, "added": 1, "removed": 2, "changed": 3, "unchanged": 26}
PIN = {
    "name": "flights", "role": "source", "table": "bronze.flights",
    "requested": "bronze.flights@good", "snapshot_id": 7420231112223334445, "mode": "tag",
}  # fmt: skip
RUN = {"run_id": "bf-1", "product": "silver.arrivals_daily"}

#: The plan of a run.
PLAN: dict[str, Any] = {
    **RUN,
    "state": "planned",
    "manifest_hash": "a" * 64,
    "partitions": ["2013-02-15", "2013-02-16", "2013-02-17", "2013-02-18"],
    "last_partition": "2013-02-18, the whole of Monday 18 February 2013 (UTC)",
    "chunks": [{"chunk_id": "c1", "partitions": ["2013-02-15"]}],
    "stages": [
        {"kind": "pin", "phase": "plan", "text": "tags bronze.flights at 7420231112223334445"},
        {"kind": "approve", "phase": "approval", "by": "person", "text": "approves: anybody"},
        {"kind": "open_shadow", "phase": "staging", "text": "clones the table"},
        *(
            {
                "kind": "stage_chunk",
                "phase": "staging",
                "text": f"computes part {number}",
                "chunk_id": f"c{number}",
                "partitions": ["2013-02-15"],
            }
            for number in range(1, 4)
        ),
        {"kind": "judge_result", "phase": "validation", "text": "checks the result"},
        {"kind": "accept", "phase": "acceptance", "by": "person", "text": "accepts: anybody"},
        {"kind": "expose", "phase": "publication", "text": "swaps the files"},
        {"kind": "retire", "phase": "upkeep", "text": "removes the shadow"},
    ],
    "pins": [PIN],
    "revises": None,
    "target": "silver.arrivals_daily",
    "shadow_table": "lakehouse_backfill_shadow.arrivals_daily__bf_1",
    "partition_field": {"column": "arrival_date", "transform": "identity", "type": "date"},
    "undo": "lakehouse-backfill cancel bf-1",
    "warm_up_proof": None,
    "determinism_proof": None,
    "estimate": {
        "input_files": 3,
        "input_rows": 47_000,
        "input_bytes": 1_500_000,
        "output_rows": None,
        "duration_s": None,
        "cost_usd": 0.5,
        "basis": "metadata",
    },
    "consumers": [{"name": "finance", "tolerates_restatement": False, "contact": ""}],
    "conflicts": [{"run_id": "bf-0", "state": "staged", "partitions": ["2013-02-15"]}],
    "checklist": [
        {"number": 1, "question": "Why?", "answer": "wrong days"},
        {"number": 2, "question": "Which side effects?", "answer": None},
    ],
    "notes": ["each chunk is one commit"],
    "warnings": ["finance does not tolerate restatement"],
}

SESSION = {
    "is_on": True, "is_used": False, "pid": 7, "since": "2026-01-01T00:00:00Z",
    "idle_minutes": 30.0, "unusable": "",
}  # fmt: skip
#: Results with the fields that the CLI contract promises.
CASCADE: dict[str, Any] = {
        "cascade_id": "cx-1", "state": "accepted", "graph_version": "a" * 64,
        "members": [
            {"product": "gold.a", "decision": "selected", "run_id": "bf-1", "state": "accepted",
             "version": None, "partitions": ["2013-02-15"], "stale": [], "because": ["a reason"]},
            {"product": "gold.b", "decision": "skipped", "run_id": None, "state": None,
             "version": None, "partitions": [], "stale": [], "because": ["a reason"]},
        ],
        "readers_see": "the accepted versions as before", "publication_order": [["gold.a"]],
        "next_command": "lakehouse-backfill publish cx-1",
}  # fmt: skip
ANSWERS: dict[str, dict[str, Any]] = {
    "start_session": SESSION,
    "stop_session": SESSION | {"is_on": False},
    "session_status": SESSION | {"unusable": "it was started with another value of the Python"},
    "doctor": {"checks": [{"name": "java", "ok": True, "detail": "Java 21", "fix": ""}]},
    "add_product": {"file": "catalog/contracts/silver.a.yaml", "questions": ["owner: who?"]},
    "new_manifest": {"file": "jobs/a/run.yaml", "questions": []},
    "plan": PLAN,
    "show": {name: value for name, value in PLAN.items() if name != "warnings"},
    "try_partition": {
        "product": "silver.arrivals_daily", "manifest_file": "run.yaml",
        "partition": "2013-02-15", "input_rows": 900, "output_rows": 30, "outside_rows": 2,
        "seconds": 1.5, "passed": True, "checks": CHECKS[:1], "diff": {"summary": SUMMARY},
        "totals": [{"name": "flights", "old": 31, "new": 30}],
        "not_judged": ["golden rows"],
    },
    "rehearse": {
        **RUN, "profile": "rehearsal", "manifest_hash": "a" * 64, "manifest_file": "run.yaml",
        "copies": ["silver.arrivals_daily"], "held": True,
        "steps": [{"step": "rollback", "held": True, "seen": "the same 4 data files as before"}],
        "differences": [
            {"what": "hooks", "real": "pause_jobs", "rehearsal": "not called", "why": "open"},
        ],
    },
    "approve": {
        **RUN,
        "state": "approved",
        "approvals": [
            {"decision": "approve", "by": "ana", "at": "2026-03-01T12:00:00+00:00",
             "bound_to": "a" * 64, "reason": ""},
        ],
    },
    "accept": {**RUN, "state": "accepted", "approvals": []},
    "reject": {**RUN, "state": "rejected", "approvals": []},
    "cancel": {**RUN, "state": "cancelled", "approvals": []},
    "pause": {**RUN, "state": "paused", "approvals": []},
    "unpause": {**RUN, "state": "approved", "approvals": []},
    "note": {**RUN, "state": "published", "notes": [
        {"text": "rates come late", "by": "ana", "at": "2013-02-15T06:00:00+00:00"}]},
    "waive": {
        **RUN,
        "state": "halted",
        "gates": [
            {"name": "keys are unique", "question": "Is every key unique?", "group": "diff",
             "scope": "c0001-2013-02-15",
             "detail": "3 duplicate keys in the chunk", "waived_by": None, "why_not": "",
             "command": "lakehouse-backfill waive bf-1 'Is every key unique?' "
             "--reason TEXT"},
            {"name": "spot checks", "group": "golden", "scope": "c0001-2013-02-15",
             "detail": "1 row missing", "waived_by": "ana", "why_not": "", "command": None},
            {"name": "chunk rows are all stored",
             "question": "Is every computed row of the chunk stored?", "group": "technical",
             "scope": "c0001-2013-02-15", "detail": "9 computed, 8 stored", "waived_by": None,
             "why_not": "its rows are not what was computed", "command": None},
        ],
    },
    "run": {**RUN, "state": "validated", "chunks_done": 3, "chunks_redone": 1, "rows": 30,
            "checks": CHECKS, "changes": SUMMARY,
            "totals": [{"name": "flights", "old": 200, "new": 203},
                       {"name": "delay", "old": "10.00", "new": "10.00"},
                       {"name": "share", "old": 0.5, "new": 0.4},
                       {"name": "first", "old": None, "new": 5}]},
    "preview_run": {
        **RUN, "state": "failed", "dry_run": True, "then": "stages these chunks",
        "next_command": "lakehouse-backfill run bf-1", "chunks": [
            {"chunk_id": "c0001", "partitions": ["p"], "act": "keep", "because": "it is done"},
            {"chunk_id": "c0002", "partitions": ["q"], "act": "record", "because": "in doubt"},
        ],
    },
    "stage": {**RUN, "state": "staged", "chunks_done": 3, "chunks_redone": 0, "rows": 30},
    "validate": {**RUN, "state": "validated", "passed": True, "checks": CHECKS[:1],
                 "diff": {"summary": SUMMARY}, "partitions": [],
                 "totals": [{"name": "flights", "old": 31, "new": 30}],
                 "edge": {"is_closed": True}, "digest": "b" * 64, "report": "/p/bf-1.html"},
    "publish": {**RUN, "state": "published", "version": 2, "snapshot_id": 99, "files_added": 45,
                "files_removed": 46, "rows_added": 30, "rows_removed": 31, "seconds": 0.06,
                "was_published": False, "supersedes": 1},
    "rollback": {"product": "silver.arrivals_daily", "version": 0, "partitions": ["2013-02-15"],
                 "reason": "wrong", "snapshot_id": 100, "files_added": 46,
                 "files_removed": 45, "seconds": 0.06},
    "preview_publish": {**RUN, "dry_run": True, "version": 2, "table": "silver.arrivals_daily",
                        "partitions": ["2013-02-15"], "publish_mode": "replace", "steps": []},
    "preview_rollback": {"product": "silver.arrivals_daily", "dry_run": True, "version": 0,
                         "partitions": ["2013-02-15"], "unchanged": ["2013-02-16"],
                         "runs_undone": ["bf-1"], "runs_reinstated": [],
                         "rewritten": [
                             {"partitions": ["2013-02-15"],
                              "because": "delete files hid rows of it"},
                         ], "columns_stay": []},
    "publish_together": {"published": [
        {**RUN, "state": "published", "version": 2, "snapshot_id": 99},
        {**RUN, "run_id": "bf-2", "product": "gold.b", "version": 5, "snapshot_id": 98},
    ]},
    "rollback_together": {"rolled_back": [
        {"product": "gold.a", "state": "rolled_back", "version": 1, "table": "gold.a",
         "snapshot_id": 97, "reason": "wrong"},
    ]},
    "plan_cascade": {
        "cascade_id": "cx-1", "state": "planned", "graph_version": "a" * 64,
        "nodes": [
            {"product": "gold.a", "decision": "selected", "run_id": "bf-1",
             "partitions": ["2013-02-15"], "reused": 3, "publication": "pinned", "critical": True,
             "because": ["jobs/a.yaml restates it"]},
            {"product": "gold.b", "decision": "skipped", "upstreams": ["gold.a"],
             "because": ["no partition of it reads what changes"]},
        ],
        "publication_order": [["gold.a"]], "partitions_to_compute": 1, "partitions_reused": 3,
        "input_rows": 1200, "manifest_hashes": {"bf-1": "a" * 64},
        "undo": "lakehouse-backfill cancel cx-1", "notes": ["a note"],
        "next_command": "lakehouse-backfill approve cx-1",
    },
    "cascade": CASCADE, "approve_cascade": CASCADE, "run_cascade": CASCADE,
    "accept_cascade": CASCADE, "reject_cascade": CASCADE, "cancel_cascade": CASCADE,
    "publish_cascade": CASCADE, "rollback_cascade": CASCADE,
    "rejudge": {"product": "silver.a", "version": 2, "table": "silver.a", "snapshot_id": 9,
                "changed_since": [], "passed": True, "checks": CHECKS[:1]},
    "shadow_open": {**RUN, "state": "paused", "table": "s.bf_1", "location": "file:///s/bf_1",
                    "base_snapshot_id": 7, "scope_column": "day",
                    "partitions": ["2013-02-15", "2013-02-16"],
                    "lineage": {"produced_by_run_id": "bf-1", "input_snapshot_id": 3},
                    "next": "lakehouse-backfill shadow close bf-1"},
    "shadow_close": {**RUN, "state": "staged", "chunks_done": 2, "chunks_redone": 0, "rows": 30},
    "status": {
        "runs": [
            {
                **RUN,
                "state": "validated",
                "at": "2026-03-01T12:00:00.123+00:00",
                "is_safe": "yes: nothing was published",
                "readers_see": "the accepted version as before",
                "next_command": "lakehouse-backfill accept bf-1",
            }
        ]
    },
    "list_runs": {
        "runs": [
            {**RUN, "state": "published", "at": "2026-03-01T12:00:00+00:00", "is_safe": "yes",
             "readers_see": "version 1", "next_command": "lakehouse-backfill versions a"},
        ]
    },
    "send_alerts": {
        "alerts": [
            {"cause": "stopped", "run_id": "bf-1", "product": "silver.a", "text": "it is failed",
             "since": "2026-03-01T12:00:00+00:00", "next_command": "lakehouse-backfill status bf-1",
             "calls": [{"hook": "page", "on": "on_alert", "is_ok": True, "detail": "HTTP 200",
                        "seconds": 0.1}]},
        ]
    },
    "metrics": {"text": "# TYPE backfill_open_runs gauge\n"},
    "stale": {
        "products": [
            {"product": "silver.a", "judged": True, "states": {"complete": 3, "stale": 1},
             "notes": ["a note"],
             "manifest": "jobs/a/repair.yaml"},
        ],
        "partitions": [
            {"product": "silver.a", "partition": "2013-02-15", "place": 0, "state": "stale",
             "causes": ["late rows"], "because": ["late rows of raw: snapshot 7"],
             "run_id": "bf-1"},
        ],
        "nothing_to_do": False,
        "next_command": "lakehouse-backfill plan jobs/a/repair.yaml",
    },
    "lineage": {
        "table": "bronze.a", "partition": "p", "upstream": [],
        "downstream": [
            {**RUN, "partitions": ["2013-02-15"], "input": "raw", "role": "source",
             "table": "bronze.a", "snapshot_id": 7, "input_partitions": ["2013-02-15"]},
        ],
        "columns": {"amount": ["raw.amount"], "one": []},
        "notes": ["a note"],
    },
    "why": {
        **RUN, "table": "silver.a", "partition": None, "state": "stale",
        "because": ["late rows of raw: snapshot 7"],
        "acts": [{"at": "2026-03-01T12:00:00+00:00", "action": "publish", "version": 1,
                  "run_id": "bf-1", "by": "ana", "reason": "late"}],
        "written_since": ["snapshot 9"], "version": 1, "reason": "late", "reason_code": "late_data",
        "requested_by": "bob", "approved_by": ["ana"], "accepted_by": ["ana"],
        "published_by": "ana", "published_at": "2026-03-01T12:00:00+00:00",
        "transform": "a 1.0.0", "file": "jobs/a.py", "code_hash": "a" * 64, "git_commit": None,
        "output": "silver.a@8", "inputs": [], "rows": {"old_rows": 3}, "checks": "3 of 3 passed",
        "not_passed": [], "side_effects": [], "notes": ["a note"],
        "next_command": "lakehouse-backfill evidence bf-1",
    },
    "log": {
        "events": [
            {"run_id": "bf-1", "seq": 1, "at": "2026-03-01T12:00:00Z", "actor": "ana",
             "verb": "plan", "from_state": "draft", "to_state": "planned", "mode": "backfill",
             "detail": {"manifest_hash": "a" * 64, "revises": None}},
        ]
    },
    "chunks": {
        "chunks": [
            {"chunk_id": "c1", "partitions": ["2013-02-15"], "status": "done", "input_rows": 1200,
             "output_rows": 30, "checksum": "lhb-rowhash-1:aa:30:" + "0" * 32, "seconds": 1.5},
        ]
    },
    "diff": {
        "old": "silver.a@1",
        "new": "silver.a@2",
        "key": ["day", "dest"],
        "summary": SUMMARY,
        "partitions": [
            {"partition": f"2013-02-{day:02}", **SUMMARY, "changed": day} for day in range(1, 29)
        ],
        "columns": [{"name": "flights", "changed": 3, "old": {}, "new": {}, "shift": 0.015}],
        "samples": [
            {"kind": "changed", "key": {"dest": "SJU"}, "old": {"flights": 3},
             "new": {"flights": 4}},
            {"kind": "added", "key": {"dest": "[red]\x1b[31m"}, "old": None,
             "new": {"flights": 1}},
        ],
        "files": {"shared": 320, "old_only": 45, "new_only": 45},
        "engine": "local",
        "duplicate_keys": 0,
    },
    "dual_read": {
        **RUN,
        "state": "accepted",
        "digest": "c" * 64,
        "equal": False,
        "comparison": {
            "reader": "app", "sql": "SELECT 1", "tolerance": 0.0, "columns": ["n"], "equal": False,
            "old": {"table": "silver.a", "snapshot_id": 1},
            "new": {"table": "shadow.a", "snapshot_id": 2},
            "old_answer": {"rows": 1, "digest": "d" * 64},
            "new_answer": {"rows": 2, "digest": "e" * 64},
            "only_old": [], "only_new": [{"n": 7}], "by": "ana", "at": "2026-03-01T12:00:00Z",
        },
        "readers": [
            {"reader": "app", "outcome": "different", "required": True, "by": "ana",
             "at": "2026-03-01T12:00:00Z", "digest": "c" * 64, "accepted_by": None,
             "reason": None},
        ],
    },
    "reconcile": {
        "partitions": [
            {"partition": "a", "old_count": 3, "new_count": 3, "old_checksum": "x:3:1",
             "new_checksum": "x:3:1", "equal": True},
            {"partition": "b", "old_count": 3, "new_count": 4, "old_checksum": "x:3:1",
             "new_checksum": "x:4:2", "equal": False},
        ],
        "equal": False,
    },
    "versions": {
        "product": "silver.arrivals_daily",
        "versions": [
            {"version": 1, "run_id": "bf-1", "table": "silver.arrivals_daily", "snapshot_id": 99,
             "action": "publish", "accepted_at": "2026-03-01T12:00:00Z", "accepted_by": ["ana"],
             "supersedes": 0, "partitions": 45, "is_accepted": True},
            {"version": 0, "run_id": None, "table": "silver.arrivals_daily", "snapshot_id": 98,
             "action": "baseline", "accepted_at": "2026-02-01T12:00:00Z", "accepted_by": ["ana"],
             "supersedes": None, "partitions": 0, "is_accepted": False},
        ],
    },
    "recover": {
        "actions": [
            {"subject": "bf-1", "action": "finish the publication",
             "because": "its driver here:1 is gone", "result": "published as version 2",
             "is_done": True},
        ],
        "dry_run": False,
    },
    "give_up_topic": {
        "actions": [
            {"subject": "bf-1", "action": "give up", "because": "events of version 2 to t",
             "result": "never sent", "is_done": True},
        ],
        "dry_run": False,
    },
    "maintain": {
        "dry_run": False,
        "retired": [
            {"name": "lakehouse_backfill_shadow.arrivals__bf_1", "kind": "shadow",
             "because": "bf-1 is cancelled, its lease ended on 2026-02-01", "owner": "ana",
             "until": "2026-02-01T00:00:00+00:00"},
        ],
        "kept": [
            {"name": "silver.arrivals version 1", "kind": "version", "because": "accepted now",
             "owner": None, "until": None},
        ],
        "left": [
            {"shadow": "lakehouse_backfill_shadow.arrivals__bf_1", "size_bytes": 2048,
             "location": "/w/s", "command": "CALL system.remove_orphan_files(table => 'x')"},
            {"shadow": "lakehouse_backfill_shadow.arrivals__bf_2", "size_bytes": 2048,
             "location": "/w/t", "command": None},
        ],
        "control_files": {"files": 0, "size_bytes": 0}, "versions_let_go": [],
    },
    "attribute": {
        "old": "silver.a@1", "new": "silver.a@2", "key": ["day"], "summary": SUMMARY,
        "attribution": {
            "changed_rows": 9, "changed_partitions": 3, "sampled_rows": 6, "sampled_share": 0.6667,
            "counts": {"code": 5, "several": 1},
            "partitions": [
                {"partition": "2013-02-15", "changed_rows": 6, "basis": "run", "made_by": "bf-0",
                 "live": [], "notes": ["the published snapshot is gone"], "inputs": [],
                 "groups": [
                     {"cause": "code", "rows": 5, "columns": {"flights": 5}, "samples": [],
                      "factors": [{"cause": "code", "input": None}]},
                     {"cause": "several", "rows": 1, "columns": {}, "samples": [],
                      "factors": [{"cause": "code", "input": None},
                                  {"cause": "late_input", "input": "flights"}]},
                 ]},
            ],
        },
    },
    "evidence": {"report": "/p/bf-1.html", "archive": "/p/bf-1.json",
                 "index": "/p/index.html"},
    "audit_verify": {"events": 12, "runs": 2, "unchained": 3, "intact": True, "first_bad": None,
                     "products": 1,
                     "heads": {"bf-1": "a" * 64, "bf-2": "b" * 64}},
    "verify": {
        "run_id": "bf-1", "deep": True, "files_read": 3, "partitions_read_by_spark": 0,
        "intact": True,
        "checks": [
            {"name": "plan", "ok": True, "expected": "a" * 64, "found": "a" * 64,
             "because": "its manifest hash, worked out again"},
            {"name": "metadata of the candidate", "ok": None, "expected": None, "found": None,
             "because": "none of it is there any more"},
        ],
    },
    "reproduce": {
        "run_id": "bf-1", "equal": True, "code": "c" * 64, "scratch_table": "shadow.t__again",
        "partitions": [
            {"partition": "2013-02-15", "accepted": "lhb-rowhash-1:0a:3:0b", "equal": True,
             "again": "lhb-rowhash-1:0a:3:0b"},
        ],
        "notes": ["chunks carried over from bf-0 were computed from what that run read"],
    },
    "land": {
        "source": "trips", "kind": "files", "table": "bronze.trips", "landing_id": "ld-1f00",
        "snapshot_id": 5, "tag": "ld-1f00", "rows": 1200, "resumed": True,
        "files": [{"path": "trips-2026-01-01.csv", "status": "imported", "attempt": 1,
                   "row_count": 1200, "business_date": "2026-01-01"}],
    },
    "receive": {
        "source": "orders", "table": "bronze.orders", "landing_id": "ld-2f00", "snapshot_id": 6,
        "tag": "ld-2f00", "rows": 1200, "requests": 900, "repeated": 3, "refused": 1, "waiting": 2,
    },
    "migrate": {
        "migration": "trips", "migration_id": "mg-1f00", "product": "silver.trips",
        "table": "silver.trips", "accepted": True, "snapshot_id": 5, "rows": 1200, "adopted": 9,
        "rewritten": 1, "partitions": 4, "evidence_digest": "e" * 64, "keeps_files": True,
        "resumed": True, "readers": [{"reader": "fin", "equal": True}],
        "rejected_parts": [
            {"name": "day=2024-01-01/a.parquet", "action": "reject", "because": "it is encrypted"},
        ],
        "rewritten_parts": [
            {"name": "day=2024-01-01/b.parquet", "action": "rewrite", "because": "INT96"},
        ],
    },
    "preview_migration": {
        "migration": "trips", "table": "silver.trips", "rows": 1200, "adopted": 9, "rejected": 1,
        "parts": [
            {"name": "day=2024-01-01/a.parquet", "action": "reject", "because": "it is encrypted"},
        ],
    },
    "undo_migration": {
        "migration": "trips", "table": "silver.trips", "migration_id": "mg-1f00",
    },
    "check_events": {
        "store": "orders", "table": "bronze.order_events", "snapshot_id": 5, "rows": 1201,
        "events": 1200, "aggregates": 90, "duplicates": 1,
        "versions": [{"event_type": "paid", "version": 2, "events": 1200}], "selected": 1200,
        "left": 40,
    },
    "replay": {
        "store": "orders", "table": "bronze.order_events", "snapshot_id": 5,
        "handler": "balances", "version": "1.0.0", "output_table": "silver.balances",
        "replay_id": "rp-1f00", "resumed": True, "total": 1200, "processed": 1200,
        "handled_now": 200, "done": 1100, "skipped": 60, "suppressed": 40,
    },
    "replay_into_topic": {
        "store": "orders", "table": "bronze.order_events", "snapshot_id": 5,
        "topic": "orders-replay", "version": "1.0.0", "replay_id": "rp-1f00", "total": 1200,
        "sent": 1200, "duplicates": 1,
    },
    "rebuild": {
        "store": "orders", "handler": "balances", "version": "1.0.0", "aggregate": "A-17",
        "snapshot_id": 5, "sequence_num": 41, "state": {"cents": 5}, "based_on": 40, "events": 1,
        "files_read": 1, "files_total": 7,
    },
    "preview_landing": {
        "source": "trips", "kind": "files", "table": "bronze.trips", "size_bytes": 900,
        "parts": [{"name": "trips-2026-01-01.csv", "action": "import", "because": ""}],
    },
    "audit_guarantees": {
        "held": True,
        "sampled": [
            {"product": "silver.arrivals_daily", "run_id": "bf-1", "chunk_id": "c1",
             "partitions": ["2013-02-15"], "because": "chunk 1 of 3, drawn by run and day"},
        ],
        "checks": [
            {"product": "silver.arrivals_daily", "run_id": "bf-1", "chunk_id": "c1",
             "name": "fences", "ok": True, "expected": 7, "found": 7,
             "because": "a write of an overtaken epoch was refused"},
        ],
    },
}  # fmt: skip


MODULES = {
    "cascades": cascades,
    "comparison": comparison,
    "migrations": migrations,
    "origins": origins,
    "plans": plans,
    "proof": proof,
    "publications": publications,
    "runs": runs,
    "sources": sources,
    "events": events,
}
#: Commands that need no project.
WITHOUT_PROJECT: dict[str, type[Result]] = {
    "init": proof.InitResult, "demo": proof.DemoResult, "schema": proof.SchemaResult,
}  # fmt: skip
VERBS = (*ANSWERS, "preview_diff", *WITHOUT_PROJECT)


def result_of(verb: str) -> type[Result]:
    """Return what a verb of `Project` is declared to return, or a command that needs none."""
    # Imported here: the program's help must load without the project's libraries.
    from lakehouse_backfill.project import Project

    if verb in WITHOUT_PROJECT:
        return WITHOUT_PROJECT[verb]
    module, _, name = getattr(Project, verb).__annotations__["return"].partition(".")
    return typing.cast("type[Result]", getattr(MODULES[module], name))


def make_result(verb: str, data: dict[str, Any] | None = None) -> Result:
    """Build what a verb returns from its JSON form; fields that it lacks are empty."""
    return typing.cast("Result", _build(result_of(verb), ANSWERS[verb] if data is None else data))


#: Classes that the results name for the type checker only.
_NAMES = {
    each.__name__.rpartition(".")[2]: each
    for each in (
        Attention,
        ChunkPreview,
        DeletedFiles,
        Difference,
        FailedGate,
        HookCall,
        LeftoverFiles,
        OrphanFiles,
        ReaderComparison,
        RecoveryOutcome,
        RehearsedStep,
        ReproducedPartition,
        RetentionItem,
        RunNote,
        rollout,
    )
}
_EMPTY: dict[type, Any] = {
    str: "", int: 0, float: 0.0, bool: False, datetime: datetime(2026, 3, 1, tzinfo=timezone.utc),
}  # fmt: skip


def _build(kind: Any, value: Any = None) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _build(args[0], value)
    if origin is typing.Literal:
        return args[0] if value is None else value
    if origin is tuple:
        return tuple(_build(args[0], each) for each in value or ())
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, localns=_NAMES)
        known = {each.name: hints[each.name] for each in dataclasses.fields(kind)}
        required = {each.name for each in dataclasses.fields(kind) if _is_required(each)}
        return kind(**_build_fields(known, required, value or {}))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        known = {name: each.annotation for name, each in kind.model_fields.items()}
        required = {name for name, each in kind.model_fields.items() if each.is_required()}
        return kind.model_construct(**_build_fields(known, required, value or {}))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value) if value else next(iter(kind))
    if kind is datetime and isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00"))
    return _EMPTY.get(kind, {}) if value is None else value


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _build_fields(known: dict[str, Any], required: set[str], data: dict[str, Any]) -> Any:
    assert data.keys() <= known.keys(), f"no such fields: {data.keys() - known.keys()}"
    return {
        name: _build(known[name], data.get(name))
        for name in known
        if name in required | data.keys()
    }


class FakeProject:
    """Notes every call and answers it with a fixed result, or raises the error it was given."""

    def __init__(
        self, error: BaseException | None = None, answers: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self.error = error
        self.answers = {**ANSWERS, **(answers or {})}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.opened: list[tuple[str, str | None, str]] = []
        #: The last call, as it was written: verb, positional and keyword arguments.
        self.given: tuple[str, tuple[Any, ...], dict[str, Any]] = ("", (), {})

    def open(self, folder: Path, profile: str | None, progress: Progress) -> FakeProject:
        """Be what the program opens."""
        self.opened.append((str(folder), profile, type(progress).__name__))
        return self

    def __getattr__(self, verb: str) -> Callable[..., Result]:
        if verb not in ANSWERS:
            raise AttributeError(verb)

        def call(*args: Any, **named: Any) -> Result:
            self.calls.append((verb, (*args, *named.values())))
            self.given = (verb, args, named)
            if self.error is not None:
                raise self.error
            return make_result(verb, self.answers[verb])

        return call
