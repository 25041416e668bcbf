"""The first steps of a project: doctor, and drafts of contracts and run manifests.

`doctor` checks what a restatement needs, and tries out what the catalog keeps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.iceberg.catalog import missing_table_error
from lakehouse_backfill.adapters.iceberg.schema import stored_twins
from lakehouse_backfill.adapters.local.reader import find_key
from lakehouse_backfill.config.drafts import (
    choose_scope_field,
    draft_contract,
    draft_manifest,
    draft_repair,
    draft_suite,
)
from lakehouse_backfill.config.faults import CONTRACTS_FOLDER
from lakehouse_backfill.config.manifests import check_range
from lakehouse_backfill.config.project_files import newest_transform
from lakehouse_backfill.config.scaffold import write_new_file
from lakehouse_backfill.core.planning.target.isolation import choose_isolation
from lakehouse_backfill.core.retention.maintain import CONTROL_FILES_GRACE
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.labels.values import width_of
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import BackfillError, Blocked, ConfigError, Unsupported
from lakehouse_backfill.results import proof

if TYPE_CHECKING:
    from lakehouse_backfill.core.evidence.staleness import ProductStatus
    from lakehouse_backfill.domain.contract import Contract
    from lakehouse_backfill.domain.profile import Isolation
    from lakehouse_backfill.wiring.adapters import Adapters


#: A check's name, what makes it, and what to do when it fails.
_CheckSpec = tuple[str, "Callable[[Adapters], str]", str]
#: What a run cannot do without, and what to do where it is missing.
_REQUIRED_CAPABILITIES = {
    "new_uuid": "write isolation: auto (or branch) in the profile: docs/catalogs.md",
    "tags": "pin sources as lease_only; rolled-back partitions are rewritten: docs/catalogs.md",
}
#: What the user pays where the catalog lacks it.
_COSTS = {
    "branches": "no run can use a branch of its target",
    "branch_commits": "a writer of a table with branches gets an error, and must repeat its commit",
    "register_table": "shadows are built by create_table and one commit more",
    "data_path": "files cannot be staged under the target (staging_location: under_target)",
    "overlap": "files cannot be staged under the target (staging_location: under_target)",
    "rights_beside": "clones cannot be read or written; isolation: auto uses branches",
    "client_planning": "lists of files may be hidden: no scope, diff or verify is proven then",
    "views": "products have no SQL view of the accepted version",
    "multi_table_commit": "followed products are published one after the other",
    "idempotency_keys": "a commit whose response is lost may end with exit code 5: repeat it",
    "unregister": "a shadow is dropped; where a drop deletes files, it stays and is marked",
}


def run_doctor(wiring: Adapters, *, with_spark: bool = False) -> proof.DoctorResult:
    """Run all checks; a failing one never stops the others.

    Starts a JVM only with `with_spark`, to read the catalog by Spark too. A Spark Connect server is
    asked itself, in place of this machine's Java and jars.

    `capabilities` is None when the catalog does not answer.
    """
    checks: tuple[_CheckSpec, ...] = (
        ("project", _check_project, "lakehouse-backfill init DIR"),
        *_spark_checks(wiring, with_spark=with_spark),
        ("catalog", _check_catalog, "check catalog.uri in catalog/profiles.yaml"),
        ("clock", _check_clock, "set the wrong one of both clocks right"),
        ("signatures", _check_signatures, "docs/security.md"),
        ("contracts", _check_contracts, "correct the files under catalog/contracts"),
        ("history", _check_history, "hold the snapshot by a tag again: docs/retention.md"),
        ("control tables", _check_control_tables, "lakehouse-backfill maintain"),
    )
    found: list[Capabilities] = []
    tried = _run_check(wiring, "capabilities", lambda one: _probe_catalog(one, found), _PROBE_FIX)
    rows = [_run_check(wiring, *check) for check in checks]
    if not found:
        return proof.DoctorResult(checks=_without_repeats((*rows, tried)), capabilities=None)
    rows += _capability_checks(found[0])
    rows += _limit_checks(found[0])
    rows.append(_isolation_check(found[0], wiring.profile.isolation, tried))
    return proof.DoctorResult(checks=tuple(rows), capabilities=found[0])


_PROBE_FIX = "give the account the right to make and drop tables in the namespace of shadows"


def _probe_catalog(wiring: Adapters, found: list[Capabilities]) -> str:
    from lakehouse_backfill.adapters.iceberg.capabilities import (
        keep_capabilities,
        probe_capabilities,
    )

    namespace = wiring.profile.shadow_namespace
    found.append(probe_capabilities(wiring.catalog, namespace))
    keep_capabilities(wiring.catalog, namespace, found[0])
    return ""


def _capability_checks(found: Capabilities) -> list[proof.DoctorCheck]:
    """Return a check for each capability that runs need, first for what shadows are made by."""
    checks = [_shadow_check(found)]
    for name, fix in _REQUIRED_CAPABILITIES.items():
        is_there = bool(getattr(found, name))
        text = _capability_text(name) if is_there else f"not so: {found.seen.get(name, '')}"
        checks.append(
            proof.DoctorCheck(name=name, ok=is_there, detail=text, fix="" if is_there else fix)
        )
    return checks


def _limit_checks(found: Capabilities) -> list[proof.DoctorCheck]:
    """Describe what the catalog lacks that runs can do without, each with its cost."""
    missing = [name for name in _COSTS if not getattr(found, name)]
    texts = [f"no {name} ({found.seen.get(name, 'not seen')}): {_COSTS[name]}" for name in missing]
    return [proof.DoctorCheck(name="limits", ok=True, detail="; ".join(texts))] if texts else []


def _isolation_check(
    found: Capabilities, setting: Isolation, tried: proof.DoctorCheck
) -> proof.DoctorCheck:
    """Describe where runs of this profile write, why, and what that costs."""
    chosen = choose_isolation(setting, found)
    detail, fix = f"isolation: {setting}, so runs write to a {chosen.kind}: {chosen.why}", ""
    if not tried.ok:
        detail, fix = f"{detail}; not kept for `plan`: {tried.detail}", tried.fix
    elif chosen.kind == "clone" and not found.clones:
        fix = "write isolation: auto in the profile, on a catalog with branch_commits"
    return proof.DoctorCheck(name="isolation", ok=not fix, detail=detail, fix=fix)


def _shadow_check(found: Capabilities) -> proof.DoctorCheck:
    """Describe how shadows are made here, and why in that way."""
    why_not = found.seen.get("register_table", "")
    if found.register_table:
        detail, fix = f"registered: {_capability_text('register_table')}", ""
    elif found.built_clones:
        detail = f"built by create_table and one commit, as {why_not}"
        fix = ""
    else:
        detail = f"not so: {why_not}; as a plain table: {found.seen.get('built_clones', '')}"
        fix = "stage on a catalog that keeps what is registered: docs/catalogs.md"
    return proof.DoctorCheck(name="shadows", ok=not fix, detail=detail, fix=fix)


def _capability_text(name: str) -> str:
    return str(Capabilities.model_fields[name].description).rstrip(".")


def _without_repeats(rows: tuple[proof.DoctorCheck, ...]) -> tuple[proof.DoctorCheck, ...]:
    """Let the first of checks that fail for one cause name it; the others refer to that one."""
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row.detail, row.name)
    return tuple(
        row
        if row.ok or first[row.detail] == row.name
        else replace(row, detail=f"not looked at: {first[row.detail]} failed", fix="")
        for row in rows
    )


def _run_check(
    wiring: Adapters, name: str, check: Callable[[Adapters], str], fix: str
) -> proof.DoctorCheck:
    try:
        return proof.DoctorCheck(name=name, ok=True, detail=check(wiring))
    except BackfillError as error:
        return proof.DoctorCheck(name=name, ok=False, detail=error.problem, fix=error.fix or fix)
    except Exception as error:  # noqa: BLE001 (a doctor reports what it cannot explain)
        problem = f"{type(error).__name__}: {error}"
        return proof.DoctorCheck(name=name, ok=False, detail=problem, fix=fix)


def _check_project(wiring: Adapters) -> str:
    return f"{wiring.folder}, environment {wiring.profile.environment}"


def _check_signatures(wiring: Adapters) -> str:
    from lakehouse_backfill.wiring.ports import identity_port

    return identity_port(wiring).describe(is_required=wiring.profile.requires_signatures)


def _spark_checks(wiring: Adapters, *, with_spark: bool) -> tuple[_CheckSpec, ...]:
    if "spark.remote" in wiring.profile.spark:
        return (("spark connect", _check_session, "start the server with the catalog's jars"),)
    return (
        ("java", _check_java, "install Java 17 or 21, or: pip install 'lakehouse-backfill[java]'"),
        (
            "jars",
            _check_jars,
            "run the set-up again, or let Spark fetch them: it needs the network once",
        ),
        *(
            (("spark", _check_session, "correct the profile's catalog or spark settings"),)
            if with_spark
            else ()
        ),
    )


def _check_session(wiring: Adapters) -> str:
    from lakehouse_backfill.adapters.spark.session.session import check_session

    return check_session(wiring.spark, wiring.profile.catalog["name"])


def _check_java(_: Adapters) -> str:
    from lakehouse_backfill.adapters.spark.session.class_archive import ClassArchives
    from lakehouse_backfill.adapters.spark.session.java import require_java

    found = require_java()
    archives = ClassArchives.of_user(os.environ)
    classes = archives.describe() if archives else "archives of classes are switched off"
    return f"Java {found.version} at {found.home} ({found.source}); {classes}"


def _check_jars(wiring: Adapters) -> str:
    from lakehouse_backfill.adapters.iceberg.catalog import with_pyiceberg_settings
    from lakehouse_backfill.adapters.spark.session import settings

    declared = [name for name in settings.JAR_SETTINGS if name in wiring.profile.spark]
    if declared:
        return f"the profile's {', '.join(declared)}; not looked into"
    catalog = with_pyiceberg_settings(wiring.profile).catalog
    jars = settings.find_local_jars(wiring.folder)
    missing = settings.missing_artifacts(jars, catalog)
    names, artifacts = ", ".join(jar.name for jar in jars), ", ".join(missing)
    if not missing:
        return names
    if (folder := os.environ.get(settings.JARS_VARIABLE)) is not None:
        raise Blocked(
            f"{folder} holds {names}, but not {artifacts}",
            fix=f"put it there, or unset {settings.JARS_VARIABLE}: then Spark fetches it",
        )
    here = f"{names}; " if names else "none here; "
    return f"{here}Spark fetches {artifacts} on first use, which needs the network"


def _check_catalog(wiring: Adapters) -> str:
    namespaces = wiring.catalog.list_namespaces()
    kind = wiring.profile.catalog.get("type", "unknown type")
    return f"{wiring.profile.catalog['name']} ({kind}) answers, {len(namespaces)} namespaces"


def _check_clock(wiring: Adapters) -> str:
    """Compare this machine's clock with one that the catalog, or its store, has shown."""
    from lakehouse_backfill.adapters.iceberg.clock import clock_of

    clock = clock_of(wiring.catalog)
    found = None if clock is None else clock.skew()
    if found is None:
        return (
            "no other clock is known here, so that one that is ahead would not be noticed: its "
            "commits lie in the future, and shut out writers with a right clock until then"
        )
    if found.is_wrong:
        raise Blocked(f"{found.describe()}; no command commits anything until both agree")
    return found.describe()


