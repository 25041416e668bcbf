"""Characters that nobody sees, or that turn the text around them, are written out."""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import Any

import pytest

from lakehouse_backfill.report import html
from lakehouse_backfill.report.page import render_page, write_evidence_files

#: NUL, ESC, bidirectional marks and isolates, no character, a space of no width, a line separator.
HIDDEN = "\x00\x07\x1b\x7f\x85\r\u200b\u200e\u2028\u202a\u202b\u202c\u202d\u202e\u2066\u2069\ufffe"
WRITTEN = "".join(f"\\u{ord(one):04x}" for one in HIDDEN)


def test_each_hidden_character_is_written_out() -> None:
    assert html.show_invisible(f'<p title="{HIDDEN}">{HIDDEN}</p>') == (
        f'<p title="{WRITTEN}">{WRITTEN}</p>'
    )
    assert html.show_invisible("\U000e0001") == "\\U000e0001"


def test_lines_spaces_and_letters_of_all_scripts_stay() -> None:
    text = "a\tb\nc\r\nd  שלום\N{NO-BREAK SPACE}größe 日本 🛩 \\u202e"
    assert html.show_invisible(text) == text.replace("\r\n", "\n")


def test_no_control_or_format_character_at_all_gets_through() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    kinds = {one: unicodedata.category(one) for one in set(html.show_invisible(every))}
    assert {one for one, kind in kinds.items() if kind in {"Cc", "Cf", "Cs", "Zl", "Zp"}} == {
        "\n",
        "\t",
    }


@pytest.mark.req("O4")
def test_hidden_characters_are_seen_in_names_reasons_and_code(document: dict[str, Any]) -> None:
    document["plan"]["resolved"]["manifest"]["run"]["reason"] = f"fix {HIDDEN}"
    document["code"][0]["text"] = "if admin:  # \u202e } \u2066 not for users"
    document["validation"]["diff"]["columns"][0]["name"] = "pay\x1b[31mload"
    page = render_page(document)
    assert not set(HIDDEN) & set(page)
    assert f"fix {WRITTEN}" in page
    assert "if admin:  # \\u202e } \\u2066 not for users" in page
    assert "pay\\u001b[31mload" in page


@pytest.mark.req("O4")
def test_half_a_character_keeps_neither_page_nor_archive_from_being_written(document, tmp_path):
    document["code"][0]["text"] = "half \ud83d"
    page = write_evidence_files(document, tmp_path)
    assert "half \\ud83d" in page.read_text("utf-8")
    assert json.loads(page.with_suffix(".json").read_text("utf-8")) == document
