"""The lineage section and the live commits of a run."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.domain.catch_up import CarriedChunk, CatchUp, Drift, Erasure, TombstonePin
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.lineage import lineage_figure, live_commits, wrap_text


def texts(document: dict[str, Any]) -> list[list[str]]:
    pictures = lineage_figure(Dossier.model_validate(document)).split("</svg>")[:2]
    return [re.findall(r"<text[^>]*>(.*?)</text>", each) for each in pictures]


@pytest.mark.req("O4")
def test_both_pictures_show_the_whole_way(document: dict[str, Any]) -> None:
    for found in texts(document):
        said = " ".join(found)
        for part in (
            "bronze.flights @ 3051729675574597004", "bronze.airports", "arrivals_daily 1.2.0",
            "jobs/arrivals.py", "Shadow table lhb_shadow.",
            "Target silver.arrivals_daily version 3", "Consumer delay dashboard",
            "Consumer yearly report",
        ):  # fmt: skip
            assert part in said


def test_consumers_beyond_the_limit_are_counted(document: dict[str, Any]) -> None:
    contract = document["plan"]["resolved"]["contract"]
    contract["consumers"] = [
        {"name": f"reader {place}", "tolerates_restatement": True} for place in range(9)
    ]
    for found in texts(document):
        assert [text for text in found if "reader" in text] == [f"reader {n}" for n in range(3)]
        assert "6 more consumers" in found


def test_a_pinned_product_ends_in_its_pointer(document: dict[str, Any]) -> None:
    document["plan"]["resolved"]["contract"]["publication"] = "pinned"
    for found in texts(document):
        assert "Pointer" in found
        assert "Target" not in found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("lhb_shadow.arrivals_daily", ["lhb_shadow.", "arrivals_daily"]),
        ("x" * 25, ["x" * 12, "x" * 12, "x"]),
        ("two words here", ["two words", "here"]),
        ("", []),
    ],
)
def test_lines_are_cut_where_words_end(text: str, lines: list[str]) -> None:
    letters = 12 if not text.startswith("lhb") else 14
    assert wrap_text(text, letters) == lines


def _caught_up(document: dict[str, Any], **changes: Any) -> Dossier:
    found = Dossier.model_validate(document)
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
    return found.model_copy(update={"plan": plan})


@pytest.mark.req("U11")
def test_the_page_names_the_live_commits_and_who_computed_what(document: dict[str, Any]) -> None:
    shown = str(live_commits(_caught_up(document)))
    for text in ("4711", "append", "spark app-7", "bf-0", "flights 4242", "attempt 1"):
        assert text in shown, text


@pytest.mark.req("E3")
def test_the_page_names_what_was_left_out_and_why(document: dict[str, Any]) -> None:
    erasure = Erasure(
        table="silver.t", before_snapshot_id=7, after_snapshot_id=8,
        partitions=("2013-02-16",), key=("d", "k"),
    )  # fmt: skip
    shown = str(live_commits(_caught_up(document, erasures=(erasure,))))
    for text in ("0 rows were left out", "privacy.gone", "rows deleted live", "7 to 8"):
        assert text in shown, text


def test_a_run_that_met_nothing_says_nothing(document: dict[str, Any]) -> None:
    assert live_commits(Dossier.model_validate(document)).strip() == ""
