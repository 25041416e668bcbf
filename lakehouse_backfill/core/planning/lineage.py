"""Whether the rows of a run say which run made them (M8)."""

from __future__ import annotations

from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.table import TableInfo
from lakehouse_backfill.errors import ConfigError


def resolve_lineage_columns(contract: Contract, target: TableInfo | None) -> Contract:
    """Give the contract with `lineage_columns` decided: on for a table that the run creates.

    In one that exists they are on when it has all of them. Raises ConfigError when the contract
    wants them and the table lacks some: staging could not write them.
    """
    missing = [name for name in LINEAGE_NAMES if target and target.column(name) is None]
    if contract.lineage_columns and missing:
        raise ConfigError(
            f"the contract of {contract.product} asks for lineage columns, but {contract.table} "
            f"has no {', '.join(missing)}",
            fix="add the columns to the table, or write lineage_columns: false in "
            f"catalog/contracts/{contract.product}.yaml",
        )
    wanted = contract.lineage_columns
    decided = not missing if wanted is None else wanted
    return contract.model_copy(update={"lineage_columns": decided})
