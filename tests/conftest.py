"""What every test folder shares. Fixtures of one kind of test live in that folder's conftest."""

from __future__ import annotations

import sys
from typing import Any

pytest_plugins = ["pytester", "tests.req_plugin"]


def pytest_collection_finish() -> None:
    """Let PyIceberg compute the metadata of a transaction once per update, where it is loaded.

    It makes a deep copy of the whole metadata at each look, 15 times in one append: a third of the
    CPU of the tests on an embedded lake. Processes that tests start keep PyIceberg as it is.
    """
    loaded = sys.modules.get("pyiceberg.table")
    if loaded is None:
        return
    compute = loaded.Transaction.table_metadata.fget

    def table_metadata(transaction: Any) -> Any:
        known = transaction.__dict__.get("_known_metadata")
        base, updates = transaction._table.metadata, transaction._updates
        if known is None or known[0] is not base or known[1] is not updates:
            known = transaction.__dict__["_known_metadata"] = (base, updates, compute(transaction))
        return known[2]

    loaded.Transaction.table_metadata = property(table_metadata)
