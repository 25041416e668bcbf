"""Loading product contracts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.config import yaml_lines
from lakehouse_backfill.config.faults import (
    CONTRACTS_FOLDER,
    closest_name,
    display_path,
    load_model,
    path_faults,
    suggest_name,
)
from lakehouse_backfill.config.yaml_lines import FieldPath, YamlDocument, raise_faults
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.labels.grains import grain_fault
from lakehouse_backfill.domain.labels.values import GrainUnit
from lakehouse_backfill.domain.publication import STATUS_COLUMN, VERSION_COLUMN
from lakehouse_backfill.errors import ConfigError, Fault, NotFound

_TYPES = re.compile(
    r"boolean|int|long|float|double|date|time|timestamp|timestamptz|timestamp_ns|timestamptz_ns|"
    r"string|uuid|binary|unknown|variant|fixed\[\d+\]|decimal\(\d+,\s*\d+\)|(list|map|struct)<.+>"
)
_SQL_TYPES = {
    "bigint": "long",
    "integer": "int",
    "smallint": "int",
    "varchar": "string",
    "text": "string",
    "bool": "boolean",
    "real": "float",
    "timestamp with time zone": "timestamptz",
    "datetime": "timestamp",
    "decimal": "decimal(10, 2)",
}
_MEASURE_KINDS = ("sum", "count", "counts_by")
_NUMBERS = re.compile(r"int|long|float|double|decimal\(.*")
_TRANSFORMS = re.compile(r"identity|year|month|day|hour|void|(bucket|truncate)\[\d+\]")


def load_contract(path: Path, project: Path | None = None) -> Contract:
    """Load a contract; everything that is wrong is reported at once.

    `project` is the folder that its suite files are relative to; by default the one in which the
    contract lies as `catalog/contracts/<product>.yaml`.

    Raises:
        ConfigError: the contract is wrong.
    """
    folder = project or path.resolve().parent.parent.parent
    return load_model(Contract, path, folder, partial(_cross_field_faults, project=folder))


def find_contract(project: Path, product: str, listed: tuple[str, ...] | None = None) -> Contract:
    """Load the contract of a product from `catalog/contracts/<product>.yaml`.

    `listed` are the products that have a file, where they were listed before.

    Raises:
        NotFound: there is none; the known products are named.
        ConfigError: the contract is wrong, or is of another product.
    """
    known = list_contracts(project) if listed is None else listed
    # The name becomes part of a path, so it is checked before a path is made of it.
    if not names.is_product_name(product) or product not in known:
        draft, near = command_line("product", "add", product), closest_name(product, known)
        raise NotFound(
            f"product {product} has no contract in {CONTRACTS_FOLDER.as_posix()}; "
            f"{suggest_name(product, list(known))}",
            fix=f"the same command with {near}; or, for another table: {draft}" if near else draft,
        )
    path = project / CONTRACTS_FOLDER / f"{product}.yaml"
    contract = load_contract(path, project)
    if contract.product != product:
        file = display_path(path, project)
        document = yaml_lines.load_yaml(path, file)
        problem = f"is {contract.product}, but the file is called {product}.yaml"
        raise_faults(
            file, [document.fault(("product",), problem, "rename the file or the product")]
        )
    return contract


def load_contracts(project: Path) -> list[Contract]:
    """Load all contracts of a project; raises ConfigError for one that is wrong."""
    listed = list_contracts(project)
    return [find_contract(project, product, listed) for product in listed]


def list_valid_contracts(project: Path) -> list[Contract]:
    """Load the contracts that are valid."""
    found = []
    listed = list_contracts(project)
    for product in listed:
        with suppress(ConfigError):
            found.append(find_contract(project, product, listed))
    return found


def list_broken_contracts(project: Path) -> tuple[str, ...]:
    """Return the products whose contracts are wrong."""
    valid = {contract.product for contract in list_valid_contracts(project)}
    return tuple(product for product in list_contracts(project) if product not in valid)


def may_restrict_columns(project: Path) -> bool:
    """Return whether a contract restricts columns; of one that is wrong it is not known."""
    is_known = any(contract.restricted_columns for contract in list_valid_contracts(project))
    return is_known or bool(list_broken_contracts(project))


def find_contract_of_table(project: Path, *tables: str) -> Contract | None:
    """Return the contract of the first of these tables that has one.

    A shadow has that of its target. Raises ConfigError for a wrong contract that names one of the
    tables: what it restricts is not known.
    """
    listed = list_contracts(project)
    for product in listed:
        try:
            found = find_contract(project, product, listed)
        except ConfigError:
            path = project / CONTRACTS_FOLDER / f"{product}.yaml"
            text = path.read_text(encoding="utf-8", errors="replace")
            # YAML may write a name in backticks in other ways: such a contract may be meant.
            if any("`" in table or table in text for table in tables):
                raise
            continue
        if _is_of_tables(found, tables):
            return found
    return None


def _is_of_tables(contract: Contract, tables: Sequence[str]) -> bool:
    shadowed = {name.rpartition("__")[0].rpartition(".")[2] for name in tables} - {""}
    own = names.unique_plain_name(names.last_part(contract.table))
    return contract.table in tables or own in shadowed


def find_contracts_of_tables(
    project: Path, tables: Iterable[str], known: Mapping[str, Contract] | None = None
) -> dict[str, Contract]:
    """Return the contracts that tables have, by table; those of `known`, by product, or the files'.

    Raises as `find_contract_of_table`.
    """
    found = {}
    for table in tables:
        if known is None:
            contract = find_contract_of_table(project, table)
        else:
            candidates = (one for _, one in sorted(known.items()) if _is_of_tables(one, (table,)))
            contract = next(candidates, None)
        if contract is not None:
            found[table] = contract
    return found


def require_suites(project: Path, contract: Contract) -> None:
    """Raise ConfigError, with their lines, when suite files of a contract are not there.

    Only who wants to run them asks: a rollback needs no suite.
    """
    path = project / CONTRACTS_FOLDER / f"{contract.product}.yaml"
    if not (contract.suites or contract.assumptions) or not path.is_file():
        return
    document = yaml_lines.load_yaml(path, display_path(path, project))
    faults = [
        fault
        for item in (*_item_paths(document, "suites"), *_item_paths(document, "assumptions"))
        for fault in path_faults(document, (*item, "file"), project, must_exist=True)
    ]
    raise_faults(document.file, faults)


def list_contracts(project: Path) -> tuple[str, ...]:
    """Name the products that have a contract file, without reading the files."""
    folder = project / CONTRACTS_FOLDER
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def _cross_field_faults(document: YamlDocument, project: Path) -> Iterator[Fault]:
    columns = _column_types(document)
    yield from _column_faults(document)
    yield from _reference_faults(document, columns)
    yield from _measure_faults(document, columns)
    for group in ("thresholds", "source_totals"):
        for path in _item_paths(document, group):
            yield from _unknown_name_faults(
                document, (*path, "measure"), _item_names(document, "measures"), "measure"
            )
    yield from _source_total_faults(document)
    yield from _hook_faults(document)
    yield from _versions_table_faults(document)
    after = _item_paths(document, "after_publish", "suites")
    for path in (*_item_paths(document, "suites"), *_item_paths(document, "assumptions"), *after):
        yield from path_faults(document, (*path, "file"), project, must_exist=False)


def _versions_table_faults(document: YamlDocument) -> Iterator[Fault]:
    """A table of versions is one of its own, and its two columns are no columns of the product."""
    name = document.get("versions_table")
    if name is None:
        return
    path = ("versions_table",)
    if document.get("publication") != "pinned":
        problem = "is for a product that is pinned: rows of one that is followed have no versions"
        yield document.fault(path, problem, "write publication: pinned, or remove it")
    if name in (document.get("table"), document.get("view")):
        fix = f"name another one, e.g. {document.get('table')}_versions"
        yield document.fault(path, "is the product's own table or view", fix)
    for item in _item_paths(document, "columns"):
        column = document.get(*item, "name")
        if str(column).lower() in (VERSION_COLUMN, STATUS_COLUMN):
            problem = f"is called {column}, as a column of versions_table is"
            yield document.fault((*item, "name"), problem, "rename it, or remove versions_table")


def _source_total_faults(document: YamlDocument) -> Iterator[Fault]:
    """What is counted by value is compared with the same of a source, partition by partition."""
    items = [document.get(*path) for path in _item_paths(document, "measures")]
    counted = {item["name"]: item.get("counts_by") for item in items if _has_name(item)}
    for path in _item_paths(document, "source_totals"):
        total = document.get(*path)
        measure = total.get("measure") if isinstance(total, dict) else None
        if not isinstance(measure, str) or measure not in counted:
            continue
        by_value = counted[measure] is not None
        if by_value is not (total.get("counts_by") is not None):
            problem = "compares counts by value with a single total"
            yield document.fault(
                path, problem, "give `counts_by:` in the measure and here, or nowhere"
            )
        elif by_value and not total.get("partition"):
            fix = "add `partition:`, the column of the source that says the product's partition"
            yield document.fault(path, "compares counts by value without partitions", fix)
        elif by_value and total.get("sum"):
            yield document.fault(path, "has sum and counts_by", "give one of them")


def _hook_faults(document: YamlDocument) -> Iterator[Fault]:
    paths = _item_paths(document, "hooks")
    names = ((*path, "name") for path in paths)
    yield from _repeat_faults(document, names, "{} is there twice", "rename one")
    for path in paths:
        hook = document.get(*path)
        if not _has_name(hook):
            continue
        if bool(hook.get("command")) is bool(hook.get("webhook")):
            yield document.fault(
                path, f"hook {hook['name']} has neither, or both, of command and webhook",
                "write command: [PROGRAM, ARGUMENT] or webhook: https://…",
            )  # fmt: skip
        elif hook.get("webhook") and not _is_web_address(hook["webhook"]):
            yield document.fault(
                (*path, "webhook"), f"{hook['webhook']} is no http(s) address",
                "write https://…, without user and password: use token_env",
            )  # fmt: skip


def _is_web_address(text: Any) -> bool:
    if not isinstance(text, str):
        return True  # another check reports it
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username


def _item_paths(document: YamlDocument, *path: str | int) -> list[FieldPath]:
    found = document.get(*path)
    return [(*path, index) for index in range(len(found) if isinstance(found, list) else 0)]


def _item_names(document: YamlDocument, group: str) -> list[str]:
    found = [document.get(*path, "name") for path in _item_paths(document, group)]
    return [name for name in found if isinstance(name, str)]


def _column_types(document: YamlDocument) -> dict[str, Any]:
    items = [document.get(*path) for path in _item_paths(document, "columns")]
    return {item["name"]: item.get("type") for item in items if _has_name(item)}


def _has_name(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("name"), str)


def _column_faults(document: YamlDocument) -> Iterator[Fault]:
    paths = _item_paths(document, "columns")
    names = ((*path, "name") for path in paths)
    yield from _repeat_faults(document, names, "{} is listed twice", "remove one of them")
    for path in paths:
        type_text = document.get(*path, "type")
        if isinstance(type_text, str) and not _TYPES.fullmatch(type_text):
            meant = _SQL_TYPES.get(type_text.lower()) or _SQL_TYPES.get(type_text.split("(")[0])
            fix = f"write {meant}" if meant else "write Iceberg's name, e.g. long, date, string"
            problem = f"is {type_text!r}, which is no Iceberg type"
            yield document.fault((*path, "type"), problem, fix)


def _reference_faults(document: YamlDocument, columns: dict[str, Any]) -> Iterator[Fault]:
    if not columns:
        return  # without columns every reference would be a fault, and say nothing new
    names, key = list(columns), _item_paths(document, "key")
    for path in key:
        yield from _unknown_name_faults(document, path, names, "column")
    yield from _repeat_faults(document, key, "{} is in the key twice", "remove one of them")
    for path in _item_paths(document, "partitioning"):
        steps = _item_paths(document, *path, "path")
        place = steps[0] if steps else (*path, "column")
        yield from _unknown_name_faults(document, place, names, "column")
        transform = document.get(*path, "transform")
        if isinstance(transform, str) and not _TRANSFORMS.fullmatch(transform):
            fix = "write identity, year, month, day, hour, bucket[N] or truncate[N]"
            yield document.fault((*path, "transform"), f"is {transform!r}", fix)
    yield from _grain_faults(document)


def _grain_faults(document: YamlDocument) -> Iterator[Fault]:
    """Find grains that are no union of whole partitions."""
    columns = _column_types(document)
    for path in _item_paths(document, "partitioning"):
        grain = document.get(*path, "grain")
        kind = document.get(*path, "type") or columns.get(str(document.get(*path, "column")))
        is_known = grain in get_args(GrainUnit) or (type(grain) is int and grain > 0)
        if not is_known or not isinstance(kind, str):
            continue
        transform = str(document.get(*path, "transform") or "identity")
        if problem := grain_fault(transform, kind, grain):
            fix = "write a coarser unit of time, a width of whole numbers, or remove it"
            yield document.fault((*path, "grain"), f"is {grain}: {problem}", fix)


def _unknown_name_faults(
    document: YamlDocument, path: FieldPath, names: list[str], what: str
) -> Iterator[Fault]:
    name = document.get(*path)
    if isinstance(name, str) and name not in names:
        problem = f"is {name!r}, which is no {what} of this contract"
        yield document.fault(path, problem, suggest_name(name, names))


def _measure_faults(document: YamlDocument, columns: dict[str, Any]) -> Iterator[Fault]:
    paths = _item_paths(document, "measures")
    for path in paths:
        item = document.get(*path)
        if not isinstance(item, dict):
            continue
        given = [kind for kind in _MEASURE_KINDS if item.get(kind) is not None]
        if len(given) != 1:
            problem = f"has {' and '.join(given)}" if given else "has none of sum, count, counts_by"
            fix = "give exactly one of `sum:`, `count:` and `counts_by:`"
            yield document.fault(path, problem, fix)
        for kind in given if columns else ():
            yield from _unknown_name_faults(document, (*path, kind), list(columns), "column")
        summed = columns.get(str(item.get("sum")))
        if isinstance(summed, str) and not _NUMBERS.fullmatch(summed):
            problem = f"sums {item['sum']}, which is {summed}"
            yield document.fault((*path, "sum"), problem, "sum a number, or use count")
    names = ((*path, "name") for path in paths)
    yield from _repeat_faults(document, names, "is the name of two measures", "rename one")


def _repeat_faults(
    document: YamlDocument, paths: Iterable[FieldPath], problem: str, fix: str
) -> Iterator[Fault]:
    """Yield a fault for each name that an earlier path holds too; `{}` in `problem` is the name."""
    seen: set[str] = set()
    for path in paths:
        name = document.get(*path)
        if not isinstance(name, str):
            continue
        if name in seen:
            yield document.fault(path, problem.format(name), fix)
        seen.add(name)
