"""What is recorded of an attempt of job code."""

from __future__ import annotations

import pytest

from lakehouse_backfill.adapters.spark.guard.process_guard import ProcessGuard, SideEffectStopped

FILE, FOLDER = "/project/jobs/a.py", "/project/"


def attempted(guard: ProcessGuard) -> tuple[str, str]:
    """Announce that a function of a job makes a folder with a value in its name."""
    guard.folders, guard.running = (FOLDER,), (FILE, 7)
    with pytest.raises(SideEffectStopped) as raised:
        guard.check_event("os.mkdir", ("/nowhere-ana@secret.example", 0o777, -1))
    assert [(one["sink"], one["file"], one["line"]) for one in guard.attempts] == [
        ("file", "jobs/a.py", 7)
    ]
    return guard.attempts[0]["what"], str(raised.value)


@pytest.mark.req("E7")
def test_an_attempt_shows_no_arguments_where_values_are_hidden() -> None:
    guard = ProcessGuard()
    assert attempted(guard)[0] == "os.mkdir('/nowhere-ana@secret.example')"

    guard = ProcessGuard()
    guard.hides_arguments = lambda: True

    what, text = attempted(guard)
    assert what.startswith("os.mkdir, whose arguments may hold a restricted value")
    assert "ana" not in what + text