def _check_contracts(wiring: Adapters) -> str:
    return f"{len(wiring.contracts())} contracts are valid"


def _check_history(wiring: Adapters) -> str:
    """Look for snapshots whose expiry would delete live files, in the tables of all contracts."""
    tables = sorted({contract.table for contract in wiring.valid_contracts()})
    for table in tables:
        for snapshot_id, why in wiring.context.pins.unsafe_expiries(table).items():
            raise Blocked(
                f"{table}: the expiry of snapshot {snapshot_id} would delete live files: {why}, "
                "and no tag holds it",
                fix=f"before anything expires, in Spark: ALTER TABLE {table} CREATE TAG "
                f"`keep-{snapshot_id}` AS OF VERSION {snapshot_id} RETAIN 36500 DAYS",
            )
    return f"no expiry of {len(tables)} tables would delete a live file"


#: So many unreachable files of control tables are what `maintain` was not called for.
_MAX_ORPHANS = 2000


def _check_control_tables(wiring: Adapters) -> str:
    """Count the files of control tables that no snapshot reaches any more."""
    context = wiring.context
    found = context.audit.count_orphans(context.clock.now() - CONTROL_FILES_GRACE)
    text = f"{found.files} files, {found.size_bytes} bytes, that no snapshot reaches"
    if found.files > _MAX_ORPHANS:
        raise Blocked(f"{text}: more than {_MAX_ORPHANS}", fix="lakehouse-backfill maintain")
    return text


