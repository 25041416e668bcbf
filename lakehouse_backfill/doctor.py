"""doctor: is everything there that a restatement needs, and does the catalog keep its word?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.errors import BackfillError

if TYPE_CHECKING:
    from lakehouse_backfill.wiring import Wiring

Check = dict[str, Any]


def examine(wiring: Wiring) -> list[Check]:
    """Run all checks; a failing one never stops the others. Starts no JVM."""
    checks: tuple[tuple[str, Callable[[Wiring], str], str], ...] = (
        ("project", _project, "lakehouse-backfill init DIR"),
        ("java", _java, "install Java 17 or 21, or: pip install 'lakehouse-backfill[java]'"),
        ("jars", _jars, "run the set-up again, or let Spark fetch them: it needs the network once"),
        ("catalog", _catalog, "check catalog.uri in catalog/profiles.yaml"),
        ("contracts", _contracts, "correct the files under catalog/contracts"),
        ("shadow", _shadow, "this catalog needs another way of staging: report it"),
    )
    return [_run(wiring, *check) for check in checks]


def _run(wiring: Wiring, name: str, check: Callable[[Wiring], str], fix: str) -> Check:
    try:
        return {"name": name, "ok": True, "detail": check(wiring), "fix": ""}
    except BackfillError as error:
        return {"name": name, "ok": False, "detail": error.problem, "fix": error.fix or fix}
    except Exception as error:  # noqa: BLE001 (a doctor reports what it cannot explain)
        return {"name": name, "ok": False, "detail": f"{type(error).__name__}: {error}", "fix": fix}


def _project(wiring: Wiring) -> str:
    return f"{wiring.folder}, environment {wiring.profile.environment}"


def _java(_: Wiring) -> str:
    from lakehouse_backfill.spark.java import require_java

    found = require_java()
    return f"Java {found.version} at {found.home} ({found.source})"


def _jars(wiring: Wiring) -> str:
    from lakehouse_backfill.spark.settings import local_jars

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


def _shadow(wiring: Wiring) -> str:
    from lakehouse_backfill.iceberg.shadows import probe_shadow

    return probe_shadow(wiring.catalog, wiring.profile.shadow_namespace)
