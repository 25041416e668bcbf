"""Starts the engine of a project: its warm session, or a Spark for the run at hand.

A JVM is begun before anything of PyIceberg is loaded, so nothing of it is imported here at the top.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.config.contracts import may_restrict_columns
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import BackfillError, NotFound
from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.wiring.adapters import STATE_FOLDER
from lakehouse_backfill.wiring.places import engine_profile, expect_place

if TYPE_CHECKING:
    from lakehouse_backfill.wiring.adapters import Adapters


#: So many runs that were approved here are remembered; it only saves time.
_REMEMBERED = 50


def end_run(wiring: Adapters, run_id: str) -> None:
    """Forget a run that has computed all; what its JVM has loaded is worth keeping."""
    from lakehouse_backfill.adapters.spark.session.jvm import keep_classes

    keep_classes()
    with suppress(OSError):
        (wiring.folder / STATE_FOLDER / "expected-rows" / run_id).unlink(missing_ok=True)


def remember_rows(wiring: Adapters, run_id: str, rows: int) -> None:
    """Note how many input rows a run has that is likely to come next."""
    folder = wiring.folder / STATE_FOLDER / "expected-rows"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / run_id).write_text(str(rows), encoding="ascii")
        for old in sorted(folder.iterdir(), key=lambda one: -one.stat().st_mtime)[_REMEMBERED:]:
            old.unlink(missing_ok=True)


def expect_run(wiring: Adapters, run_id: str) -> None:
    """Have Spark started where this run computes, and if alone for it, by its rows.

    Of few rows, it starts sooner. Only for a process that ends with its command: a session that
    lives on may meet many rows later. Where its rows are remembered, its JVM is started at once,
    while the lake is opened; a run of another place than the profile's own gets another one.
    """
    if wiring.is_one_command:
        _begin_early(wiring, run_id)
    # That there is no such run is told where the run is looked for.
    with suppress(NotFound):
        plan = wiring.context.runs.plan(run_id)
        expect_place(wiring, plan.resolved.manifest.compute)
        if wiring.is_one_command:
            wiring.expected_rows = plan.estimate.input_rows


def _begin_early(wiring: Adapters, run_id: str) -> None:
    profile, folder = wiring.profile, wiring.folder
    state = folder / STATE_FOLDER
    if "spark.remote" in profile.spark or (state / "session").exists():
        return
    from lakehouse_backfill.adapters.spark.session.jvm import begin_early
    from lakehouse_backfill.adapters.spark.session.settings import SparkSettings, has_few_rows

    # What is in the way is told where the session is opened, after the run has been checked.
    with suppress(BackfillError, OSError, ValueError):
        rows = int((state / "expected-rows" / Path(run_id).name).read_text(encoding="ascii"))
        if has_few_rows(rows):
            hides = may_restrict_columns(folder)
            settings = SparkSettings.for_session(profile, folder, hides_values=hides, rows=rows)
            begin_early(settings, may_archive=settings.may_archive(hides_values=hides, rows=rows))


def open_engine(wiring: Adapters) -> Any:
    """Return the session of the wiring's profile, with values hidden where contracts ask for it."""
    hides = may_restrict_columns(wiring.folder)
    session = start_spark(
        engine_profile(wiring), wiring.folder, wiring.progress,
        hides_values=hides, expected_rows=wiring.expected_rows,
        meanwhile=_load_suites if wiring.judges_rows else None,
    )  # fmt: skip
    from lakehouse_backfill.adapters.spark.session.session import hide_values

    if hides:
        hide_values()
    return session


def _load_suites() -> None:
    from lakehouse_backfill.adapters.quality.judge import start_gx_import

    start_gx_import()


def start_spark(
    profile: Profile,
    folder: Path,
    progress: Progress,
    *,
    hides_values: bool = False,
    expected_rows: int | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Any:
    """Open the Spark session; what makes it long is said before anything of Spark is loaded.

    A warm session of the project is used where that is possible. Another one that expects few rows
    starts sooner, and is slower on many; `meanwhile` is called while its JVM starts.
    """
    from lakehouse_backfill.adapters.iceberg.catalog import with_pyiceberg_settings
    from lakehouse_backfill.adapters.spark.session.settings import describe_start

    whole, state = with_pyiceberg_settings(profile), folder / STATE_FOLDER
    is_running = "spark.remote" in whole.spark or (state / "session").exists()
    if is_running and meanwhile is not None:
        meanwhile()
    if (state / "session").exists():
        from lakehouse_backfill.wiring.warm_session import WarmSessions

        warm = WarmSessions(folder, whole, "", state, hides_values=hides_values)
        session = warm.open_session(progress, expected_rows)
        if session is not None:
            return session
    progress.start(describe_start(whole, folder), 0, "")
    try:
        from lakehouse_backfill.adapters.spark.session.session import open_session

        return open_session(
            whole,
            folder,
            hides_values=hides_values,
            expected_rows=expected_rows,
            meanwhile=meanwhile,
        )
    finally:
        progress.finish()
