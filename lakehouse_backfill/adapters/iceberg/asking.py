"""Asking the store of a table for many files at once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lakehouse_backfill.adapters.iceberg.catalog import translate_errors

FetchedT = TypeVar("FetchedT")


def fetch_all(
    ask: Callable[[str], FetchedT], paths: Collection[str], at_once: int
) -> dict[str, FetchedT]:
    """Ask for each file, several at a time; those that are gone are left out."""

    def one(path: str) -> FetchedT | None:
        try:
            return ask(path)
        except FileNotFoundError:
            return None

    with translate_errors(), ThreadPoolExecutor(at_once, thread_name_prefix="store") as pool:
        found = zip(paths, pool.map(one, paths), strict=True)
        return {path: answer for path, answer in found if answer is not None}
