"""`audit verify`: all logs, pointers, plans, and who signed them. Read only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from lakehouse_backfill.core.approval import signatures
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import anchors, event_log
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.event_log import AuditVerdict
from lakehouse_backfill.core.staging import rejects
from lakehouse_backfill.domain.identity.statement import AnchorRecord
from lakehouse_backfill.errors import ConfigError, NotFound, Tampered, TooBusy

#: Events written during a read look like an edit, so the read is repeated.
_MAX_READS = 10
#: The control table of the chunks.
LEDGER_TABLE = "backfill_chunk_run"


def audit_all(
    context: Context, kept_heads: Mapping[str, str] | None = None, *, with_anchor: bool = False
) -> AuditVerdict:
    """Check as `audit_verify` does; then all signatures, and with `with_anchor` the anchor's heads.

    Raises ConfigError when the profile names no anchor.
    """
    records: tuple[AnchorRecord, ...] | None = None
    if with_anchor:
        if context.anchor is None:
            raise ConfigError(
                "the profile names no anchor, so there is nothing to compare with",
                fix="write `anchor:` in catalog/profiles.yaml: docs/security.md",
            )
        # Read first: what is anchored while the logs are read is then in the logs.
        records = context.anchor.records()
    verdict, chains, products = _verify_logs(context, kept_heads)
    found = signatures.all_verdicts(context, chains, products)
    faults = [verdict.first_bad, *(str(one) for one in found if one.fault)]
    if records is not None:
        environment = context.profile.environment
        anchored = sum(record.environment == environment for record in records)
        faults.insert(1, anchors.find_fault(records, environment, chains, products))
        missing = sum(1 for _ in anchors.missing_records(context, None, None))
        verdict = replace(verdict, anchored=anchored, unanchored=missing)
    verdict = replace(verdict, first_bad=next(filter(None, faults), None))
    unsigned = sum(one.is_unsigned for one in found)
    if unsigned == len(found) and not context.profile.requires_signatures:
        return verdict
    return replace(verdict, signed=sum(one.is_signed for one in found), unsigned=unsigned)


def audit_verify(context: Context, kept_heads: Mapping[str, str] | None = None) -> AuditVerdict:
    """Check each run's chain of events, the seal over all of them, and the states in use.

    Then check the pointer of each product against its rows, and each plan against its hash. Heads
    that were kept of an earlier verdict must still be hashes of events.

    Raises TooBusy when events keep being written in between.
    """
    return _verify_logs(context, kept_heads)[0]


def _verify_logs(
    context: Context, kept_heads: Mapping[str, str] | None
) -> tuple[AuditVerdict, event_log.EventChains, event_log.ProductRows]:
    """Check as `audit_verify` does; also return the events and pointer rows that were checked."""
    for _ in range(_MAX_READS):
        seal = context.audit.seal()
        chains, statuses = context.audit.chains(), context.runs.list(open_only=True)
        if context.audit.seal() == seal:
            products = context.audit.products()
            bad_plans = context.audit.bad_plans() | context.audit.bad_documents()
            recorded = {
                table: frozenset(
                    run_id
                    for run_id in runs
                    # A run without events here may have been registered since they were read.
                    if run_id in chains or not context.runs.events(run_id)
                )
                for table, runs in context.audit.recorded_runs().items()
            }
            bad_plans |= _runs_without_ledger(context, chains, recorded)
            bad_rejects = rejects.audit(context.audit, chains)
            if bad_rejects and context.audit.seal() != seal:
                continue
            bad_plans |= bad_rejects
            verdict = event_log.verify_logs(
                chains, seal, statuses, products, bad_plans, recorded, kept_heads
            )
            return verdict, chains, products
    raise TooBusy("runs kept moving while their logs were read", fix="try again")


def _runs_without_ledger(
    context: Context, chains: event_log.EventChains, recorded: dict[str, frozenset[str]]
) -> dict[str, str]:
    """Return the runs that staged chunks, by their log, of which the chunk ledger has no row."""
    known = recorded.get(LEDGER_TABLE, chains.keys())
    missing = {}
    for run_id in chains.keys() - known:
        if all(event.verb != "finish staging" for event in chains[run_id]):
            continue
        with suppress(NotFound, Tampered):
            plan = context.runs.plan(run_id)
            if plan.resolved.chunks and not publish_modes.is_externally_written(plan):
                missing[run_id] = f"{run_id} staged chunks by its log; {LEDGER_TABLE} has no row"
    return missing
