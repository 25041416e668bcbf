"""Processes for tests to run beside their own, forked from one that imports the libraries once."""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        "lakehouse_backfill.adapters.iceberg.catalog",
        "lakehouse_backfill.adapters.iceberg.control.runs",
        "lakehouse_backfill.adapters.iceberg.landing.migrated_tables",
        "lakehouse_backfill.adapters.local.partition_sums",
        "lakehouse_backfill.core.landing.land",
        "lakehouse_backfill.core.migration.migrate",
        "lakehouse_backfill.project",
        # What every child imports as its own main module.
        "pytest",
    ]
)
