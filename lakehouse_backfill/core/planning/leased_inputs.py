"""Inputs that no tag keeps (`pin: lease_only`): each read of them looks for their snapshots first.

A snapshot of such an input may expire at any time. The computing ports are wrapped, so that no
caller can leave the look out: staging, its checks, edges, totals, masks, proofs and attribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import Any

from lakehouse_backfill.core.planning.pins import require_pinned_snapshots
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.ports.compute import ComputePorts, InputSwapRequest

#: Methods of the computing ports that read pinned inputs of the plan that they are given.
INPUT_READS = frozenset(
    {
        "analysed_plan",
        "distinct",
        "edge_checksums",
        "edges",
        "input",
        "masked",
        "periods",
        "prove_determinism",
        "prove_warm_up",
        "rejects",
        "remeasure",
        "source_totals",
        "stage",
        "swap",
        "tables_read",
    }
)


def look_before_reads(context: Callable[[], Context], ports: ComputePorts) -> ComputePorts:
    """Return the ports so that each method of `INPUT_READS` looks for `lease_only` inputs first.

    It raises NotFound, before anything is read, when a snapshot has expired. Plans without such
    inputs cost nothing.
    """
    held = {one.name: _LookingPort(context, getattr(ports, one.name)) for one in fields(ports)}
    return replace(ports, **held)


class _LookingPort:
    """A computing port whose reads of inputs look for their snapshots first."""

    def __init__(self, context: Callable[[], Context], port: Any) -> None:
        self._context = context
        self._port = port

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        return self._looking(method) if name in INPUT_READS else method

    def _looking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def read(subject: Plan | InputSwapRequest, *arguments: Any, **named: Any) -> Any:
            # Of a swap, old inputs may be gone: what they gave is left out, with a note.
            plan = subject if isinstance(subject, Plan) else subject.new
            require_pinned_snapshots(self._context(), plan, "lease_only")
            return method(subject, *arguments, **named)

        return read
