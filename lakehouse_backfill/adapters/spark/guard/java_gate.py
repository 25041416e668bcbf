"""Keeps job code from Spark's Java objects, by which it would reach the whole machine.

PySpark calls Java for the job; a line of the job itself has no use for it. Private names lead
there, and a name that is put together at run time is not seen in the source.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from lakehouse_backfill.adapters.spark.guard.process_guard import ProcessGuard


def install(guard: ProcessGuard) -> None:
    """Gate what all calls of Java from Python pass, once for the process."""
    from py4j import java_gateway

    for owner, name in (
        (java_gateway.JavaMember, "__call__"),
        (java_gateway.JavaObject, "__getattr__"),
        (java_gateway.JavaClass, "__call__"),
        (java_gateway.JavaClass, "__getattr__"),
        (java_gateway.JVMView, "__getattr__"),
    ):
        _check_caller(guard, owner, name)


def _check_caller(guard: ProcessGuard, owner: type, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any) -> Any:
        if guard.is_on and not guard.is_trusted():
            place = guard.direct_caller(sys._getframe(1))
            if place is not None:
                guard.stop("Java", "to call Java", place)
        return original(*arguments)

    setattr(owner, name, call)
