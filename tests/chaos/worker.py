"""What runs in a child process: the program itself, on the lab's project, with a fault in it."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from typer.main import get_command

from lakehouse_backfill import fault_points
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.ports.compute import ComputePorts
from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.project import Project
from lakehouse_backfill.report import page
from lakehouse_backfill.wiring.adapters import Adapters
from tests.chaos.engine import PlainEngine
from tests.chaos.faults import Outage


class LabWiring(Adapters):
    """The real adapters, but for Spark and Great Expectations; commits may fail."""

    outage: Outage | None = None

    @cached_property
    def catalog(self) -> Any:
        found = super()._open_catalog(must_exist=False)
        if self.outage is not None:
            self.outage.wrap(found)
        return found

    def preload_suites(self) -> None:
        """No suite is used here."""

    def _make_compute_ports(self) -> ComputePorts:
        engine: Any = PlainEngine(self.catalog)
        return fault_points.watch_ports(
            ComputePorts(**{one.name: engine for one in fields(ComputePorts)})
        )


@cache
def command() -> Any:
    """The program's command line, as its own `app` builds it at every call: built once here."""
    return get_command(app)


def run(arguments: tuple[str, ...], folder: Path, said: Path, hook: Any, outage: Any) -> None:
    """Run one command as a user would, and end this process with its exit code."""
    fault_points.install_hook(hook)
    LabWiring.outage = outage
    if "evidence" not in arguments:
        _render_no_page()
    with said.open("w", encoding="utf-8", buffering=1) as lines:
        sys.stdout = sys.stderr = lines
        os._exit(exit_code(arguments, folder))


def _render_no_page() -> None:
    """Save a quarter of the time: only the page of the verb that is about it is looked at."""
    page.render_page = lambda document: f"the page of {document['run']['run_id']}\n"
    page.render_index = lambda *_: "the index of all runs\n"


def exit_code(arguments: tuple[str, ...], folder: Path) -> int:
    """Run one command in this process; 70 when something else than the program ended it."""

    def opener(where: Path, profile: str | None, progress: Progress) -> Project:
        found = Adapters.open(where, profile, progress)
        return Project(LabWiring(found.folder, found.profile, progress, found.profile_name))

    try:
        command()(
            ["--project", str(folder), "--json", *arguments],
            obj=opener,
            prog_name="lakehouse-backfill",
        )
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # noqa: BLE001 (the test reads it)
        traceback.print_exc(file=sys.stderr)
        return 70
    return 0
