"""A catalog that answers as Lakekeeper does, by its sources: no new UUID, no data path."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException
from pyiceberg.table.update import AssignUUIDUpdate, SetPropertiesUpdate


def refuse_as_lakekeeper(catalog: Catalog) -> list[str]:
    """Let commits be refused: 400 to a new UUID, 409 to `write.data.path`; give what was."""
    commit, refused = catalog.commit_table, list[str]()

    def commit_table(table: Any, requirements: Any, updates: Any) -> Any:
        for change in updates:
            if isinstance(change, AssignUUIDUpdate):
                refused.append("uuid")
                raise BadRequestError("AssignUuidNotAllowed: the table's UUID cannot be changed")
            if isinstance(change, SetPropertiesUpdate) and "write.data.path" in change.updates:
                refused.append("data path")
                raise CommitFailedException("write.data.path is managed by the server")
        return commit(table, requirements, updates)

    vars(catalog)["commit_table"] = commit_table
    return refused
