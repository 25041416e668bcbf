"""When a run may be published: inside its window, if the manifest declares one."""

from __future__ import annotations

from datetime import datetime, time, timedelta

from lakehouse_backfill.domain.manifest import PublishWindow
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import Blocked


def next_opening(window: PublishWindow, now: datetime) -> datetime | None:
    """Tell when the window opens next; None: it is open.

    The window holds its first minute and not its last; `from` equal to `to` is the whole day.
    """
    first, last = time.fromisoformat(window.from_), time.fromisoformat(window.to)
    clock = now.time().replace(tzinfo=None)
    crosses = first >= last
    is_open = clock >= first or clock < last if crosses else first <= clock < last
    if is_open:
        return None
    today = datetime.combine(now.date(), first, tzinfo=now.tzinfo)
    return today if clock < first else today + timedelta(days=1)


def require_window_open(plan: Plan, now: datetime) -> None:
    """Raise Blocked, with the time at which it opens, outside the run's publish window."""
    window = plan.resolved.manifest.safety.publish_window
    moment = None if window is None else next_opening(window, now)
    if window is None or moment is None:
        return
    at = moment.isoformat(timespec="minutes")
    raise Blocked(
        f"{plan.run_id} may be published between {window.from_} and {window.to} UTC; that opens "
        f"at {at}",
        state="nothing was published; the result stays accepted",
        fix=f"give the same command after {at}",
        data={"opens_at": at},
    )
