"""Whether `publish` hashes the staged files: always in prod, unless somebody says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.errors import Conflict
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.support.examples import declarations


class _Asked(Project):
    """A project that goes no further than the context of its command."""

    def __init__(self, wiring: Adapters) -> None:
        super().__init__(wiring)
        self.asked: list[bool] = []

    def _context(self, *, take_over: bool, check_files: bool | None = None) -> Context:
        found = super()._context(take_over=take_over, check_files=check_files)
        self.asked.append(found.check_files)
        raise Conflict("no further", fix="none")


@pytest.mark.parametrize("runs", [("bf-1",), ("bf-1", "bf-2")], ids=["one", "together"])
@pytest.mark.parametrize(
    ("environment", "option", "is_checked"),
    [
        ("prod", (), True),
        ("prod", ("--no-check-files",), False),
        ("dev", (), False),
        ("dev", ("--check-files",), True),
    ],
)
def test_staged_files_are_hashed_before_they_are_published_in_prod_unless_told_otherwise(
    tmp_path: Path, runs: tuple[str, ...], environment: str, option: Any, is_checked: bool
) -> None:
    folder = declarations.project(tmp_path)
    profiles = folder / "catalog" / "profiles.yaml"
    text = declarations.changed(
        profiles.read_text(encoding="utf-8"),
        "  embedded:\n",
        f"  embedded:\n    environment: {environment}\n",
    )
    profiles.write_text(text, encoding="utf-8")
    wiring = Adapters.open(folder, "embedded", NullProgress())
    wiring.create_lake()
    project = _Asked(wiring)
    words = ["--project", str(folder), "publish", *runs, "--by", "ana", *option]
    ended = CliRunner().invoke(app, words, obj=lambda *_: project)
    assert (ended.exit_code, project.asked) == (4, [is_checked])
