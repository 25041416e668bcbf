"""The lineage picture: everything from inputs to consumers, drawn wide and narrow."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lakehouse_backfill.report.dossier import read_dossier
from lakehouse_backfill.report.lineage import lineage_figure, wrap_text


def texts(document: dict[str, Any]) -> list[list[str]]:
    pictures = lineage_figure(read_dossier(document)).split("</svg>")[:2]
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
