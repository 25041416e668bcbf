"""Which schema changes a run may declare: what cannot be published with its rows is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunManifest, unplannable
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.tables.schema_change import (
    SchemaChange,
    SchemaStep,
    added_column_names,
    normalise_type,
    renamed_columns,
)
from lakehouse_backfill.domain.tables.table import Column, TableInfo
from lakehouse_backfill.errors import ConfigError

#: Field, whether what it says does not fit, the problem with it, and what to do instead.
UnfitRule = tuple[str, Callable[[RunManifest], bool], str, str]
SCHEMA_CHANGE_FIELD = "target.schema_change"
#: Publish modes in which the shadow's columns become the target's by the same commit.
SCHEMA_CHANGE_MODES = ("replace_partitions", "append")
#: Files without column ids are read by it; it would have to be changed with the names.
NAME_MAPPING_PROPERTY = "schema.name-mapping.default"
_SIMPLE = re.compile(
    r"boolean|int|long|float|double|string|date|time|timestamp|timestamptz|uuid|binary"
    r"|fixed\[[1-9]\d{0,8}\]|decimal\(([1-9]|[12]\d|3[0-8]),([12]?\d|3[0-8])\)"
)
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def require_possible_schema_change(
    manifest: RunManifest, contract: Contract, base: TableInfo | None
) -> None:
    """Refuse what cannot be published with the rows; raises ConfigError, Unsupported."""
    change = manifest.target.schema_change
    if not change:
        return
    require_fit(SCHEMA_CHANGE_FIELD, _UNFIT, manifest)
    if base is None:
        raise ConfigError(
            f"{contract.table} does not exist: it is created with the contract's columns",
            state=NOTHING_PLANNED,
            fix=f"remove {SCHEMA_CHANGE_FIELD}, and name the columns in the contract",
            field=SCHEMA_CHANGE_FIELD,
        )
    if NAME_MAPPING_PROPERTY in base.properties:
        raise unplannable(
            f"{base.table} reads files by the names in {NAME_MAPPING_PROPERTY}, which a change "
            "of columns "
            "would have to change too",
            fix="change the columns on the table itself before the run, and plan again",
            field=SCHEMA_CHANGE_FIELD,
        )
    for number, step in enumerate(change):
        problem, fix = _step_fault(step, change, contract, base)
        if problem:
            raise ConfigError(
                problem, state=NOTHING_PLANNED, fix=fix, field=f"{SCHEMA_CHANGE_FIELD}[{number}]"
            )


def require_no_row_rewrite(manifest: RunManifest, target: str, way: str) -> None:
    """Refuse a change where rows are written anew: such a commit carries no columns."""
    if manifest.target.schema_change and way == "rewrite":
        raise unplannable(
            f"{target} is written by way `{way}`, whose commits carry no change of columns",
            fix="run with a Spark of its own (remove spark.remote), or change the columns on the "
            f"table itself before the run and remove {SCHEMA_CHANGE_FIELD}",
            field=SCHEMA_CHANGE_FIELD,
        )


def require_fit(what: str, rules: Iterable[UnfitRule], manifest: RunManifest) -> None:
    """Raise Unsupported, by field, for the first rule that the manifest's use of `what` breaks."""
    for field, is_unfit, problem, instead in rules:
        if is_unfit(manifest):
            raise unplannable(
                f"{what} does not fit {field}: {problem.format(mode=manifest.target.publish_mode)}",
                fix=f"{instead}, or remove {what}",
                field=field,
            )


_UNFIT: tuple[UnfitRule, ...] = (
    (
        "target.publish_mode",
        lambda manifest: manifest.target.publish_mode not in SCHEMA_CHANGE_MODES,
        "the columns of the target do not change with {mode}",
        f"use {' or '.join(SCHEMA_CHANGE_MODES)}",
    ),
    (
        "target.row_predicate",
        lambda manifest: bool(manifest.target.row_predicate),
        "rows that are carried over were written under the columns of before",
        "write whole partitions",
    ),
    (
        "target.progressive",
        lambda manifest: manifest.target.progressive is not None,
        "its first step would change the columns of all partitions",
        "remove it",
    ),
    (
        "target.dual_read",
        lambda manifest: manifest.target.dual_read is not None,
        "readers compare rows of equal columns",
        "remove it",
    ),
    (
        "safety.on_conflict",
        lambda manifest: manifest.safety.on_conflict == "catch_up",
        "it takes chunks over from a shadow whose columns were changed already",
        "write fail, and revise the run after a conflict",
    ),
    (
        "transform.writer",
        lambda manifest: manifest.transform.writer == "external",
        "another engine writes the shadow, and knows nothing of its new columns",
        "write job",
    ),
)


