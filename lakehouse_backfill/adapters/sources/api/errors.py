"""Errors of APIs: which of them a retry may mend is in their type."""

from __future__ import annotations

from urllib.parse import urlsplit

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
    return SourceDown(f"{_shown(url)}: {problem}", state=_STATE, fix="give the command again later")


def refused_answer(url: str, status: int) -> Blocked:
    """Build the error for an answer that a retry would get again."""
    hints = {
        401: "check the variable of `api.credentials`",
        403: "check the rights of the credentials",
        404: "check `api.url`",
        410: "the page is gone: land again with --reconcile",
    }
    fix = hints.get(status, "check `api.url`, its parameters and headers")
    return Blocked(
        f"{_shown(url)} answers {status}", state=_STATE, fix=f"{fix}, then give it again"
    )


def refused_request(url: str, kind: str) -> Blocked:
    """Build the error for a request that cannot be sent as it is declared."""
    return Blocked(
        f"{_shown(url)}: the request cannot be sent ({kind})",
        state=_STATE,
        fix="check `api.url`, its parameters and headers, then give it again",
    )


def undecodable_answer(url: str, encoding: str) -> Blocked:
    """Build the error for an answer that is no text in the encoding that it names."""
    return Blocked(
        f"{_shown(url)}: an answer is no text in {encoding[:40]!a}; it was not stored",
        state=_STATE,
        fix="tell the vendor; the page is asked for again by the same command",
    )


def large_answer(url: str, most_mib: int) -> Blocked:
    """Build the error for an answer that is too large; it was not stored."""
    return Blocked(
        f"{_shown(url)}: an answer is larger than max_response_mib: {most_mib}",
        state=_STATE,
        fix="ask for smaller pages in `api.parameters`, or raise `api.max_response_mib`",
    )


def _shown(url: str) -> str:
    """Return a URL as errors show it: a query can hold a key."""
    return urlsplit(url)._replace(query="", fragment="").geturl()


def bad_answer(url: str, problem: str) -> Blocked:
    """Build the error for an answer that is no page of records; it is stored as it came."""
    return Blocked(
        f"{_shown(url)}: {problem}",
        state=_STATE,
        fix="look at the newest row of the table of responses; the page is asked for again by the "
        "same command",
    )
