"""Keeps freed memory in this process, for the arrays of the next batch of rows.

The C library gives large arrays back to the system as soon as they are freed. Touching fresh pages
then takes longer than filling them: a third of the time of a small diff.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

_MEBIBYTE = 1024 * 1024
#: Parameters of glibc's `mallopt`, and what they are set to: so much may be free at the end of the
#: heap; arrays up to this size (the most that glibc takes) lie in the heap.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MAX_HEAP_ARRAY_BYTES = 256 * _MEBIBYTE, 32 * _MEBIBYTE


@lru_cache(1)
def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed; gives whether it does: only glibc can be told.

    Holds for the whole process, from now on.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_TRIM_THRESHOLD, _TRIM_BYTES), (_MMAP_THRESHOLD, _MAX_HEAP_ARRAY_BYTES))
    taken = [mallopt(name, value) for name, value in settings]
    return all(taken)
