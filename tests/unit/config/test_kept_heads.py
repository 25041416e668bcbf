"""A file of kept heads: what `audit verify --json` printed, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakehouse_backfill.config.project_files import read_kept_heads
from lakehouse_backfill.errors import ConfigError, NotFound

HEADS = {"bf-1": "a" * 64, "bf-2": ""}
pytestmark = pytest.mark.req("C2")


@pytest.mark.parametrize("document", [{"data": {"heads": HEADS}}, {"heads": HEADS}])
def test_the_output_of_the_command_and_of_the_python_api_is_read(
    tmp_path: Path, document: object
) -> None:
    file = tmp_path / "heads.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    assert read_kept_heads(file) == HEADS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON"),
        ("[1]", "holds no heads of runs"),
        ('{"data": {"heads": {}}}', "holds no heads of runs"),
        ('{"data": {"runs": []}}', "holds no heads of runs"),
        ('{"heads": {"bf-1": "abc"}}', "the head of bf-1 is no SHA-256"),
        ('{"heads": {"bf-1": null}}', "the head of bf-1 is no SHA-256"),
    ],
)
def test_what_holds_no_heads_must_not_pass_for_a_comparison(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "heads.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as raised:
        read_kept_heads(file)
    assert "audit verify --json" in str(raised.value.fix)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere\.json cannot be read"):
        read_kept_heads(tmp_path / "nowhere.json")
