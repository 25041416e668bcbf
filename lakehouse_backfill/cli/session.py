"""What the commands share: options of the program, arguments, and the fast start.

The fast start leaves out what a command that computes nothing does not need.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakehouse_backfill.cli.group import build_envelope, clean_text, output_to_stdout, write_json
from lakehouse_backfill.command_lines import Invocation

if TYPE_CHECKING:
    from lakehouse_backfill.cli.progress import Heartbeat
    from lakehouse_backfill.ports.system import Progress
    from lakehouse_backfill.project import Project
    from lakehouse_backfill.results.base import Result


def tune_gc() -> None:
    """Make Python look for cycles less often.

    Loading the libraries makes many objects that live on; searching them again and again takes a
    fifth of a short command's time.
    """
    gc.set_threshold(200_000, 20, 20)


def use_system_memory() -> None:
    """Make Arrow take memory from the C library; must be called before pyarrow is loaded.

    Arrow's own allocator keeps memory for each thread that reads: a diff takes a quarter more. For
    whoever chooses it all the same, it grows by small pages: each thread would else be given huge
    ones at once, which for a short command take longer to clear than the files to read.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")


#: Parameters of glibc's `mallopt` and their values: the bytes that may stay free at the end of the
#: heap, and the largest array that is allocated in the heap (the maximum that glibc accepts).
_TRIM_THRESHOLD, _TRIM_BYTES = -1, 256 * 1024 * 1024
_MMAP_THRESHOLD, _MAX_HEAP_ARRAY_BYTES = -3, 32 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Configure glibc to keep freed memory; return whether it does (only glibc can).

    Touching fresh memory takes a third of a small diff.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    is_trim_set = mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
    return bool(mallopt(_MMAP_THRESHOLD, _MAX_HEAP_ARRAY_BYTES) and is_trim_set)


