"""Drafts of contracts, run manifests and suites: files that load, with open questions.

A draft is made to be edited. What metadata tells is filled in; what only a person knows is set to
the careful value and asked as a question. The texts are templates in `project_template/`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from lakehouse_backfill.config.project_files import FoundTransform
from lakehouse_backfill.core.planning.inputs.read_windows import needed_window, stop_date
from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.core.planning.scope.whole_grain import widening_note
from lakehouse_backfill.domain.contract import Contract, ContractPartition
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.labels.grains import contract_grain, whole_grains
from lakehouse_backfill.domain.labels.instants import parse_time_label
from lakehouse_backfill.domain.labels.values import fits, is_bucket, width_of
from lakehouse_backfill.domain.partitions import (
    NULL_LABEL,
    Scope,
    ScopeField,
    partition_label,
    shift_label,
)
from lakehouse_backfill.domain.tables.table import Column, PartitionField, TableInfo

if TYPE_CHECKING:
    from lakehouse_backfill.core.evidence.staleness import ProductStatus
    from lakehouse_backfill.domain.plan import Plan

_NUMBERS = ("int", "long", "float", "double", "decimal")
_TIMES = ("date", "timestamp", "timestamptz")
_UNQUOTED_VALUE = re.compile(
    r"-?(0|[1-9]\d*)|\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}(Z|[-+]\d{2}:\d{2})?)?", re.ASCII
)
_UNIT_DAYS = {"month": 31, "year": 366}
_MAX_MEASURES = 3


class Draft(NamedTuple):
    """YAML text, and what a person has to answer before it is more than a draft."""

    text: str
    questions: tuple[str, ...]


def draft_contract(
    info: TableInfo,
    key: tuple[str, ...],
    owner: str,
    *,
    product: str = "",
    suites: Sequence[str] = (),
) -> Draft:
    """Draft the contract of an existing table. The text loads with `load_contract`.

    Args:
        info: the table's metadata.
        key: columns that identify every row today; empty when none were found.
        owner: who owns the product, as far as is known.
        product: its name, where the table's name needs quoting.
        suites: suite files to name.
    """
    measures = [
        column.name for column in info.columns if column.name not in key and _is_additive(column)
    ]
    text = _render(
        "contract.yaml.j2", info=info, partitioning=restatable_fields(info), key=key,
        owner=owner, suites=suites, product=product or info.table,
        measures=list(_named_totals(measures[:_MAX_MEASURES])),
        description=info.properties.get("comment")
        or f"(say here what one row of {info.table} means)",
    )  # fmt: skip
    return Draft(text, tuple(_contract_questions(info, key)))


def draft_manifest(
    contract: Contract,
    extent: tuple[str, str] | None,
    reason: str,
    reason_code: str,
    requested_by: str,
    *,
    transform: FoundTransform | None = None,
    columns: Sequence[str] = (),
) -> Draft:
    """Draft a run manifest for a half-open range of partitions, or for the whole table.

    The text loads with `load_manifest` once the transform's file is there.

    Args:
        contract: the product's contract.
        extent: first partition, as people write it, and the first that is not restated; None for
            the whole table.
        reason: why, in a sentence.
        reason_code: one of the manifest's reason codes.
        requested_by: who asks for it.
        transform: the transform to run, if one was found in the project.
        columns: the only columns to restate; all of them if empty.
    """
    job = contract.product.rpartition(".")[2]
    scoped = choose_scope_field(contract) if extent else None
    first, stop = extent or ("", "")
    found = transform or FoundTransform(job, "1.0.0", (), f"jobs/{job}/transform.py")
    inputs = found.inputs or ("source",)
    kind = contract.partition_type(scoped) if scoped else ""
    text = _render(
        "manifest.yaml.j2", contract=contract, requested_by=requested_by, reason=reason,
        reason_code=reason_code, transform=found, inputs=inputs, scoped=scoped,
        window=_widen_window(scoped, first, stop), is_ordered=_is_ordered(scoped, kind),
        first=first, stop=stop, last=_last_in_words(scoped, kind, stop) if scoped else "",
        columns=columns,
    )  # fmt: skip
    return Draft(text, tuple(_manifest_questions(contract, transform, inputs, scoped)))


#: What a person decided under `safety` for the partitions of one run.
_RUN_WAIVERS = (
    "retention_exception", "incomplete_input", "restricted_flows", "allow_nondeterminism",
)  # fmt: skip


def draft_repair(
    found: ProductStatus, made: Plan, requested_by: str, contract: Contract | None = None
) -> str:
    """Draft the run manifest that restates exactly the partitions of a product to repair.

    Where the contract, by default that of the run, declares a grain: whole grains.

    It is the manifest of the newest run, on the inputs of now. What belongs to that run's own
    partitions (golden rows, spot checks, schema change, deadline, waivers of rules) is left out.
    """
    manifest = made.resolved.manifest
    scope, widened = _scope_to_repair(found, made, contract or made.resolved.contract)
    data = manifest.model_dump(
        mode="python", by_alias=True, exclude_defaults=True, exclude_none=True
    )
    kinds = Counter(cause.kind for one in found.to_repair for cause in one.causes)
    causes = ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
    data["run"] = {
        "kind": "backfill" if set(kinds) == {"missing"} else "restatement",
        "requested_by": requested_by,
        **({"purpose": manifest.run.purpose} if manifest.run.purpose else {}),
        "reason": f"Found by stale: {causes}.",
        "reason_code": "bug_fix" if set(kinds) == {"newer code"} else "late_data",
    }
    data["transform"]["version"] = found.code
    edges = resolve.all_labels(resolve.edge_labels(scope, resolve.computed_edges(manifest)))
    wanted = scope.model_copy(update={"partitions": (*scope.partitions, *edges)})
    for pin in made.resolved.sources:
        if pin.range is None:
            continue
        source = data["sources"][pin.name]
        window = needed_window(pin, wanted)
        if window is not None:
            source["range"] |= {"from": window[0].date(), "to": stop_date(window[1])}
    data["target"].pop("schema_change", None)
    data["target"]["partitions"] = _partitions_of(scope)
    data.pop("previous_code", None)
    for name in ("golden", "spot_checks"):
        data.get("validation", {}).pop(name, None)
    head = (
        "# Drafted by lakehouse-backfill stale --draft. Next: lakehouse-backfill plan THIS_FILE\n"
        f"# The last partition: {resolve.describe_in_words(scope)}.\n{widened}"
    )
    waivers = [name for name in _RUN_WAIVERS if data.get("safety", {}).pop(name, None)]
    if waivers:
        head += (
            f"# Left out: safety.{', safety.'.join(waivers)} of {made.run_id}, which were decided "
            "for its partitions.\n"
        )
    return head + yaml.safe_dump(_plain(data), sort_keys=False, allow_unicode=True)


def _scope_to_repair(found: ProductStatus, made: Plan, contract: Contract) -> tuple[Scope, str]:
    """Return the partitions to repair in whole grains, and the comment that says so."""
    field = made.resolved.scope.field
    stale = tuple(one.partition for one in found.to_repair)
    grain = contract_grain(contract, field)
    scope = Scope(field=field, partitions=whole_grains(field, grain, stale) if grain else stale)
    widened = widening_note(contract, field, stale, scope.partitions)
    return scope, f"# The partitions are {widened}.\n" if widened else ""


def _partitions_of(scope: Scope) -> dict[str, Any]:
    """Return the scope as a manifest says it: a range where it has no gap, else a list."""
    field, labels = scope.field, scope.partitions
    if field.is_whole_table:
        return {"whole_table": True}
    following = [shift_label(field, label, 1) for label in labels]
    if len(labels) > 1 and following[:-1] == list(labels[1:]) and following[-1] is not None:
        first, stop = _label_value(field, labels[0]), _label_value(field, following[-1])
        return {"column": field.column, "from": first, "to": stop}
    return {"column": field.column, "values": [_label_value(field, label) for label in labels]}


def _label_value(field: ScopeField, label: str) -> Any:
    """Return the value of a manifest that names the partition."""
    if label == NULL_LABEL:
        return None
    if field.is_number or is_bucket(field.transform):
        return int(label)
    if field.type == "string":
        return label.removeprefix("=")
    is_day = re.fullmatch(r"\d{4}-\d{2}-\d{2}", label)
    return date.fromisoformat(label) if is_day else label


def _plain(value: Any) -> Any:
    """Return what YAML's safe types hold: lists for tuples."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def draft_suite(name: str, key: Sequence[str], required: Sequence[str]) -> str:
    """Return the text of a suite file that follows from a table's metadata, or an empty text.

    The key is unique and filled, and so is each required column. docs/expectations.md has entries
    for rules that metadata does not tell.
    """
    entries: list[dict[str, object]] = []
    if len(key) == 1:
        entries.append(_suite_entry("expect_column_values_to_be_unique", column=key[0]))
    elif key:
        entries.append(_suite_entry("expect_compound_columns_to_be_unique", column_list=[*key]))
    entries += [
        _suite_entry("expect_column_values_to_not_be_null", column=column)
        for column in dict.fromkeys([*key, *required])
    ]
    if not entries:
        return ""
    return json.dumps({"name": name, "expectations": entries}, indent=2) + "\n"