_NOT_IN_FILE_NAMES = re.compile(r"[^\w.-]")


def add_product(wiring: Adapters, table: str, owner: str) -> proof.ProductDraft:
    """Draft a contract file from a table's metadata, with a tested key and a first suite.

    A suite file that is there already is named, and left as it is.

    Raises NotFound, Unsupported for a table that no run can restate, ConfigError when the file is
    there.
    """
    with suppress(ValueError):
        table = names.normal_table_text(table)
    info = wiring.context.tables.describe(table) if names.is_table_text(table) else None
    if info is None:
        raise missing_table_error(wiring.catalog, table)
    _require_known_columns(info)
    product = _free_product(wiring, table)
    key = find_key(wiring.catalog, info)
    required = [column.name for column in info.columns if column.required]
    suite, name = draft_suite(product, key, required), f"expectations/{product}.json"
    draft = draft_contract(info, key, owner, product=product, suites=[name] if suite else [])
    path = wiring.folder / CONTRACTS_FOLDER / f"{product}.yaml"
    write_new_file(path, draft.text)
    if suite and not (wiring.folder / name).exists():
        write_new_file(wiring.folder / name, suite)
    return proof.ProductDraft(
        file=str(path),
        suite=str(wiring.folder / name) if suite else None,
        key=tuple(key),
        questions=tuple(draft.questions),
    )