class _PandasBlocker:
    """Finder for imports that says that there is no pandas; it leaves all else to the others."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is left out", name=name)


def load_pyarrow_without_pandas() -> None:
    """Load pyarrow's datasets without pandas.

    `import pyarrow.dataset` loads pandas only to learn whether it is there, which takes longer
    than everything else that such a command loads. pyarrow of this process then knows no pandas.
    """
    if "pyarrow.dataset" in sys.modules:
        return
    sys.meta_path.insert(0, _PandasBlocker)
    try:
        import pyarrow.dataset  # noqa: F401 (loaded for its effect)
    finally:
        sys.meta_path.remove(_PandasBlocker)


RunArgument = Annotated[str, typer.Argument(help="The run, as plan names it.", metavar="RUN")]
RunOrCascadeArgument = Annotated[
    str, typer.Argument(help="The run, or the cascade, as plan names it.", metavar="RUN|CASCADE")
]
ProductArgument = Annotated[
    str, typer.Argument(help="The product, as its contract names it.", metavar="PRODUCT")
]
ByOption = Annotated[
    str | None, typer.Option(help="Who acts; you if left out.", metavar="WHO", show_default=False)
]
#: What names a state of a table.
TABLE_STATE_HELP = "namespace.table, with @snapshot-id, @tag, @branch or @timestamp"
ReasonOption = Annotated[str, typer.Option(help="Why, in a sentence.", metavar="TEXT")]
NoteOption = Annotated[
    str, typer.Option(help="What was learned; the next plan shows it.", metavar="TEXT")
]
#: As in the model, which takes 0.3 s to import: too long for --help.
REASON_CODES = (
    "new_field",
    "bug_fix",
    "missing_source",
    "late_data",
    "schema_evolution",
    "new_product",
    "compliance",
    "migration",
)


def names_cascade(text: str) -> bool:
    """Return whether an argument names a cascade, and not a run."""
    return text.startswith("cx-")


def check_reason_code(code: str) -> str:
    """Return the reason code; raises typer.BadParameter when it is none."""
    if code not in REASON_CODES:
        raise typer.BadParameter(f"{code!r} is not one of {', '.join(REASON_CODES)}")
    return code


ReasonCodeOption = Annotated[
    str,
    typer.Option(
        callback=check_reason_code, metavar="CODE", help=f"One of {', '.join(REASON_CODES)}."
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Take the run from a process that is dead or stuck; it can write nothing any more.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen; change nothing.")
]


ProjectOpener = Callable[[Path, "str | None", "Progress"], "Project"]


def open_project(folder: Path, profile: str | None, progress: Progress) -> Project:
    """Open a project of this machine."""
    from lakehouse_backfill.project import Project

    project = Project.open(folder, profile, progress=progress)
    project.wiring.is_one_command = True
    return project


def open_and_freeze(folder: Path, profile: str | None, progress: Progress) -> Project:
    """Open a project in a process of one command, with the libraries that are loaded by then.

    They stay to the end, so Python no longer looks for cycles among them; nor soon after.
    """
    project = open_project(folder, profile, progress)
    gc.freeze()
    return project


@dataclass(frozen=True)
class Session:
    """The options before the command."""

    folder: Path
    profile: str | None
    json: bool
    quiet: bool
    opener: ProjectOpener
    sign_with: str | None = None
    command: str = ""
    #: Of the command that runs.
    heartbeats: list[Heartbeat] = field(default_factory=list)

    def project(self, *, computes: bool = False) -> Project:
        """Open the project; loads no engine, and pandas only for a command that computes."""
        if not computes:
            load_pyarrow_without_pandas()
        project = self.opener(self.folder, self.profile, self._progress())
        if self.sign_with:
            project.sign_with(self.sign_with)
        return project

    def show(self, command: str, result: Result) -> None:
        """Print what a command returned; exit with the code of the error it stands for.

        Raises OutputLost where stdout is closed or cannot be written: the command has ended.
        """
        invocation = Invocation.of(self.folder, self.profile)
        error = result.error()
        if error is not None:
            error.complete_commands(invocation.complete)
        with output_to_stdout():
            if self.json:
                write_json(build_envelope(command, result.to_dict(), error), sys.stdout)
            else:
                from lakehouse_backfill.cli.render import render_result

                render_result(result, sys.stdout, invocation)
            sys.stdout.flush()
        if not self.json:
            for warning in result.warnings:
                sys.stderr.write(f"warning: {clean_text(warning)}\n")
            if error is not None:
                sys.stderr.write(f"{clean_text(error)}\n")
        if error is not None:
            raise typer.Exit(error.exit_code)

    def echo(self, text: str) -> None:
        """Print a line of a story: on stdout, or on stderr when stdout holds the JSON object."""
        stream = sys.stderr if self.json else sys.stdout
        stream.write(f"{clean_text(text)}\n")
        stream.flush()

    def _progress(self) -> Progress:
        from lakehouse_backfill.cli.progress import Heartbeat, LineProgress, make_progress

        progress = make_progress(sys.stderr, is_silent=self.json or self.quiet)
        if isinstance(progress, LineProgress):
            self.heartbeats.append(Heartbeat(self.command, progress).start())
        return progress

    def end_progress(self) -> None:
        """End what is shown while the command runs."""
        while self.heartbeats:
            self.heartbeats.pop().stop()


#: The session of the command that runs.
_CURRENT: ContextVar[Session] = ContextVar("session")


def begin_session(session: Session) -> None:
    """Let the command that follows find its session."""
    _CURRENT.set(session)


def current_session() -> Session:
    """Return the session of the command that runs."""
    return _CURRENT.get()


def current_project(*, computes: bool = False) -> Project:
    """Open the project of the command that runs."""
    return current_session().project(computes=computes)


def acting_person(by: str | None) -> str:
    """Name the acting person: as given, or as logged in; raises ConfigError for no name."""
    from lakehouse_backfill.adapters.system.process import resolve_actor

    return resolve_actor(by)


def open_in_browser(page: Path) -> bool:
    """Show a page in the reader's browser (BROWSER, or the system's); return whether it started."""
    import webbrowser

    return webbrowser.open(page.resolve().as_uri())


def split_list(texts: list[str] | None) -> tuple[str, ...]:
    """Split `a,b` and repeated options into their parts.

    Raises BadParameter for a list without any, as an unset variable of a shell leaves it: as if the
    option were left out, the command would be about everything.
    """
    parts = tuple(part.strip() for text in texts or () for part in text.split(","))
    if texts and not any(parts):
        raise typer.BadParameter("a list that is given must name something")
    return tuple(part for part in parts if part)
