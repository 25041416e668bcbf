"""Starts the engine of a project: its warm session, or a Spark for the run at hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.config.contracts import may_restrict_columns
from lakehouse_backfill.domain.contract import Profile
from lakehouse_backfill.errors import NotFound
from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.wiring.adapters import STATE_FOLDER

if TYPE_CHECKING:
    from lakehouse_backfill.wiring.adapters import Adapters

#: An estimate, not measured: with so many input rows the start still weighs more than the work.
FEW_ROWS = 200_000


def expect_run(wiring: Adapters, run_id: str) -> None:
    """Have Spark started for this run alone: of few rows, it starts sooner.

    For a process that ends with its command: a session that lives on may meet many rows later.
    """
    # That there is no such run is told where the run is looked for.
    with suppress(NotFound):
        wiring.has_few_rows = wiring.context.runs.plan(run_id).estimate.input_rows <= FEW_ROWS


def open_engine(wiring: Adapters) -> Any:
    """Return the session of the wiring's profile, with values hidden where contracts ask for it."""
    hides = may_restrict_columns(wiring.folder)
    session = start_spark(
        wiring.profile, wiring.folder, wiring.progress,
        hides_values=hides, few_rows=wiring.has_few_rows,
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
    few_rows: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> Any:
    """Open the Spark session; what makes it long is said before anything of Spark is loaded.

    A warm session of the project is used where that is possible. With `few_rows` another one starts
    sooner, and is slower on many rows; `meanwhile` is called while its JVM starts.
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
        session = warm.open_session(progress)
        if session is not None:
            return session
    progress.start(describe_start(whole, folder), 0, "")
    try:
        from lakehouse_backfill.adapters.spark.session.session import open_session

        return open_session(
            whole, folder, hides_values=hides_values, few_rows=few_rows, meanwhile=meanwhile
        )
    finally:
        progress.finish()
