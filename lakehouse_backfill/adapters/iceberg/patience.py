"""Trying again with growing, random pauses within a time budget."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from pyiceberg.exceptions import BadRequestError, CommitFailedException

from lakehouse_backfill.adapters.iceberg.catalog import is_sqlite_locked, translate_errors
from lakehouse_backfill.errors import TooBusy

COMMIT_BUDGET_S = 30.0
_PAUSE_STEP_S = 0.02
_MAX_PAUSE_S = 0.5


def retry_attempts(budget_s: float) -> Iterator[int]:
    """Yield 1, 2, 3 … with pauses between, until the budget is spent."""
    end = time.monotonic() + budget_s
    number = 1
    while True:
        yield number
        pause = min(_PAUSE_STEP_S * number, _MAX_PAUSE_S) * random.uniform(0.5, 1.5)  # noqa: S311 (jitter)
        if time.monotonic() + pause > end:
            return
        time.sleep(pause)
        number += 1


def commit_with_retry(
    action: Callable[[], None], what: str, budget_s: float = COMMIT_BUDGET_S
) -> None:
    """Run `action` again while other writers win; raises TooBusy when the budget is spent.

    `action` loads the table afresh and may be repeated without harm.
    """
    for _ in retry_attempts(budget_s):
        try:
            with translate_errors():
                action()
        except TooBusy:
            continue
        except Exception as error:
            if error.__cause__ is not None and is_sqlite_locked(error.__cause__):
                continue
            raise
        return
    raise TooBusy(
        f"other writers kept winning for {budget_s:.0f} s: {what}",
        fix="try again, or pause the writer",
    )


def is_lost_race(error: Exception) -> bool:
    """Tell whether the commit certainly did not land because another writer was first."""
    if isinstance(error, CommitFailedException | TooBusy) or is_sqlite_locked(error):
        return True
    # A commit on another branch takes the sequence number, and leaves the head as it was: servers
    # answer 400 then instead of 409 (SeaweedFS also when the head moved), PyIceberg's own catalogs
    # raise a ValueError. Either way the metadata was refused before it was written.
    is_refused = isinstance(error, (BadRequestError, ValueError))
    return is_refused and "sequence number" in str(error)
