"""Keeps job code from Spark's Java objects, by which it would reach the whole machine.

PySpark calls Java for the job; a line of the job itself has no use for it. Private names lead
there, and a name that is put together at run time is not seen in the source. Of what PySpark calls
for a job, methods that write files are refused, whatever module calls them and whenever it was
imported.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from py4j import java_gateway

from lakehouse_backfill.adapters.spark.guard.process_guard import ProcessGuard

#: Methods of Java that write or delete files: models and pipelines of machine learning, RDDs.
_WRITING = frozenset({
    "save", "overwrite", "saveImpl", "handleOverwrite", "copyFileFromLocalToFs", "saveAsTextFile",
    "saveAsObjectFile", "saveAsSequenceFile", "saveAsHadoopFile", "saveAsNewAPIHadoopFile",
    "saveAsHadoopDataset", "saveAsNewAPIHadoopDataset",
})  # fmt: skip


def install(guard: ProcessGuard) -> None:
    """Gate what all calls of Java from Python pass, once for the process."""
    for owner, name in (
        (java_gateway.JavaMember, "__call__"),
        (java_gateway.JavaObject, "__getattr__"),
        (java_gateway.JavaClass, "__call__"),
        (java_gateway.JavaClass, "__getattr__"),
        (java_gateway.JVMView, "__getattr__"),
    ):
        _check_caller(guard, owner, name)


def _check_member(guard: ProcessGuard, name: str) -> None:
    """Refuse what PySpark is about to call for a job, if it acts outside."""
    if name in _WRITING and (place := guard.maker(sys._getframe(2))):
        guard.stop("file", f"to write files by Spark ({name})", place)


def _check_caller(guard: ProcessGuard, owner: type, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any) -> Any:
        if guard.is_on and not guard.is_trusted():
            place = guard.direct_caller(sys._getframe(1))
            if place is not None:
                guard.stop("Java", "to call Java", place)
            if owner is java_gateway.JavaMember:
                _check_member(guard, arguments[0].name)
        return original(*arguments)

    setattr(owner, name, call)
