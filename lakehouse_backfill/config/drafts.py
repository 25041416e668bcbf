"""Drafts of contracts and run manifests: YAML that loads, with comments and open questions.

A draft is made to be edited. What metadata tells is filled in; what only a person knows is set to
the careful value and asked as a question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple

from lakehouse_backfill.config.manifests import shift_day
from lakehouse_backfill.config.project_files import FoundTransform
from lakehouse_backfill.domain.contract import Contract, ContractPartition
from lakehouse_backfill.domain.manifest import Source
from lakehouse_backfill.domain.table import Column, TableInfo

_NUMBERS = ("int", "long", "float", "double", "decimal")
_TIMES = ("date", "timestamp", "timestamptz")
_UNQUOTED_VALUE = re.compile(
    r"-?(0|[1-9]\d*)|\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}(Z|[-+]\d{2}:\d{2})?)?", re.ASCII
)
_UNIT_DAYS = {"month": 31, "year": 366}


class Draft(NamedTuple):
    """YAML text, and what a person has to answer before it is more than a draft."""

    text: str
    questions: tuple[str, ...]


def draft_contract(
    info: TableInfo,
    key: tuple[str, ...],
    owner: str,
    *,
    tested: Sequence[tuple[tuple[str, ...], int]] = (),
    suites: Sequence[str] = (),
) -> Draft:
    """Draft the contract of an existing table. The text loads with `load_contract`.

    Args:
        info: the table's metadata.
        key: columns that identify every row today; empty when none were found.
        owner: who owns the product, as far as is known.
        tested: candidates and how many rows repeat them, for the reader of the draft.
        suites: suite files to name.
    """
    rest = [column for column in info.columns if column.name not in key]
    measures = [column.name for column in rest if _is_additive(column)]
    lines = [
        "# yaml-language-server: $schema=../../schemas/contract.json",
        f"# Drafted from the metadata of {info.table}. Read every line before you rely on it.",
        "api_version: lakehouse-backfill/v1",
        f"product: {info.table}",
        f"table: {info.table}",
        f"description: {_yaml_text(_description_of(info))}",
        f"owner: {_yaml_text(owner)}",
        "publication: follow # follow: readers read the table; pinned: they resolve the pointer",
        *_key_lines(key, tested),
        "partitioning: # the partitions that a run may restate",
        *(f"  - {{column: {item.column}, transform: {_yaml_text(item.transform)}}}"
          for item in info.partitioning),
        "columns: # what consumers may rely on",
        *_column_lines(info),
        *_measure_lines(measures[:3]),
        *_suite_lines(suites),
        "# No run is approved before these three are answered; `consumers: []` says: nobody.",
        "# consumers:",
        "#   - {name: finance, contact: a@example.com, tolerates_restatement: true}",
        "# classification: internal # public, internal, confidential or restricted",
        "# retention_days: 3650 # how long a row may be kept; or unlimited",
        "roles: {} # approve, accept, publish, waive: lists of people; empty means everybody",
    ]  # fmt: skip
    return Draft("\n".join(lines) + "\n", tuple(_contract_questions(info, key, tested)))


def draft_manifest(
    contract: Contract,
    from_: str,
    to: str,
    reason: str,
    reason_code: str,
    requested_by: str,
    *,
    transform: FoundTransform | None = None,
    sources: Mapping[str, Source] | None = None,
) -> Draft:
    """Draft a run manifest for a half-open range of a product's partitions.

    The text loads with `load_manifest` once the transform's file is there.

    Args:
        contract: the product's contract.
        from_: first partition, as people write it.
        to: first partition that is not restated.
        reason: why, in a sentence.
        reason_code: one of the manifest's reason codes.
        requested_by: who asks for it.
        transform: the transform to run, if one was found in the project.
        sources: inputs of an earlier run manifest of the product, to take tables from.
    """
    job = contract.product.rpartition(".")[2]
    scoped = choose_scope_field(contract)
    found = transform or FoundTransform(job, "1.0.0", (), f"jobs/{job}/transform.py")
    inputs = found.inputs or tuple(sources or ()) or ("source",)
    known, window = dict(sources or {}), _widen_window(scoped, from_, to)
    lines = [
        *_intent_lines(contract, reason, reason_code, requested_by),
        *_job_lines(found),
        "sources:",
        *(line for name in inputs for line in _source_lines(name, known.get(name), window)),
        *_target_lines(contract, scoped, from_, to),
    ]
    questions = tuple(_manifest_questions(contract, transform, inputs, known, scoped))
    return Draft("\n".join(lines) + "\n", questions)


def _intent_lines(
    contract: Contract, reason: str, reason_code: str, requested_by: str
) -> Iterator[str]:
    yield "# yaml-language-server: $schema=../../schemas/manifest.json"
    yield "# What is to be restated, and why. Next: lakehouse-backfill plan THIS_FILE"
    yield "api_version: lakehouse-backfill/v1"
    yield "run:"
    yield "  kind: restatement"
    yield f"  requested_by: {_yaml_text(requested_by)}"
    yield f"  reason: {_yaml_text(reason)}"
    yield f"  reason_code: {_yaml_text(reason_code)}"
    yield f"product: {contract.product}"


def _job_lines(found: FoundTransform) -> Iterator[str]:
    yield "transform:"
    yield f"  name: {found.name}"
    yield f"  version: {found.version}"
    yield f"  file: {_yaml_text(found.file)}"


def _target_lines(
    contract: Contract, scoped: ContractPartition, from_: str, to: str
) -> Iterator[str]:
    yield "target:"
    yield "  publish_mode: replace_partitions"
    yield from _scope_lines(contract, scoped, from_, to)
    yield "safety:"
    yield "  manual_publish: true # `run` stops before publication"
    yield "validation:"
    yield "  edge_partitions: 2 # partitions compared beyond each end of the range"


def choose_scope_field(contract: Contract) -> ContractPartition:
    """Choose the partition field by which a run is bounded: one of time if there is one."""
    types = {column.name: column.type for column in contract.columns}
    timed = [item for item in contract.partitioning if types.get(item.column) in _TIMES]
    return (timed or list(contract.partitioning))[0]


def _yaml_text(value: str) -> str:
    """Write text so that YAML reads exactly it: JSON's quotes are YAML's."""
    return json.dumps(value, ensure_ascii=False)


def _is_additive(column: Column) -> bool:
    """Numbers add up, but not those that name something."""
    is_name = column.name == "id" or column.name.endswith(("_id", "Id", "_key"))
    return column.type.split("(")[0] in _NUMBERS and not is_name


def _description_of(info: TableInfo) -> str:
    return info.properties.get("comment") or f"(say here what one row of {info.table} means)"


def _key_lines(
    key: tuple[str, ...], tested: Sequence[tuple[tuple[str, ...], int]]
) -> Iterator[str]:
    for columns, duplicates in tested:
        verdict = "holds" if duplicates == 0 else f"{duplicates} rows repeat it"
        yield f"# tested: ({', '.join(columns)}) {verdict}"
    why = "" if key else " # empty: rows are compared as a multiset, changed rows are not matched"
    yield f"key: [{', '.join(key)}]{why}"


def _column_lines(info: TableInfo) -> Iterator[str]:
    for column in info.columns:
        parts = [f"name: {column.name}", f"type: {_yaml_text(column.type)}"]
        if column.required:
            parts.append("required: true")
        if column.doc:
            parts.append(f"description: {_yaml_text(column.doc)}")
        yield f"  - {{{', '.join(parts)}}}"


def _measure_lines(names: list[str]) -> Iterator[str]:
    if not names:
        yield "measures: []"
        return
    yield "measures: # additive totals that show whether a restatement is plausible"
    for name in names:
        yield f"  - {{name: total_{name}, sum: {name}}}"


def _suite_lines(files: Sequence[str]) -> Iterator[str]:
    yield "suites:" if files else "suites: [] # - {file: expectations/<product>.json}"
    for file in files:
        yield f"  - {{file: {_yaml_text(file)}}}"


def _contract_questions(
    info: TableInfo, key: tuple[str, ...], tested: Sequence[tuple[tuple[str, ...], int]]
) -> Iterator[str]:
    yield "description: what does one row mean?"
    yield "owner: who decides about restatements of it?"
    if key:
        yield f"key: ({', '.join(key)}) identifies every row today; is that a rule or luck?"
    elif tested:
        yield "key: no tested candidate holds; which columns identify a row?"
    else:
        yield "key: which columns identify a row?"
    yield "consumers: who reads it, and may history change under them? [] says: nobody"
    yield "classification: public, internal, confidential or restricted?"
    yield "retention_days: how long may a row be kept, or is it unlimited?"
    yield "publication: do live jobs write to the table (follow), or only runs (pinned)?"
    if not info.partitioning:
        yield "partitioning: the table has none, so there is nothing to restate by"


def _source_lines(name: str, known: Source | None, window: tuple[str, str]) -> Iterator[str]:
    first, stop = window
    yield f"  {name}:"
    yield f"    table: {known.table if known else f'bronze.{name}'}"
    yield "    range: # rows that may be read at most: the partitions, their edges, and warm-up"
    yield f"      column: {known.range.column if known else 'event_time'}"
    yield f"      from: {first}"
    yield f"      to: {stop}"
    yield f"    warm_up_days: {known.warm_up_days if known else 0}"
    yield f"    cool_down_days: {known.cool_down_days if known else 0}"


def _widen_window(scoped: ContractPartition, from_: str, to: str) -> tuple[str, str]:
    """Widen by three partitions: two edge partitions are computed too, and days begin elsewhere."""
    first, stop = _parse_day(from_), _parse_day(to)
    if first is None or stop is None:
        return ("1970-01-01", "1970-01-02")
    margin = timedelta(days=3 * _UNIT_DAYS.get(scoped.transform, 1))
    return shift_day(first, -margin).isoformat(), shift_day(stop, margin).isoformat()


def _parse_day(text: str) -> date | None:
    padded = text + {4: "-01-01", 7: "-01"}.get(len(text), "")
    try:
        return datetime.fromisoformat(padded.replace("Z", "+00:00")).date()
    except ValueError:
        return None


def _scope_lines(
    contract: Contract, scoped: ContractPartition, from_: str, to: str
) -> Iterator[str]:
    yield "  partitions: # half-open: `to` is the first partition that is not restated"
    yield f"    column: {scoped.column}"
    types = {column.name: column.type for column in contract.columns}
    if types.get(scoped.column) == "string" or scoped.transform.startswith(("bucket", "truncate")):
        # Without an order there is nothing between the two, and `to` is what stays as it is.
        yield f"    values: [{_yaml_text(from_)}] # text has no order: name each partition"
        return
    yield f"    from: {_yaml_scalar(from_)}"
    yield f"    to: {_yaml_scalar(to)}"


def _yaml_scalar(text: str) -> str:
    """Leave a number, day or instant unquoted, and quote everything else."""
    is_known = text.lstrip("-").isdigit() or _parse_day(text) is not None
    return text if is_known and _UNQUOTED_VALUE.fullmatch(text) else _yaml_text(text)


def _manifest_questions(
    contract: Contract,
    transform: FoundTransform | None,
    inputs: tuple[str, ...],
    known: Mapping[str, Source],
    scoped: ContractPartition,
) -> Iterator[str]:
    if transform is None:
        yield f"transform: none was found for {contract.product}; write it, and set its version"
    for name in inputs:
        if name not in known:
            yield f"sources.{name}: which table is it, and which column cuts it by time?"
    if any(name not in known for name in inputs):
        yield "sources: is one of them reference data? Then move it to reference_data"
    yield "sources: does a row need input from before its partition? Then set warm_up_days"
    if not contract.key:
        yield "the contract has no key: changed rows will show as removed and added"
    if scoped.transform.startswith(("bucket", "truncate")):
        yield f"target: {scoped.transform} partitions cannot be named by a range"
