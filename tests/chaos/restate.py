"""A process of its own for the demo's restatement: begin it, or give one command of it.

python -m tests.chaos.restate FOLDER begin
python -m tests.chaos.restate FOLDER POINT NTH COMMAND...
"""

from __future__ import annotations

import sys
from pathlib import Path

from lakehouse_backfill import fault_points
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.demo.lake import PRODUCT, DemoLake, copy_project
from lakehouse_backfill.project import Project
from tests.chaos.faults import Kill

MANIFEST = "jobs/arrivals_daily/3-restate.yaml"


def begin(folder: Path) -> str:
    """Make the demo's project with its inputs, and plan and approve its restatement; no Spark."""
    copy_project(folder)
    project = Project.open(folder)
    DemoLake(project).build_bronze()
    project.wiring.context.tables.create(project.wiring.contract(PRODUCT))
    run = str(project.plan(MANIFEST, by="ana").run_id)
    project.approve(run, "ana")
    return run


def main() -> None:
    folder, *rest = sys.argv[1:]
    if rest == ["begin"]:
        sys.stdout.write(begin(Path(folder)))
        return
    point, nth, *command = rest
    fault_points.install_hook(Kill(point, int(nth)))
    app(["--project", folder, "--quiet", *command], prog_name="lakehouse-backfill")


if __name__ == "__main__":
    main()