def _suite_entry(kind: str, **kwargs: object) -> dict[str, object]:
    return {"type": kind, "kwargs": kwargs}


def choose_scope_field(contract: Contract) -> ContractPartition:
    """Choose the partition field by which a run is bounded: one of time if there is one.

    The contract must have one.
    """
    timed = [
        item
        for item in contract.partitioning
        if contract.partition_type(item) in _TIMES and not is_bucket(item.transform)
    ]
    usable = [x for x in contract.partitioning if fits(x.transform, contract.partition_type(x))]
    return (timed or usable or list(contract.partitioning))[0]


def restatable_fields(info: TableInfo) -> list[PartitionField]:
    """Return the partition fields by which a run can name partitions; the others are left out.

    These are fields of floats, UUIDs and times, and those that were dropped (`void`).
    """
    types = {column.name: column.type for column in info.columns}
    return [
        one
        for one in info.partitioning
        if fits(one.transform, one.type or types.get(one.column, ""))
    ]


def _render(template: str, **values: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("lakehouse_backfill.config", "project_template"),
        autoescape=False,  # noqa: S701 (YAML, in which `quoted` keeps any text as it is)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quoted": _yaml_text, "scalar": _yaml_scalar, "name": _yaml_name}
    return environment.get_template(template).render(values)


def _yaml_text(value: str) -> str:
    """Write text so that YAML reads exactly it: JSON's quotes are YAML's."""
    return json.dumps(value, ensure_ascii=False)


def _yaml_name(name: str) -> str:
    """Leave a name that YAML reads as itself, as it does not of `null` or `on`; quote others."""
    is_known = all(map(names.is_plain, name.split("."))) and yaml.safe_load(name) == name
    return name if is_known else _yaml_text(name)


def _named_totals(columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a name for the total of each column, and the column."""
    used: set[str] = set()
    for column in columns:
        name = names.plain_name(f"total_{column}")
        if name in used:
            name = names.unique_plain_name(f"total {column}")
        used.add(name)
        yield name, column


def _yaml_scalar(text: str) -> str:
    """Leave a number, day or instant unquoted, and quote everything else."""
    is_known = text.lstrip("-").isdigit() or _parse_day(text) is not None
    return text if is_known and _UNQUOTED_VALUE.fullmatch(text) else _yaml_text(text)


def _is_additive(column: Column) -> bool:
    """Numbers add up, but not those that name something."""
    is_name = column.name == "id" or column.name.endswith(("_id", "Id", "_key"))
    return column.type.split("(")[0] in _NUMBERS and not is_name


def _is_ordered(scoped: ContractPartition | None, kind: str) -> bool:
    """Return whether a range of values is a range of partitions."""
    if scoped is None or not fits(scoped.transform, kind):
        return False
    field = ScopeField(column=scoped.column, transform=scoped.transform, type=kind)
    return field.is_number or field.is_timed


def _widen_window(scoped: ContractPartition | None, from_: str, to: str) -> tuple[str, str]:
    """Widen by three partitions: two edge partitions are computed too, and days begin elsewhere."""
    first, stop = _parse_day(from_), _parse_day(to)
    if scoped is None or first is None or stop is None:
        return ("1970-01-01", "1970-01-02")
    margin = timedelta(days=3 * _UNIT_DAYS.get(scoped.transform, 1))
    return _shift_day(first, -margin).isoformat(), _shift_day(stop, margin).isoformat()


def _shift_day(day: date, by: timedelta) -> date:
    """Add a time span; the calendar ends with the years 1 and 9999."""
    try:
        return day + by
    except OverflowError:
        return date.min if by < timedelta() else date.max


def _last_in_words(scoped: ContractPartition, kind: str, stop: str) -> str:
    """Return the last partition of a range that ends at `stop`; empty where it has no order."""
    with suppress(ValueError):
        found = {"column": scoped.column, "transform": scoped.transform, "type": kind}
        field = ScopeField.model_validate(found)
        last = shift_label(field, partition_label(field, stop), -1)
        if last is not None:
            return resolve.describe_in_words(Scope(field=field, partitions=(last,)))
    return ""


def _parse_day(text: str) -> date | None:
    try:
        return parse_time_label(text).date()
    except ValueError:
        return None


def _contract_questions(info: TableInfo, key: tuple[str, ...]) -> Iterator[str]:
    yield "description: what does one row mean?"
    yield "owner: who decides about restatements of it?"
    if key:
        yield f"key: ({', '.join(key)}) identifies every row today; is that a rule or luck?"
    else:
        yield "key: which columns identify a row?"
    yield "consumers: who reads it, and may history change under them? [] says: nobody"
    yield "classification: public, internal, confidential or restricted?"
    yield "retention_days: how long may a row be kept, or is it unlimited?"
    yield "publication: do live jobs write to the table (follow), or only runs (pinned)?"
    if not info.partitioning:
        yield "partitioning: the table has none, so a run restates the whole table; is it small?"
    fields = [one.column for one in restatable_fields(info)]
    if len(fields) > 1:
        yield (
            f"partitioning: a run names partitions of one of {', '.join(fields)}, and rows by the "
            "others in target.row_predicate; is that fine enough?"
        )


def _manifest_questions(
    contract: Contract,
    transform: FoundTransform | None,
    inputs: tuple[str, ...],
    scoped: ContractPartition | None,
) -> Iterator[str]:
    if transform is None:
        yield f"transform: none was found for {contract.product}; write it, and set its version"
    for name in inputs:
        yield f"sources.{name}: which table is it, and which column cuts it by time?"
    yield "sources: is one of them reference data? Then move it to reference_data"
    yield "sources: does a row need input from before its partition? Then set warm_up_days"
    if not contract.key:
        yield "the contract has no key: changed rows will show as removed and added"
    if scoped and width_of(scoped.transform):
        yield f"target: {scoped.transform} partitions are named one by one, not by a range"
