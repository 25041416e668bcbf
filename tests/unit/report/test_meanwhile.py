"""The page says of a run that caught up what came, and from what each partition was computed."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.domain.catch_up import CarriedChunk, CatchUp, Drift, Erasure, TombstonePin
from lakehouse_backfill.report.dossier import Dossier, read_dossier
from lakehouse_backfill.report.lineage import live_commits_section


def _caught_up(document: dict[str, Any], **changes: Any) -> Dossier:
    found = read_dossier(document)
    chunk = found.plan.resolved.chunks[0]
    catch_up = CatchUp(
        of="bf-0", attempt=1, accepted_digest="d" * 64, drifted=("2013-02-16",),
        drifts=(
            Drift(
                snapshot_id=4711, operation="append", writer="spark app-7",
                at=datetime(2026, 3, 1, tzinfo=timezone.utc), partitions=("2013-02-16",),
                only_deletes=False,
            ),
        ),
        carried=(
            CarriedChunk(
                chunk_id=chunk.chunk_id, run_id="bf-0", shadow_table="s.old",
                shadow_snapshot_id=1, rows=1, checksum="x", inputs={"flights": 4242},
            ),
        ),
        **changes,
    )  # fmt: skip
    resolved = found.plan.resolved.model_copy(
        update={
            "catch_up": catch_up,
            "tombstones": (
                TombstonePin(table="privacy.gone", snapshot_id=99, columns={"k": "person"}),
            ),
        }
    )
    plan = found.plan.model_copy(update={"resolved": resolved})
    return dataclasses.replace(found, plan=plan)


@pytest.mark.req("U11")
def test_the_page_names_the_live_commits_and_who_computed_what(document: dict[str, Any]) -> None:
    shown = str(live_commits_section(_caught_up(document)))
    for text in ("4711", "append", "spark app-7", "bf-0", "flights 4242", "attempt 1"):
        assert text in shown, text


@pytest.mark.req("E3")
def test_the_page_names_what_was_left_out_and_why(document: dict[str, Any]) -> None:
    erasure = Erasure(
        table="silver.t", before_snapshot_id=7, after_snapshot_id=8,
        partitions=("2013-02-16",), key=("d", "k"),
    )  # fmt: skip
    shown = str(live_commits_section(_caught_up(document, erasures=(erasure,))))
    for text in ("0 rows were left out", "privacy.gone", "rows deleted live", "7 to 8"):
        assert text in shown, text


def test_a_run_that_met_nothing_says_nothing(document: dict[str, Any]) -> None:
    assert str(live_commits_section(read_dossier(document))) == ""
