"""Independent queries at the same time: a small one leaves most of the machine idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from lakehouse_backfill.adapters.spark.session import guard

ResultT = TypeVar("ResultT")


@contextmanager
def run_concurrently(act: Callable[[], ResultT]) -> Iterator[Future[ResultT]]:
    """Let `act` run on another thread meanwhile; the block ends when both have.

    The future's `result` gives what it found, or raises what it raised. It may write although a
    job's code runs elsewhere: it is ours.
    """

    def trusted() -> ResultT:
        with guard.allow_own_writes():
            return act()

    with ThreadPoolExecutor(1, thread_name_prefix="lhb-beside") as pool:
        yield pool.submit(trusted)
