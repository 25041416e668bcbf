"""docs/api.md says what the code says: every method, result and error."""

from __future__ import annotations

import inspect

from lakehouse_backfill.project import Project
from tools.write_api_reference import PAGE, make_page


def test_the_page_is_what_its_program_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == make_page(), (
        "run: .venv/bin/python -m tools.write_api_reference"
    )


def test_every_method_is_described_and_returns_a_named_type() -> None:
    text = make_page()
    for name, method in inspect.getmembers(Project, inspect.isfunction):
        if not name.startswith("_"):
            assert f"### `{name}`" in text
            assert inspect.getdoc(method), name
            assert "dict[str, Any]" not in str(inspect.signature(method).return_annotation) or (
                name in ("accepted_together", "evidence_document")
            ), name
