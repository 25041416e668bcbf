"""Who writes the commits on a table, and the facts by which that is chosen."""

from __future__ import annotations

from typing import Literal

from lakehouse_backfill.domain.value import Value

WritePath = Literal["pyiceberg", "java", "rewrite"]


class TableFacts(Value):
    """What a table's metadata says about writing to it.

    `registers` says whether its catalog offers to register a clone; some do not keep their word.
    `equality_deletes` counts the live equality delete files that may hide rows of the scope, and
    `entries` those of the manifests that a swap of the scope rewrites.
    """

    format_version: int
    equality_deletes: int = 0
    entries: int = 0
    registers: bool = True


class JvmState(Value):
    """What this process can do: whether its JVM runs already, and is one of its own."""

    is_up: bool = False
    is_connect: bool = False


class ChosenWritePath(Value):
    """The way, and the reason as a sentence."""

    way: WritePath
    why: str
