"""The advisory lock of PostgreSQL orders pointer moves, and nothing depends on it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.iceberg.control import advisory_lock
from lakehouse_backfill.adapters.iceberg.control.advisory_lock import (
    PostgresAdvisoryLock,
    choose_advisory_lock,
)
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.control import PRODUCT, a_row, bare

NAME = "lakehouse_backfill.accepted_output_version"


@pytest.mark.req("U12")
def test_a_process_that_holds_the_lock_for_ever_is_waited_for_once(
    named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(advisory_lock, "LOCK_TIMEOUT_S", 0.5)
    named("postgres")
    holder = choose_advisory_lock(catalog_of(tmp_path), NAME)
    assert isinstance(holder, PostgresAdvisoryLock)
    versions = IcebergVersions(ControlTables(catalog_of(tmp_path), "lakehouse_backfill"))
    first, *others = (a_row(number, "publish") for number in (1, 2, 3))
    versions.move(PRODUCT, lambda _: (first,))
    with holder.hold():
        started = time.monotonic()
        versions.move(PRODUCT, lambda _: (others[0],))
        assert time.monotonic() - started > advisory_lock.LOCK_TIMEOUT_S
        versions.move(PRODUCT, lambda _: (others[1],))
    assert bare(versions.history(PRODUCT)) == (*reversed(others), first)


@pytest.mark.req("X3")
def test_a_move_that_landed_is_told_though_the_connection_of_its_lock_is_lost(
    named, tmp_path: Path
):
    named("postgres")
    versions = IcebergVersions(ControlTables(catalog_of(tmp_path), "lakehouse_backfill"))
    first, second = (a_row(number, "publish") for number in (1, 2))
    versions.move(PRODUCT, lambda _: (first,))
    engine = catalog_of(tmp_path).engine

    def lose_the_lock(_: object) -> tuple[object, ...]:
        with engine.connect() as other:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
            assert other.exec_driver_sql(ended).all() == [(True,)]
        return (second,)

    versions.move(PRODUCT, lose_the_lock)
    assert bare(versions.history(PRODUCT)) == (second, first)
