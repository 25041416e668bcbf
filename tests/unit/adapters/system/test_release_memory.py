"""Memory that Arrow keeps for threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from lakehouse_backfill.adapters.system.process import release_memory

THREADS = 3


class RecordedPool:
    """A memory pool that records the threads in which it released memory."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def default_memory_pool(self) -> RecordedPool:
        return self

    def release_unused(self) -> None:
        self.threads.append(threading.current_thread().name)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> RecordedPool:
    found = RecordedPool()
    monkeypatch.setitem(sys.modules, "pyarrow", found)
    return found


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """The executor of PyIceberg, all of whose threads have started."""
    with ThreadPoolExecutor(THREADS, "files") as started:
        barrier = threading.Barrier(THREADS)
        list(started.map(lambda _: barrier.wait(), range(THREADS)))
        factory = SimpleNamespace(get_or_create=lambda: started)
        library = SimpleNamespace(ExecutorFactory=factory)
        monkeypatch.setitem(sys.modules, "pyiceberg.utils.concurrent", library)
        yield started


def test_memory_is_released_in_this_thread_and_in_those_of_pyiceberg(
    pool: RecordedPool, executor: ThreadPoolExecutor
):
    here = threading.current_thread().name
    everywhere = sorted([here, *(f"files_{number}" for number in range(THREADS))])
    release_memory()
    assert sorted(pool.threads) == everywhere


def test_a_command_does_not_wait_for_threads_that_are_busy(
    pool: RecordedPool, executor: ThreadPoolExecutor
):
    end = threading.Event()
    executor.submit(end.wait)
    started = time.monotonic()
    release_memory()
    assert time.monotonic() - started < 5
    assert threading.current_thread().name in pool.threads
    end.set()


def test_nothing_is_released_in_threads_when_the_interpreter_shuts_down(
    pool: RecordedPool, executor: ThreadPoolExecutor
):
    executor.shutdown()
    release_memory()
    assert pool.threads == [threading.current_thread().name]


def test_without_pyiceberg_memory_is_released_in_this_thread(
    pool: RecordedPool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delitem(sys.modules, "pyiceberg.utils.concurrent", raising=False)
    release_memory()
    assert pool.threads == [threading.current_thread().name]
