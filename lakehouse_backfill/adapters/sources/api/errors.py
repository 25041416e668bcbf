"""Errors of APIs: which of them a retry may mend is in their type."""

from __future__ import annotations

from lakehouse_backfill.errors import Blocked, SourceDown

_STATE = "what was landed before it stays; the landing is continued by the same command"


class RetryableAnswer(Exception):
    """An answer, or none, after which the request is tried again; a pause that was asked for."""

    def __init__(self, problem: str, pause_s: float | None = None) -> None:
        """Set the problem, and the pause in seconds that the server asks for."""
        super().__init__(problem)
        self.problem = problem
        self.pause_s = pause_s


def source_down(url: str, problem: str) -> SourceDown:
    """Build the error for an API that does not answer; a retry may help."""
    return SourceDown(f"{url}: {problem}", state=_STATE, fix="give the command again later")


def refused_answer(url: str, status: int) -> Blocked:
    """Build the error for an answer that a retry would get again."""
    hints = {
        401: "check the variable of `api.credentials`",
        403: "check the rights of the credentials",
        404: "check `api.url`",
        410: "the page is gone: land again with --reconcile",
    }
    fix = hints.get(status, "check `api.url`, its parameters and headers")
    return Blocked(f"{url} answers {status}", state=_STATE, fix=f"{fix}, then give it again")


def bad_answer(url: str, problem: str) -> Blocked:
    """Build the error for an answer that is no page of records; it is stored as it came."""
    return Blocked(
        f"{url}: {problem}",
        state=_STATE,
        fix="look at the newest row of the table of responses; the page is asked for again by the "
        "same command",
    )
