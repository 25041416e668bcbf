"""Init: the files of a new project; JSON Schemas.

JSON Schema of the declarations, for editors.

The files of a new project, and the drafts that are added to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lakehouse_backfill.domain.contract import Contract, Profiles
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.errors import BackfillError, ConfigError, EnvironmentDown, NotFound

SCHEMA_MODELS: dict[str, type[BaseModel]] = {
    "manifest": RunManifest,
    "contract": Contract,
    "profiles": Profiles,
}


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of `manifest`, `contract` or `profiles`.

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


__all__ = [
    "create_project",
    "new_project_files",
    "write_new_file",
]

_PROFILES = """\
# yaml-language-server: $schema=../schemas/profiles.json
# One entry for each lake. `catalog` holds PyIceberg's own property names; Spark's settings are
# derived from them. ${project} is this project's folder. Keep secrets out of this file: PyIceberg
# reads them from its environment variables.
api_version: lakehouse-backfill/v1
default: embedded
profiles:
  embedded: # one SQLite file and a folder on this machine; nothing has to be run
    environment: dev
    catalog:
      name: lake
      type: sql
      uri: sqlite:///${project}/.lakehouse/catalog.db
      warehouse: file://${project}/.lakehouse/warehouse
  # prod:
  #   environment: prod # four eyes on; has to be named: lakehouse-backfill --profile prod …
  #   catalog:
  #     name: lake
  #     type: rest
  #     uri: https://catalog.example.com
  #     warehouse: s3://lake/warehouse
  #   spark:
  #     spark.master: spark://spark.example.com:7077
"""

_README = """\
# Restatements of this lake

Declarations for `lakehouse-backfill` (`lhb` for short).

| folder | what it holds |
|---|---|
| `catalog/profiles.yaml` | the lakes, one profile each |
| `catalog/contracts/` | one contract for each product: key, columns, owner, consumers |
| `expectations/` | Great Expectations suites, as JSON files |
| `jobs/` | one folder for each job: transform code and run manifests |
| `schemas/` | JSON Schemas that editors check the YAML files with |

The usual order:

    lakehouse-backfill doctor
    lakehouse-backfill product add silver.orders
    lakehouse-backfill new silver.orders --from 2026-01-01 --to 2026-02-01 --reason "why"
    lakehouse-backfill plan jobs/orders/restate-2026-01-01-2026-02-01.yaml
    lakehouse-backfill approve RUN --by WHO
    lakehouse-backfill run RUN
    lakehouse-backfill accept RUN --by WHO
    lakehouse-backfill publish RUN

`lakehouse-backfill status RUN` says at any time whether data is safe and what to type next.

A transform is a function in `jobs/orders/transform.py` that gives the rows of the product:

    from lakehouse_backfill import transform
    from pyspark.sql import functions as F

    @transform(name="orders", version="1.0.0", inputs=("orders",))
    def orders(context, orders):
        return orders.select("order_id", F.col("cents").cast("decimal(12,2)").alias("amount"))

or a query in `jobs/orders/transform.sql`, with its inputs in braces:

    -- name: orders
    -- version: 1.0.0
    -- inputs: orders
    SELECT order_id, cast(cents AS decimal(12,2)) AS amount FROM {orders}
"""

_GITIGNORE = """\
# The embedded lake, and the tool's logs and reports: state, not declarations.
/.lakehouse/
/.lakehouse-backfill/
__pycache__/
"""


def new_project_files() -> dict[str, str]:
    """Return the files of a new project: path inside it -> content."""
    schemas = {
        f"schemas/{kind}.json": json.dumps(json_schema(kind), indent=2) + "\n"
        for kind in SCHEMA_MODELS
    }
    return {
        "README.md": _README,
        ".gitignore": _GITIGNORE,
        "catalog/profiles.yaml": _PROFILES,
        "catalog/contracts/.gitkeep": "",
        "expectations/.gitkeep": "",
        "jobs/.gitkeep": "",
        **schemas,
    }


def create_project(folder: Path) -> tuple[str, ...]:
    """Create the files of a new project and name them. Writes nothing when one is there already.

    Raises:
        ConfigError: a file is there already; all of them are named.
        EnvironmentDown: the folder cannot be written.
    """
    files = new_project_files()
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise ConfigError(
            f"{folder} already holds {', '.join(sorted(there))}",
            state="nothing was written",
            fix="choose another folder, or go on in this one: lakehouse-backfill doctor",
        )
    for name, content in files.items():
        write_new_file(folder / name, content)
    return tuple(sorted(files))


def write_new_file(path: Path, content: str) -> None:
    """Write a new text file and the folders above it; never over an existing one.

    Raises:
        ConfigError: the file exists.
        EnvironmentDown: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(content)
    except FileExistsError as error:
        raise _already_exists(path) from error
    except OSError as error:
        raise EnvironmentDown(
            f"{path} cannot be written: {error.strerror or error}",
            state="files named before it may have been written",
            fix="choose a folder that you may write to",
        ) from error


def _already_exists(path: Path) -> BackfillError:
    return ConfigError(
        f"{path} is there already", state="nothing was overwritten", fix="move it away first"
    )
