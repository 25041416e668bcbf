"""JSON Schema of the declarations, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from lakehouse_backfill.domain.contract import Contract, Profiles
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.errors import NotFound

SCHEMA_MODELS: dict[str, type[BaseModel]] = {
    "manifest": RunManifest,
    "contract": Contract,
    "profiles": Profiles,
}


def json_schema(kind: str) -> dict[str, Any]:
    """Give the JSON Schema (draft 2020-12) of `manifest`, `contract` or `profiles`.

    Raises:
        NotFound: no such kind of declaration.
    """
    model = SCHEMA_MODELS.get(kind)
    if model is None:
        raise NotFound(
            f"there is no schema {kind!r}", fix=f"use one of: {', '.join(SCHEMA_MODELS)}"
        )
    schema = model.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
