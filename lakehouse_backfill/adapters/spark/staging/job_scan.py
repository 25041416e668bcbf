"""Reads job files for what a job must not touch, before any of it runs."""

from __future__ import annotations

import ast
import re

from lakehouse_backfill.errors import ConfigError, Fault

#: Ways past the public API: they bypass the guard, and do not exist on Spark Connect.
FORBIDDEN_NAMES = frozenset(
    {"_jvm", "_jdf", "_jsparkSession", "_jsc", "_sc", "sparkContext", "SparkContext", "rdd"}
)
_REFLECTION = re.compile(r"\b(reflect|java_method|try_reflect)\s*\(", re.IGNORECASE)
_REFLECTION_NAMES = frozenset({"reflect", "java_method", "try_reflect"})


def check_job_source(text: str, file: str) -> None:
    """Refuse a Python job that reaches past the DataFrame API: ConfigError with all faults."""
    try:
        tree = ast.parse(text, filename=file)
    except SyntaxError as error:
        fault = Fault(file, error.lineno or 1, "transform", error.msg, "correct the Python code")
        raise ConfigError("the job file is not Python", faults=(fault,)) from error
    faults = tuple(
        Fault(file, getattr(node, "lineno", 1), found, "is not open to jobs", _DATAFRAME_API_FIX)
        for node in ast.walk(tree)
        if (found := _forbidden(node))
    )
    if faults:
        raise ConfigError("the job reaches past the DataFrame API", faults=faults)


_DATAFRAME_API_FIX = "use the DataFrame API or SQL; both run on Spark Connect too"


def _forbidden(node: ast.AST) -> str | None:
    """Name what a node reaches for; texts count too, because of getattr and expr."""
    if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_NAMES | _REFLECTION_NAMES:
        return node.attr
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return next(iter(sorted(names & (FORBIDDEN_NAMES | _REFLECTION_NAMES))), None)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value in FORBIDDEN_NAMES:
            return node.value
        found = _REFLECTION.search(node.value)
        return found.group(1) if found else None
    return None