def _free_product(wiring: Adapters, table: str) -> str:
    """Return the name of a table's product, which names files: plain, and free or its own."""
    plain = names.plain_table_text(table)
    if plain == table:
        return plain
    known = {one.product: one.table for one in wiring.valid_contracts()}
    numbered = chain((plain,), (f"{plain}_{number}" for number in count(2)))
    return next(name for name in numbered if known.get(name, table) == table)


def add_manifest(
    wiring: Adapters,
    product: str,
    extent: tuple[str, str] | None,
    reason: str,
    reason_code: str,
    requested_by: str,
    *,
    columns: Sequence[str] = (),
) -> proof.ManifestDraft:
    """Draft a run manifest file for the half-open `extent` of a product's partitions.

    None: for the whole table. With `columns` only these are restated.

    Raises NotFound without a contract, ConfigError when the range is wrong or the file is there.
    """
    contract, job = wiring.contract(product), product.rpartition(".")[2]
    _check_extent(contract, extent)
    found = newest_transform(wiring.folder, job)
    draft = draft_manifest(
        contract, extent, reason, reason_code, requested_by, transform=found, columns=columns
    )
    name = "restate-whole-table"
    if extent is not None:
        name = _NOT_IN_FILE_NAMES.sub("_", "restate-{}-{}".format(*extent))
    path = wiring.folder / "jobs" / job / f"{name}.yaml"
    write_new_file(path, draft.text)
    return proof.ManifestDraft(file=str(path), questions=tuple(draft.questions))


#: Types that Spark, which computes, does not read from Iceberg tables.
_UNREAD_TYPES = re.compile(
    r"(?:^|optional |required |<|, )"
    r"(time|timestamp(?:tz)?_ns|geometry|geography|unknown)(?=$|[>,(])"
)


def _require_known_columns(info: TableInfo) -> None:
    """Raise Unsupported for columns that no run could read, compute or compare."""
    columns = [column.name for column in info.columns]
    for name, problem in (*names.unusable_columns(columns), *stored_twins(columns)):
        raise Unsupported(
            f"{info.table} cannot be restated: column {name!r} {problem}",
            state="nothing was written",
            fix="rename the column: ALTER TABLE ... RENAME COLUMN",
        )
    for column in info.columns:
        if unread := _UNREAD_TYPES.search(column.type):
            raise Unsupported(
                f"{info.table} cannot be restated: {column.name} is of type {unread[1]}, which "
                "Spark does not read from Iceberg tables",
                state="nothing was written",
                fix="keep such columns in a table of their own, or in another type",
            )


def whole_range(first: str | None, stop: str | None) -> tuple[str, str] | None:
    """Return both ends of a range, None without any; raise ConfigError for one alone."""
    if first is not None and stop is not None:
        return first, stop
    if first is None and stop is None:
        return None
    given, missing = ("from", "to") if stop is None else ("to", "from")
    raise ConfigError(
        f"--{given} is given without --{missing}",
        state="nothing was written",
        fix="give both; or neither, to restate the whole table",
    )


def _check_extent(contract: Contract, extent: tuple[str, str] | None) -> None:
    """Raise ConfigError for a range that is wrong, or that only one of run and product has."""
    if extent is None:
        if contract.partitioning:
            raise ConfigError(
                f"{contract.product} has partitions, and none of them is named",
                state="nothing was written",
                fix="give --from and --to; to restate all of it, draft a range, and write "
                "target.partitions: {whole_table: true} in its place",
            )
        return
    if not contract.partitioning:
        raise ConfigError(
            f"{contract.product} has no partitions, so no range of them",
            state="nothing was written",
            fix="leave --from and --to out: the run restates the whole table",
        )
    scoped = choose_scope_field(contract)
    if width_of(scoped.transform) is None:
        check_range(contract.partition_type(scoped), *extent)


def add_repairs(
    wiring: Adapters, found: tuple[ProductStatus, ...], requested_by: str
) -> dict[str, str]:
    """Write a run manifest for each product with partitions to repair; give the files by product.

    An earlier draft stays: the new one gets a number behind its name.
    """
    written = {}
    for one in found:
        if not one.to_repair or one.repair_of is None:
            continue
        text = draft_repair(one, one.repair_of, requested_by, wiring.contract(one.product))
        labels = [each.partition for each in one.to_repair]
        name = _NOT_IN_FILE_NAMES.sub("_", f"repair-{labels[0]}-{len(labels)}-partitions")
        folder = f"jobs/{one.product.rpartition('.')[2]}"
        names = chain((name,), (f"{name}-{number}" for number in count(2)))
        file = next(
            file
            for each in names
            if not os.path.lexists(wiring.folder / (file := f"{folder}/{each}.yaml"))
        )
        write_new_file(wiring.folder / file, text)
        written[one.product] = file
    return written
