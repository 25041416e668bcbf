"""Loads what a command loads, once: for the process that all children are forked from.

A command takes 0.2 to 0.4 s then. Nothing is opened and no thread starts here: neither outlives a
fork.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import pkgutil

from pydantic import BaseModel

from lakehouse_backfill.report import html
from tests.chaos import worker
from tests.support.quick_pyiceberg import make_quick

#: `pytest.__main__` is what every child imports as its own main module.
_LIBRARIES = (
    "asyncio",
    "duckdb",
    "encodings.ascii",
    "encodings.utf_8_sig",
    "pyarrow.acero",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyiceberg.avro.decoder_fast",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "pytest",
    "sqlalchemy.dialects.sqlite",
    "tests.chaos.crowd",
    "typer._adapters",
)
_LAYERS = ("adapters", "cli", "config", "core", "domain", "report", "results")


def _load(package: str) -> None:
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        importlib.import_module(module.name)


def _build(model: type[BaseModel]) -> None:
    """Build the validators that pydantic would build at each first use."""
    for below in model.__subclasses__():
        _build(below)
        if not below.__pydantic_complete__:
            below.model_rebuild(raise_errors=False)


for _library in _LIBRARIES:
    importlib.import_module(_library)
importlib.import_module("lakehouse_backfill.project")
importlib.import_module("lakehouse_backfill.wiring.adapters")
for _layer in _LAYERS:
    _load(f"lakehouse_backfill.{_layer}")
_build(BaseModel)
worker.command()
make_quick()
_templates = html._environment()
for _name in _templates.list_templates(extensions=["html"]):
    _templates.get_template(_name)
# Else each child's first collection would copy all of this, page by page.
gc.collect()
gc.freeze()
# DuckDB complains about what is left of it at the end.
atexit.register(gc.unfreeze)