def _step_fault(
    step: SchemaStep, change: SchemaChange, contract: Contract, base: TableInfo
) -> tuple[str, str]:
    """Describe what is wrong with a step and what to write; both empty: nothing."""
    verbs = [name for name in ("add", "widen", "rename") if getattr(step, name) is not None]
    if len(verbs) != 1:
        return "a step is exactly one of add, widen, rename", "write one step for each change"
    name = str(getattr(step, verbs[0]))
    if [getattr(other, verbs[0]) for other in change].count(name) > 1:
        return f"{name} stands twice under {verbs[0]}", "write one of the two"
    if name in LINEAGE_NAMES:
        return f"{name} is a lineage column", "remove the step: lineage columns stay as they are"
    if verbs[0] == "add":
        return _wrong_add(step, name, base)
    if step.type is not None or step.doc is not None:
        return f"{verbs[0]} takes no type and no doc", "write `to`"
    column = base.column(name)
    if column is None:
        known = ", ".join(each.name for each in base.columns)
        return f"{base.table} has no column {name}", f"use one of its columns: {known}"
    return _wrong_change(step, column, change, contract, base)


def _wrong_change(
    step: SchemaStep, column: Column, change: SchemaChange, contract: Contract, base: TableInfo
) -> tuple[str, str]:
    if _SIMPLE.fullmatch(normalise_type(column.type)) is None:
        return f"{column.name} is {column.type}", "choose a column of a simple type"
    bound = _column_dependency(column.name, contract, base)
    if bound:
        fix = "choose another column, or change this one on the table itself"
        return f"{column.name} is {bound}, which must stay as it is", fix
    if step.widen is not None:
        return _wrong_type(step, column)
    return _wrong_name(step, change, contract, base)


def _wrong_add(step: SchemaStep, name: str, base: TableInfo) -> tuple[str, str]:
    if step.to is not None or step.type is None:
        return f"add {name} needs `type`, and no `to`", "write e.g. {add: NAME, type: long}"
    if _is_taken(name, base):
        return f"{base.table} has a column {name} already", "remove the step, or use another name"
    if _SIMPLE.fullmatch(normalise_type(step.type)) is None:
        return (
            f"{step.type} is no simple Iceberg type",
            "write e.g. long, string, date, timestamptz, decimal(10, 2)",
        )
    return "", ""


def _wrong_type(step: SchemaStep, column: Column) -> tuple[str, str]:
    if step.to is not None and _is_wider(normalise_type(column.type), normalise_type(step.to)):
        return "", ""
    return (
        f"{column.name} is {column.type} and cannot become {step.to}",
        "write a wider type: int to long, float to double, or more digits of a decimal of the "
        "same scale; for any other, add a column and fill it",
    )


def _wrong_name(
    step: SchemaStep, change: SchemaChange, contract: Contract, base: TableInfo
) -> tuple[str, str]:
    old, new = str(step.rename), step.to or ""
    if _NAME.fullmatch(new) is None or new in LINEAGE_NAMES:
        return f"{new or 'nothing'} is no name for a column", "write letters, digits and _"
    others = [
        *added_column_names(change),
        *(to for was, to in renamed_columns(change).items() if was != old),
    ]
    if _is_taken(new, base) or new.lower() in (other.lower() for other in others):
        return f"{new} is the name of another column", "use a name that is free"
    read = {each.name: (each.sum, each.count, each.counts_by) for each in contract.measures}
    users = [name for name, columns in read.items() if old in columns]
    if users:
        return f"measure {users[0]} of the contract counts {old}", f"correct it to {new} there"
    return "", ""


def _is_taken(name: str, base: TableInfo) -> bool:
    # Spark takes two names for one that differ in case only.
    return name.lower() in (column.name.lower() for column in base.columns)


def _column_dependency(name: str, contract: Contract, base: TableInfo) -> str:
    """Describe what rests on a column's name and type; empty: nothing."""
    if name in contract.key:
        return "a column of the key"
    sources = {part.root for part in contract.partitioning}
    if name in sources | {part.root for part in base.partitioning}:
        return "the source of a partition field"
    if any(name in tombstone.columns for tombstone in contract.tombstones):
        return "a column that tombstones name"
    return ""


def _is_wider(old_type: str, new_type: str) -> bool:
    old, new = normalise_type(old_type), normalise_type(new_type)
    if (old, new) in (("int", "long"), ("float", "double")):
        return True
    one, other = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if one is None or other is None or _SIMPLE.fullmatch(new) is None:
        return False
    return one[2] == other[2] and int(one[1]) < int(other[1])
