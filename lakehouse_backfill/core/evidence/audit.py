"""audit verify: are logs, pointers and plans as they were written? Nothing is changed."""

from __future__ import annotations

from lakehouse_backfill.core.runs import audit
from lakehouse_backfill.core.runs.audit import AuditVerdict
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.errors import TooBusy

#: Events that are written while we read look like an edit, so then we read again.
_MAX_READS = 10


def audit_verify(bench: Context) -> AuditVerdict:
    """Check each run's chain of events, the seal over all of them, and the states in use.

    Then the pointer of each product against its rows, and each plan against its hash.

    Raises TooBusy when events keep being written in between.
    """
    for _ in range(_MAX_READS):
        seal = bench.audit.seal()
        chains, statuses = bench.audit.chains(), bench.runs.list(open_only=True)
        if bench.audit.seal() == seal:
            products, bad_plans = bench.audit.products(), bench.audit.bad_plans()
            return audit.verify_logs(chains, seal, statuses, products, bad_plans)
    raise TooBusy("runs kept moving while their logs were read", fix="try again")
