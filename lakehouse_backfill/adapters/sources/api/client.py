"""Requests with retries: at the declared rate, and with the pauses that the server asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

from lakehouse_backfill.adapters.sources.api.config import ApiEndpoint
from lakehouse_backfill.adapters.sources.api.errors import (
    RetryableAnswer,
    large_answer,
    refused_answer,
    refused_request,
    source_down,
    undecodable_answer,
)
from lakehouse_backfill.ports.system import Clock

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session
    from tenacity import RetryCallState

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_BACKOFF_S = 60.0
#: Larger numbers of X-RateLimit-Reset are seconds since 1970, smaller ones seconds from now.
_EPOCH_S = 1_000_000_000
_READ_AT_ONCE = 1024 * 1024


class ApiAnswer(NamedTuple):
    """A response that was received whole."""

    status: int
    body: str


class ApiClient:
    """Calls one API; keeps its connection."""

    def __init__(self, endpoint: ApiEndpoint, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._session: Session | None = None
        self._not_before: datetime | None = None

    def get(self, parameters: Mapping[str, str]) -> ApiAnswer:
        """Return the answer with status 200; retries what may pass.

        Raises SourceDown when it does not pass, Blocked for an answer that a retry would get again.
        """
        import tenacity

        declared = self._endpoint.declared
        attempts = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(declared.retries + 1),
            wait=self._pause_after,
            retry=tenacity.retry_if_exception_type(RetryableAnswer),
            sleep=self._clock.sleep,
            reraise=True,
        )
        try:
            return attempts(self._get_once, parameters)
        except RetryableAnswer as error:
            raise source_down(self._endpoint.url, error.problem) from None

    def _get_once(self, parameters: Mapping[str, str]) -> ApiAnswer:
        import requests

        self._wait_for_turn()
        if self._session is None:
            self._session = requests.Session()
            # Else a .netrc file could put another secret into the Authorization header.
            self._session.auth = _unchanged
        declared = self._endpoint.declared
        try:
            # A redirect could carry the secret header to another host.
            answer = self._session.get(
                self._endpoint.url, params=dict(parameters), headers=self._endpoint.headers,
                timeout=declared.timeout_s, allow_redirects=False, stream=True,
            )  # fmt: skip
            with answer:
                content = self._read(answer) if answer.status_code == requests.codes.ok else b""
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
            requests.exceptions.ContentDecodingError,
        ) as error:
            raise RetryableAnswer(f"no answer ({type(error).__name__})") from None
        except (requests.RequestException, ValueError) as error:
            # Its text can hold a header, and so the secret.
            raise refused_request(self._endpoint.url, type(error).__name__) from None
        self._keep_limits(answer)
        if answer.status_code in _RETRIED:
            raise RetryableAnswer(f"answers {answer.status_code}", self._asked_pause_s(answer))
        if answer.status_code != requests.codes.ok:
            raise refused_answer(self._endpoint.url, answer.status_code)
        encoding = answer.encoding if "charset" in _type_of(answer) else "utf-8"
        try:
            body = content.decode(encoding or "utf-8")
        except (UnicodeDecodeError, LookupError):
            # A text with replaced characters would be landed as if it had come so.
            raise undecodable_answer(self._endpoint.url, encoding or "utf-8") from None
        return ApiAnswer(answer.status_code, body)

    def _read(self, answer: Response) -> bytes:
        """Return the whole body; raises Blocked for one above max_response_mib."""
        most_mib = self._endpoint.declared.max_response_mib
        chunks, size = [], 0
        for chunk in answer.iter_content(_READ_AT_ONCE):
            size += len(chunk)
            if size > most_mib * 1024 * 1024:
                raise large_answer(self._endpoint.url, most_mib)
            chunks.append(chunk)
        return b"".join(chunks)

    def _wait_for_turn(self) -> None:
        """Wait until the next request may be sent."""
        now = self._clock.now()
        if self._not_before is not None and now < self._not_before:
            pause = (self._not_before - now).total_seconds()
            if pause > 1 / self._endpoint.declared.requests_per_second:
                self._checked_pause(pause)
            self._clock.sleep(pause)
        self._not_before = None
        self._hold(1 / self._endpoint.declared.requests_per_second)

    def _hold(self, seconds: float) -> None:
        from datetime import timedelta

        until = self._clock.now() + timedelta(seconds=seconds)
        self._not_before = max(until, self._not_before) if self._not_before else until

    def _keep_limits(self, answer: Response) -> None:
        """Wait before the next request when the server says that the last one used up its limit."""
        headers = answer.headers
        remaining = headers.get("X-RateLimit-Remaining", headers.get("RateLimit-Remaining"))
        reset = headers.get("X-RateLimit-Reset", headers.get("RateLimit-Reset"))
        if remaining is None or reset is None or _number(remaining) != 0:
            return
        seconds = _number(reset)
        if seconds is None:
            return
        if seconds > _EPOCH_S:
            seconds -= self._clock.now().timestamp()
        # Judged before the next request: this answer counts.
        self._hold(max(0.0, min(seconds, float(_EPOCH_S))))

    def _asked_pause_s(self, answer: Response) -> float | None:
        """Return the pause of Retry-After: seconds, or a date."""
        text = answer.headers.get("Retry-After")
        if text is None:
            return None
        seconds = _number(text)
        if seconds is None:
            try:
                until = parsedate_to_datetime(text)
            except (ValueError, OverflowError):
                return None
            if until.tzinfo is None:
                until = until.replace(tzinfo=timezone.utc)
            seconds = (until - self._clock.now()).total_seconds()
        return self._checked_pause(max(0.0, seconds))

    def _checked_pause(self, seconds: float) -> float:
        longest = self._endpoint.declared.longest_wait_s
        if seconds > longest:
            problem = f"asks for a pause of {seconds:.0f} s; longest_wait_s is {longest:.0f}"
            raise source_down(self._endpoint.url, problem)
        return seconds

    def _pause_after(self, state: RetryCallState) -> float:
        """Return the pause before the next attempt: the server's, else growing with jitter."""
        import tenacity

        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, RetryableAnswer) and error.pause_s is not None:
            return error.pause_s
        return tenacity.wait_random_exponential(0.5, _LONGEST_BACKOFF_S)(state)


def _unchanged(request: PreparedRequest) -> PreparedRequest:
    """Leave the headers of a request as they are declared."""
    return request


def _type_of(answer: Response) -> str:
    return str(answer.headers.get("Content-Type", "")).lower()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


#: Makes a client; tests give one that answers from memory.
ClientMaker = Callable[[], ApiClient]
