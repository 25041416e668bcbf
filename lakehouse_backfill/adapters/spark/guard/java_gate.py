"""Keeps job code from Spark's Java objects, by which it would reach the whole machine.

PySpark calls Java for the job; a line of the job itself has no use for it. Private names lead
there, and a name that is put together at run time is not seen in the source. Of what PySpark calls
for a job, methods that write files or read them from servers and stores are refused, whatever
module calls them and whenever it was imported, and functions of queries that call Java by name.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

from py4j import java_gateway

from lakehouse_backfill.adapters.spark.guard.process_guard import ProcessGuard
from lakehouse_backfill.adapters.spark.session import read_guard

#: Methods of Java that write or delete files: models and pipelines of machine learning, RDDs.
_WRITING = frozenset({
    "save", "overwrite", "saveImpl", "handleOverwrite", "copyFileFromLocalToFs", "saveAsTextFile",
    "saveAsObjectFile", "saveAsSequenceFile", "saveAsHadoopFile", "saveAsNewAPIHadoopFile",
    "saveAsHadoopDataset", "saveAsNewAPIHadoopDataset",
})  # fmt: skip

#: Functions of Spark SQL that call Java.
_REFLECTING = frozenset({"reflect", "try_reflect", "java_method"})
#: Methods of Java whose first argument is the name of a function.
_BY_NAME = frozenset({"call_function", "call_udf", "callUDF"})
_GAP = r"[`\s]*(?:(?:/\*.*?\*/|--[^\n]*\n)\s*)*"
#: A call of such a function in a text, or of one whose name the text puts together.
_REFLECTION = re.compile(
    rf"\b(?:try_reflect|reflect|java_method){_GAP}\(|\bidentifier{_GAP}\(.*?\){_GAP}\(",
    re.IGNORECASE | re.DOTALL,
)


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


def _check_member(guard: ProcessGuard, name: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what PySpark is about to call for a job, if it acts outside."""
    if name in _WRITING:
        sink, what = "file", f"to write files by Spark ({name})"
    elif _calls_java(name, arguments):
        sink, what = "Java", "to call Java in a query"
    elif read := read_guard.describe_call(name, arguments):
        sink, what = "network", read
    else:
        return
    if place := guard.maker(sys._getframe(2)):
        guard.stop(sink, what, place)


def _calls_java(name: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether Spark is asked for a function that calls Java by name."""
    # The text of a literal is a value.
    if name in _REFLECTING or name == "lit":
        return name != "lit"
    given = [arguments, *(each for each in arguments if isinstance(each, (list, tuple)))]
    texts = [text for each in given for text in each if isinstance(text, str)]
    if name in _BY_NAME and texts:
        return texts[0].rpartition(".")[2].strip("` ").lower() in _REFLECTING
    return any(map(_REFLECTION.search, texts))


def _check_caller(guard: ProcessGuard, owner: type, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any) -> Any:
        if guard.is_on and not guard.is_trusted():
            place = guard.direct_caller(sys._getframe(1))
            if place is not None:
                guard.stop("Java", "to call Java", place)
            if owner is java_gateway.JavaMember:
                _check_member(guard, arguments[0].name, arguments[1:])
        return original(*arguments)

    setattr(owner, name, call)
