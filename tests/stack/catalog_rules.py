"""What known catalogs refuse, by their sources, as rules of the proxy in front of Iceberg's own."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.stack.proxy import Fault

TABLE = r"/namespaces/[^/]+/tables/[^/]+$"
TABLES = r"/namespaces/[^/]+/tables$"
#: One request that changes several tables.
TRANSACTION = r"/transactions/commit$"
#: Requests that change a table, or several.
COMMITS = rf"({TABLE}|{TRANSACTION})"
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


#: What the summary of each swap names, and that of one that takes a publication back.
_SWAP, _BACK = r'"lakehouse-backfill\.publication"', r'"lakehouse-backfill\.rollback-to"'


def unknown_swaps() -> list[Fault]:
    """Every other swap is made, and answered as Polaris answers when it does not know.

    Not the compactions and deletes of live writers, which the tests' own code commits.
    """
    kind = "CommitStateUnknownException"
    return [
        Fault(
            "POST", COMMITS, "after", 500, times=ALWAYS, kind=kind, chance=0.5, only_made=True,
            holds=rf'{_SWAP}: ?"(token|back)-',
        ),
    ]  # fmt: skip


def unknown_control_commits() -> list[Fault]:
    """A quarter of the commits of control tables are made, and answered so."""
    path, kind = r"/namespaces/lakehouse_backfill/tables/[^/]+$", "CommitStateUnknownException"
    return [Fault("POST", path, "after", 500, times=ALWAYS, kind=kind, chance=0.25, only_made=True)]


def lost_swaps() -> list[Fault]:
    """The first swap is made, and the first that takes one back; their answers are lost."""
    return [
        Fault("POST", COMMITS, "after", None, holds=_SWAP, lacks=_BACK),
        Fault("POST", COMMITS, "after", None, holds=_BACK),
    ]


def lost_answers() -> list[Fault]:
    """A tenth of the changes are made, and their answers are lost."""
    return [Fault("POST|DELETE", "/", "after", None, times=ALWAYS, chance=0.1)]


_SHADOWS = r'/lakehouse_backfill_shadow/|\["lakehouse_backfill_shadow"\]'
#: Rights by what method, path and body match; the first one counts.
_RIGHTS = (
    (r'/lakehouse_backfill/|\["lakehouse_backfill"\]', "control tables"),
    (r"^POST \S+/(namespaces|properties) ", "namespaces"),
    (r"^POST \S+/(tables|register) ", "create"),
    (r"^DELETE |^POST \S+/unregister ", "drop"),
)


def rights_of(method: str, path: str, body: bytes) -> set[str]:
    """Name the rights that a request needs beside reading, as docs/catalogs.md names them."""
    if method not in ("POST", "DELETE"):
        return set()
    if re.search(TRANSACTION, path):
        changes = json.loads(body)["table-changes"]
        return {"transactions"}.union(*map(_rights_of_change, changes))
    request = f"{method} {path} {body.decode()}"
    if re.search(_SHADOWS, request):
        return _rights_of_shadow(method, path, body)
    for pattern, right in _RIGHTS:
        if re.search(pattern, request):
            return {right}
    return _rights_of_commit(json.loads(body)) if re.search(TABLE, path) else set()


def _rights_of_shadow(method: str, path: str, body: bytes) -> set[str]:
    if method == "DELETE" or path.endswith("/unregister"):
        return {"shadow drop"}
    if re.search(r"/(namespaces|properties|tables|register)$", path):
        return {"shadow create"}
    if not re.search(TABLE, path):
        return set()
    change = json.loads(body)
    if {"type": "assert-create"} in change["requirements"]:
        return {"shadow create"}
    are_uuids = {update["action"] == "assign-uuid" for update in change["updates"]}
    return {"shadow uuid" if is_uuid else "shadow commits" for is_uuid in are_uuids}


def _rights_of_change(change: dict[str, Any]) -> set[str]:
    """Name the rights that one table's part of a transaction needs: those of a commit to it."""
    table = change["identifier"]
    path = f"/namespaces/{'.'.join(table['namespace'])}/tables/{table['name']}"
    return rights_of("POST", path, json.dumps(change).encode())


def _rights_of_commit(change: dict[str, Any]) -> set[str]:
    if {"type": "assert-create"} in change.get("requirements", ()):
        return {"create"}
    return set().union(*map(_rights_of_update, change["updates"]))


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
