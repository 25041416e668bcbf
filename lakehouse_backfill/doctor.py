"""doctor: is everything there that a restatement needs, and does the catalog keep its word?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.domain.capability import Capabilities
from lakehouse_backfill.errors import BackfillError, Blocked

if TYPE_CHECKING:
    from lakehouse_backfill.wiring.wiring import Adapters

DoctorCheck = dict[str, Any]
#: A check's name, what makes it, and what to do when it fails.
_CheckSpec = tuple[str, "Callable[[Adapters], str]", str]
#: What a run cannot do without, and what to do where it is missing.
_REQUIRED_CAPABILITIES = {
    "new_uuid": "stage on a catalog that changes a table's UUID: docs/catalogs.md",
    "tags": "pin sources as lease_only; rolled-back partitions are rewritten: docs/catalogs.md",
}


def run_doctor(wiring: Adapters) -> dict[str, Any]:
    """Run all checks; a failing one never stops the others. Starts no JVM.

    A Spark Connect server is asked itself, in place of this machine's Java and jars.

    Gives `checks`, and `capabilities` of a catalog that answers (else None).
    """
    checks: tuple[_CheckSpec, ...] = (
        ("project", _check_project, "lakehouse-backfill init DIR"),
        *_spark_checks(wiring),
        ("catalog", _check_catalog, "check catalog.uri in catalog/profiles.yaml"),
        ("contracts", _check_contracts, "correct the files under catalog/contracts"),
        ("history", _check_history, "hold the snapshot by a tag again: docs/retention.md"),
    )
    found: list[Capabilities] = []
    tried = _run_check(wiring, "capabilities", lambda one: _probe_catalog(one, found), _PROBE_FIX)
    rows = [_run_check(wiring, *check) for check in checks]
    if not found:
        return {"checks": [*rows, tried], "capabilities": None}
    return {
        "checks": [*rows, *_capability_checks(found[0])],
        "capabilities": found[0].model_dump(mode="json"),
    }


_PROBE_FIX = "give the account the right to make and drop tables in the namespace of shadows"


def _probe_catalog(wiring: Adapters, found: list[Capabilities]) -> str:
    from lakehouse_backfill.adapters.iceberg.capabilities import probe_capabilities

    found.append(probe_capabilities(wiring.catalog, wiring.profile.shadow_namespace))
    return ""


def _capability_checks(found: Capabilities) -> list[DoctorCheck]:
    """Give a check for each capability that runs need, first for what shadows are made by."""
    checks = [_shadow_check(found)]
    for name, fix in _REQUIRED_CAPABILITIES.items():
        is_there = bool(getattr(found, name))
        text = _capability_text(name) if is_there else f"not so: {found.seen.get(name, '')}"
        checks.append(
            {"name": name, "ok": is_there, "detail": text, "fix": "" if is_there else fix}
        )
    return checks


def _shadow_check(found: Capabilities) -> DoctorCheck:
    """Say how shadows are made here, and why in that way."""
    why_not = found.seen.get("register_table", "")
    if found.register_table:
        detail, fix = f"registered: {_capability_text('register_table')}", ""
    elif found.built_clones:
        detail = f"built by create_table and one commit, as {why_not}"
        fix = ""
    else:
        detail = f"not so: {why_not}; as a plain table: {found.seen.get('built_clones', '')}"
        fix = "stage on a catalog that keeps what is registered: docs/catalogs.md"
    return {"name": "shadows", "ok": not fix, "detail": detail, "fix": fix}


def _capability_text(name: str) -> str:
    return str(Capabilities.model_fields[name].description).rstrip(".")


def _run_check(
    wiring: Adapters, name: str, check: Callable[[Adapters], str], fix: str
) -> DoctorCheck:
    try:
        return {"name": name, "ok": True, "detail": check(wiring), "fix": ""}
    except BackfillError as error:
        return {"name": name, "ok": False, "detail": error.problem, "fix": error.fix or fix}
    except Exception as error:  # noqa: BLE001 (a doctor reports what it cannot explain)
        return {"name": name, "ok": False, "detail": f"{type(error).__name__}: {error}", "fix": fix}


def _check_project(wiring: Adapters) -> str:
    return f"{wiring.folder}, environment {wiring.profile.environment}"


def _spark_checks(wiring: Adapters) -> tuple[_CheckSpec, ...]:
    if "spark.remote" in wiring.profile.spark:
        return (
            ("spark connect", _check_spark_connect, "start the server with the catalog's jars"),
        )
    return (
        ("java", _check_java, "install Java 17 or 21, or: pip install 'lakehouse-backfill[java]'"),
        (
            "jars",
            _check_jars,
            "run the set-up again, or let Spark fetch them: it needs the network once",
        ),
    )


def _check_spark_connect(wiring: Adapters) -> str:
    from lakehouse_backfill.adapters.spark.session.remote import check_server

    return check_server(wiring.spark, wiring.profile.catalog["name"])


def _check_java(_: Adapters) -> str:
    from lakehouse_backfill.adapters.spark.session.java import require_java

    found = require_java()
    return f"Java {found.version} at {found.home} ({found.source})"


def _check_jars(wiring: Adapters) -> str:
    from lakehouse_backfill.adapters.spark.session.settings import find_local_jars

    jars = find_local_jars(wiring.folder)
    if not jars:
        return "none here: Spark fetches them on first use"
    return ", ".join(jar.name for jar in jars)


def _check_catalog(wiring: Adapters) -> str:
    namespaces = wiring.catalog.list_namespaces()
    kind = wiring.profile.catalog.get("type", "unknown type")
    return f"{wiring.profile.catalog['name']} ({kind}) answers, {len(namespaces)} namespaces"


def _check_contracts(wiring: Adapters) -> str:
    return f"{len(wiring.contracts())} contracts are valid"


def _check_history(wiring: Adapters) -> str:
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
