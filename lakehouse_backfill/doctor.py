"""doctor: is everything there that a restatement needs, and does the catalog keep its word?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.domain.capability import Capabilities
from lakehouse_backfill.errors import BackfillError, Blocked

if TYPE_CHECKING:
    from lakehouse_backfill.wiring.wiring import Wiring

Check = dict[str, Any]
#: A check's name, what makes it, and what to do when it fails.
_Asked = tuple[str, "Callable[[Wiring], str]", str]
#: What a run cannot do without, and what to do where it is missing.
_NEEDED = {
    "new_uuid": "stage on a catalog that changes a table's UUID: docs/catalogs.md",
    "tags": "pin sources as lease_only; rolled-back partitions are rewritten: docs/catalogs.md",
}


def examine(wiring: Wiring) -> dict[str, Any]:
    """Run all checks; a failing one never stops the others. Starts no JVM.

    A Spark Connect server is asked itself, in place of this machine's Java and jars.

    Gives `checks`, and `capabilities` of a catalog that answers (else None).
    """
    checks: tuple[_Asked, ...] = (
        ("project", _project, "lakehouse-backfill init DIR"),
        *_of_spark(wiring),
        ("catalog", _catalog, "check catalog.uri in catalog/profiles.yaml"),
        ("contracts", _contracts, "correct the files under catalog/contracts"),
        ("history", _history, "hold the snapshot by a tag again: docs/retention.md"),
    )
    found: list[Capabilities] = []
    tried = _run(wiring, "capabilities", lambda one: _capabilities(one, found), _TRY_AGAIN)
    rows = [_run(wiring, *check) for check in checks]
    if not found:
        return {"checks": [*rows, tried], "capabilities": None}
    return {
        "checks": [*rows, *_needed(found[0])],
        "capabilities": found[0].model_dump(mode="json"),
    }


_TRY_AGAIN = "give the account the right to make and drop tables in the namespace of shadows"


def _capabilities(wiring: Wiring, found: list[Capabilities]) -> str:
    from lakehouse_backfill.adapters.iceberg.capabilities import probe

    found.append(probe(wiring.catalog, wiring.profile.shadow_namespace))
    return ""


def _needed(found: Capabilities) -> list[Check]:
    """Give a check for each capability that runs need, first for what shadows are made by."""
    checks = [_shadows(found)]
    for name, fix in _NEEDED.items():
        is_there = bool(getattr(found, name))
        text = _said(name) if is_there else f"not so: {found.seen.get(name, '')}"
        checks.append(
            {"name": name, "ok": is_there, "detail": text, "fix": "" if is_there else fix}
        )
    return checks


def _shadows(found: Capabilities) -> Check:
    """Say how shadows are made here, and why in that way."""
    why_not = found.seen.get("register_table", "")
    if found.register_table:
        detail, fix = f"registered: {_said('register_table')}", ""
    elif found.built_clones:
        detail = f"built by create_table and one commit, as {why_not}"
        fix = ""
    else:
        detail = f"not so: {why_not}; as a plain table: {found.seen.get('built_clones', '')}"
        fix = "stage on a catalog that keeps what is registered: docs/catalogs.md"
    return {"name": "shadows", "ok": not fix, "detail": detail, "fix": fix}


def _said(name: str) -> str:
    return str(Capabilities.model_fields[name].description).rstrip(".")


def _run(wiring: Wiring, name: str, check: Callable[[Wiring], str], fix: str) -> Check:
    try:
        return {"name": name, "ok": True, "detail": check(wiring), "fix": ""}
    except BackfillError as error:
        return {"name": name, "ok": False, "detail": error.problem, "fix": error.fix or fix}
    except Exception as error:  # noqa: BLE001 (a doctor reports what it cannot explain)
        return {"name": name, "ok": False, "detail": f"{type(error).__name__}: {error}", "fix": fix}


def _project(wiring: Wiring) -> str:
    return f"{wiring.folder}, environment {wiring.profile.environment}"


def _of_spark(wiring: Wiring) -> tuple[_Asked, ...]:
    if "spark.remote" in wiring.profile.spark:
        return (("spark connect", _remote, "start the server with the catalog's jars"),)
    return (
        ("java", _java, "install Java 17 or 21, or: pip install 'lakehouse-backfill[java]'"),
        ("jars", _jars, "run the set-up again, or let Spark fetch them: it needs the network once"),
    )


def _remote(wiring: Wiring) -> str:
    from lakehouse_backfill.adapters.spark.session.remote import examined

    return examined(wiring.spark, wiring.profile.catalog["name"])


def _java(_: Wiring) -> str:
    from lakehouse_backfill.adapters.spark.session.java import require_java

    found = require_java()
    return f"Java {found.version} at {found.home} ({found.source})"


def _jars(wiring: Wiring) -> str:
    from lakehouse_backfill.adapters.spark.session.settings import local_jars

    jars = local_jars(wiring.folder)
    if not jars:
        return "none here: Spark fetches them on first use"
    return ", ".join(jar.name for jar in jars)


def _catalog(wiring: Wiring) -> str:
    namespaces = wiring.catalog.list_namespaces()
    kind = wiring.profile.catalog.get("type", "unknown type")
    return f"{wiring.profile.catalog['name']} ({kind}) answers, {len(namespaces)} namespaces"


def _contracts(wiring: Wiring) -> str:
    return f"{len(wiring.contracts())} contracts are valid"


def _history(wiring: Wiring) -> str:
    """Look for snapshots whose expiry would delete live files, in the tables of all contracts."""
    tables = sorted({contract.table for contract in wiring.valid_contracts()})
    for table in tables:
        for snapshot_id, why in wiring.bench.upkeep.dangers(table).items():
            raise Blocked(
                f"{table}: the expiry of snapshot {snapshot_id} would delete live files: {why}, "
                "and no tag holds it",
                fix=f"before anything expires, in Spark: ALTER TABLE {table} CREATE TAG "
                f"`keep-{snapshot_id}` AS OF VERSION {snapshot_id} RETAIN 36500 DAYS",
            )
    return f"no expiry of {len(tables)} tables would delete a live file"
