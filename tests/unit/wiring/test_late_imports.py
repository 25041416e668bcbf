"""A command that computes nothing loads nothing for other stores, sources and commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.examples import declarations

#: Libraries of REST catalogs, topics and engines; other commands and what they work with.
_LEFT_OUT = (
    "confluent_kafka",
    "duckdb",
    "great_expectations",
    "lakehouse_backfill.adapters.iceberg.commit",
    "lakehouse_backfill.adapters.iceberg.shadow.shadows",
    "lakehouse_backfill.adapters.local",
    "lakehouse_backfill.adapters.quality",
    "lakehouse_backfill.adapters.signing",
    "lakehouse_backfill.adapters.sources",
    "lakehouse_backfill.adapters.spark",
    "lakehouse_backfill.core.landing.land",
    "lakehouse_backfill.core.migration.migrate",
    "lakehouse_backfill.core.planning.plan",
    "lakehouse_backfill.core.replay.replay",
    "lakehouse_backfill.core.staging.stage",
    "lakehouse_backfill.core.validation.validate",
    "lakehouse_backfill.report",
    "pandas",
    "pyspark",
    "requests",
    "sqlglot",
)
_STATUS = """
import sys
from pathlib import Path
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.project import Project
Project.open(Path(sys.argv[1])).wiring.create_lake()
app(["--project", sys.argv[1], "status"], standalone_mode=False)
# Previews of a publication and of a rollback load these.
import lakehouse_backfill.core.cascade.visibility
import lakehouse_backfill.core.publication.publish
import lakehouse_backfill.core.publication.rollback_preview
sys.stderr.write(" ".join(sys.modules))
"""


def test_status_of_an_embedded_lake_loads_only_what_it_needs(tmp_path: Path) -> None:
    folder = declarations.project(tmp_path)
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", _STATUS, str(folder)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no open run" in done.stdout
    loaded = done.stderr.splitlines()[-1].split()
    assert "lakehouse_backfill.adapters.iceberg.control.runs" in loaded
    wrong = [name for name in loaded if f"{name}.".startswith(tuple(f"{n}." for n in _LEFT_OUT))]
    assert wrong == []
