"""Checks the source of job files for names that reach past the DataFrame API."""

from __future__ import annotations

import ast
import re

from lakehouse_backfill.core.guards.queries import REFLECTION_FUNCTIONS
from lakehouse_backfill.errors import ConfigError, Fault

#: Names outside the public API: they bypass the guard, and do not exist on Spark Connect.
FORBIDDEN_NAMES = frozenset(
    {"_jvm", "_jdf", "_jsparkSession", "_jsc", "_sc", "sparkContext", "SparkContext", "rdd",
     "_jc", "_jconf", "_jwrite", "_jreader", "_jcatalog", "_jgd", "_jrdd", "_judf", "_java_obj"}
)  # fmt: skip
_REFLECTION = re.compile(rf"\b({'|'.join(REFLECTION_FUNCTIONS)})\s*\(", re.IGNORECASE)


def check_job_source(text: str, file: str) -> None:
    """Raise ConfigError, with all faults, for a Python job that leaves the DataFrame API."""
    try:
        tree = ast.parse(text, filename=file)
    except SyntaxError as error:
        fault = Fault(file, error.lineno or 1, "transform", error.msg, "correct the Python code")
        raise ConfigError("the job file is not Python", faults=(fault,)) from error
    faults = tuple(
        Fault(file, getattr(node, "lineno", 1), name, "is not open to jobs", _DATAFRAME_API_FIX)
        for node in ast.walk(tree)
        if (name := _forbidden(node))
    )
    if faults:
        raise ConfigError("the job reaches past the DataFrame API", faults=faults)


_DATAFRAME_API_FIX = "use the DataFrame API or SQL; both run on Spark Connect too"


def _forbidden(node: ast.AST) -> str | None:
    """Return the forbidden name in a node; texts count too, because of getattr and expr."""
    if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_NAMES | REFLECTION_FUNCTIONS:
        return node.attr
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return next(iter(sorted(names & (FORBIDDEN_NAMES | REFLECTION_FUNCTIONS))), None)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value in FORBIDDEN_NAMES:
            return node.value
        match = _REFLECTION.search(node.value)
        return match.group(1) if match else None
    return None
