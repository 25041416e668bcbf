"""Threads that stay: memory that a thread has freed is soonest its own again."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache


def thread_pool(name: str, threads: int) -> ThreadPoolExecutor:
    """Give the threads of this name in this process, which start when they have something to do.

    Work of one name may wait for that of another, but never for its own.
    """
    # A process that was forked has its parent's pools, but not their threads.
    return _process_thread_pool(name, threads, os.getpid())


@lru_cache(None)
def _process_thread_pool(name: str, threads: int, _process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=name)
