"""What known catalogs refuse, by their sources, as rules of the proxy in front of Iceberg's own."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.stack.proxy import Fault

TABLE = r"/namespaces/[^/]+/tables/[^/]+$"
TABLES = r"/namespaces/[^/]+/tables$"
#: Requests that change a table, or several.
COMMITS = rf"({TABLE}|/transactions/commit$)"
ALWAYS = 10**9


def lakekeeper() -> list[Fault]:
    """No new UUID for a table that exists, no data path, no location that is not its own."""
    return [
        Fault(
            "POST", COMMITS, status=400, times=ALWAYS, kind="AssignUuidNotAllowed",
            holds='"assign-uuid"', lacks='"assert-create"',
        ),
        Fault(
            "POST", COMMITS, status=400, times=ALWAYS, kind="SetLocationNotAllowed",
            holds='"set-location"', lacks='"assert-create"',
        ),
        Fault(
            "POST", rf"({COMMITS}|{TABLES})", status=409, times=ALWAYS,
            kind="WriteDataPathNotAllowed", holds=r'"write\.(data|metadata)\.path"',
        ),
    ]  # fmt: skip


def polaris() -> list[Fault]:
    """No place beside the table; the server is often busy, and says when to come again."""
    return [
        Fault(
            "POST", rf"({COMMITS}|{TABLES})", status=403, times=ALWAYS, kind="ForbiddenException",
            holds=r'"write\.(data|metadata)\.path"',
        ),
        Fault(
            "POST|GET", "/namespaces/", status=503, times=ALWAYS, headers={"Retry-After": "0"},
            kind="ServiceUnavailableException", chance=0.05,
        ),
    ]  # fmt: skip


def unknown_states() -> list[Fault]:
    """A tenth of the commits are made, and answered as Polaris answers when it does not know."""
    kind = "CommitStateUnknownException"
    return [Fault("POST", COMMITS, "after", 500, times=ALWAYS, kind=kind, chance=0.1)]


def lost_answers() -> list[Fault]:
    """A tenth of the changes are made, and their answers are lost."""
    return [Fault("POST|DELETE", "/", "after", None, times=ALWAYS, chance=0.1)]


def rights_of(method: str, path: str, body: bytes) -> set[str]:
    """Name the rights that a request needs beside reading, as docs/catalogs.md names them."""
    if method not in ("POST", "DELETE"):
        return set()
    if "/lakehouse_backfill/" in path or b'["lakehouse_backfill"]' in body:
        return {"control tables"}
    if path.endswith(("/namespaces", "/properties")):
        return {"namespaces"}
    if path.endswith("/tables"):
        return {"create"}
    if path.endswith("/register"):
        return {"register"}
    if method == "DELETE" or path.endswith("/unregister"):
        return {"drop"}
    if not re.search(TABLE, path):
        return set()
    return set().union(*map(_rights_of_update, json.loads(body)["updates"]))


def _rights_of_update(change: dict[str, Any]) -> set[str]:
    match change["action"]:
        case "set-snapshot-ref":
            is_main = change["ref-name"] == "main"
            return {"main" if is_main else "tags" if change["type"] == "tag" else "branches"}
        case "remove-snapshot-ref":
            return {"branches" if re.search(r"-e\d+$", change["ref-name"]) else "tags"}
        case "assign-uuid":
            return {"uuid"}
        case "set-properties" | "remove-properties":
            return {"properties"}
        case _:
            return set()
