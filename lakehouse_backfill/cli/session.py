"""What the program's options say, and the two things every command does with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lakehouse_backfill.cli.answers import build_envelope, error_of_result, write_json
from lakehouse_backfill.cli.clean import clean_text

if TYPE_CHECKING:
    from lakehouse_backfill.ports.progress import Progress
    from lakehouse_backfill.project import Project

ProjectOpener = Callable[[Path, "str | None", "Progress"], "Project"]


def open_project(folder: Path, profile: str | None, progress: Progress) -> Project:
    """Open a project of this machine."""
    from lakehouse_backfill.project import Project

    return Project.open(folder, profile, progress=progress)


@dataclass(frozen=True)
class Session:
    """The options before the command."""

    folder: Path
    profile: str | None
    json: bool
    quiet: bool
    opener: ProjectOpener

    def project(self, *, computes: bool = False) -> Project:
        """Open the project; loads no engine, and pandas only for a command that computes."""
        if not computes:
            from lakehouse_backfill.cli.light import load_pyarrow_without_pandas

            load_pyarrow_without_pandas()
        return self.opener(self.folder, self.profile, self._progress())

    def show(self, context: typer.Context, data: Mapping[str, Any]) -> None:
        """Print a result, for people or as JSON; exit with its code when it says no."""
        command = command_name(context)
        error = error_of_result(command, data)
        if self.json:
            write_json(build_envelope(command, data, error), sys.stdout)
        else:
            from lakehouse_backfill.cli.render import render_result

            render_result(command, data, sys.stdout)
            for warning in data.get("warnings", ()):
                sys.stderr.write(f"warning: {clean_text(warning)}\n")
            if error is not None:
                sys.stderr.write(f"{clean_text(error)}\n")
        sys.stdout.flush()
        if error is not None:
            raise typer.Exit(error.exit_code)

    def echo(self, text: str) -> None:
        """Print a line of a story: on stdout, or on stderr when stdout holds the JSON object."""
        stream = sys.stderr if self.json else sys.stdout
        stream.write(f"{clean_text(text)}\n")
        stream.flush()

    def _progress(self) -> Progress:
        from lakehouse_backfill.cli.progress import make_progress

        return make_progress(sys.stderr, is_silent=self.json or self.quiet)


def current_session(context: typer.Context) -> Session:
    """Give the session of a command."""
    found = context.find_object(Session)
    if found is None:
        raise RuntimeError("commands run below the program's callback")
    return found


def command_name(context: typer.Context) -> str:
    """Name the command without the program: `plan`, `product add`."""
    return context.command_path.partition(" ")[2]


def acting_person(by: str | None) -> str:
    """Name the acting person: as given, or as logged in; raises ConfigError for no name."""
    from lakehouse_backfill.adapters.system.person import resolve_actor

    return resolve_actor(by)


def split_list(texts: list[str] | None) -> tuple[str, ...]:
    """Split `a,b` and repeated options into their parts."""
    return tuple(part.strip() for text in texts or () for part in text.split(",") if part.strip())
