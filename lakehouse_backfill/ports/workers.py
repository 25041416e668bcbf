"""Processes that each work on a part of one question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

#: Answers for consecutive parts of a question; the first argument is what all parts have in common.
#: It may be called more than once for a part, so it has no side effects.
PartFunction = Callable[[bytes, Sequence[bytes]], bytes]


class Workers(Protocol):
    """Processes that have this product installed, on any machine."""

    def count(self, work: PartFunction) -> int:
        """Tell how many can do this work at a time.

        Raises Unsupported where they lack this product, or something that the work needs.
        """
        ...

    def answers(
        self, work: PartFunction, common: bytes, tasks: Sequence[Sequence[bytes]]
    ) -> Iterator[bytes]:
        """Work on each task's parts together; yields the answers in the order of the parts.

        Small tasks that follow each other may be taken as one.
        """
        ...
