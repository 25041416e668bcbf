"""Pytest plugin: which gates does a test show closed?

Looks at the verdicts that the product records as evidence while tests run: a blocking check that
did not pass. `tests.req_plugin` keeps them, and judges those of all parts: a gate that no test has
closed may be a constant that reassures.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

#: Who stores evidence: the product's adapter, and the fake of its port.
_STORES = {
    "lakehouse_backfill.adapters.iceberg.control.evidence": "IcebergEvidence",
    "tests.support.fakes.control": "FakeEvidence",
}
#: (group, name) of each blocking check that did not pass, in this session.
seen: set[tuple[str, str]] = set()


def pytest_runtest_setup() -> None:
    """Look over the shoulders of the stores that are loaded by now."""
    for module, name in _STORES.items():
        store = getattr(sys.modules.get(module), name, None)
        if store is not None and not hasattr(store.record, "__wrapped__"):
            store.record = _watched(store.record)


def _watched(record: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(record)
    def recording(store: Any, run_id: str, kind: str, document: dict[str, Any], epoch: int) -> str:
        seen.update(_closed(document))
        return record(store, run_id, kind, document, epoch)

    return recording


def _closed(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    parts = [document, *(one for one in document.get("chunks", ()) if isinstance(one, dict))]
    for part in parts:
        for check in part.get("checks", ()):
            # Tests of the store keep documents that are no verdicts.
            if isinstance(check, dict) and check.get("blocking") and not check.get("passed"):
                yield str(check.get("group")), str(check.get("name"))


def never_closed(found: set[tuple[str, str]]) -> list[str]:
    """Name the registered gates that none of these verdicts is of."""
    from lakehouse_backfill.core.runs.gate_registry import GATES

    return [
        gate.name
        for gate in GATES
        if not any(
            group == gate.group
            and re.fullmatch(re.sub(r"[A-Z]{4,}", ".+", re.escape(gate.name)), name)
            for group, name in found
        )
    ]
