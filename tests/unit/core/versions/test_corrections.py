"""The page of correction events says what the code says, and what was undone before is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.core.versions.corrections import CORRECTION_COLUMNS
from lakehouse_backfill.core.versions.pointer import effective_publications
from lakehouse_backfill.domain.publication import Publication
from tests.support.examples.plans import a_publication

pytestmark = pytest.mark.req("U9")
PAGE = Path(__file__).resolve().parents[4] / "docs/corrections.md"


def test_the_page_lists_exactly_the_columns() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    assert rows == [
        f"| `{name}` | {kind.rstrip('!')}{'' if kind.endswith('!') else ', may be null'} | {text} |"
        for name, kind, text in CORRECTION_COLUMNS
    ]


def _row(action: str, version: int, token: str) -> Publication:
    returns = version if action == "rollback" else None
    run_id = token if returns is None else None
    return a_publication(version, action, token=token, run_id=run_id, returns_to=returns)


@pytest.mark.parametrize(
    ("undone", "left"),
    [
        ([("publish", 2, "b"), ("publish", 1, "a")], "ba"),
        ([("rollback", 1, "r"), ("publish", 2, "b"), ("publish", 1, "a")], "a"),
        ([("rollback", 1, "r")], "r"),
        (
            [("publish", 3, "c"), ("rollback", 1, "r"), ("publish", 2, "b"), ("publish", 1, "a")],
            "ca",
        ),
    ],
    ids=["acts", "one was taken back", "a rollback alone", "and then another act"],
)
def test_only_what_still_stands_is_undone(undone: list[tuple[str, int, str]], left: str) -> None:
    rows = [_row(*each) for each in undone]
    assert "".join(row.token for row in effective_publications(rows)) == left
