"""How a request is sent to a REST catalog: with an idempotency key, and again where that is safe.

The specification of Iceberg's REST catalog: a server that announces `idempotency-key-lifetime`
executes a change once for each `Idempotency-Key`, and answers it again; 503 with `Retry-After`
says that the request was not taken.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, quote_plus, urlsplit
from uuid import UUID

from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from requests.exceptions import ChunkedEncodingError, ConnectTimeout, Timeout
from requests.exceptions import ConnectionError as NoConnectionError
from urllib3.exceptions import NewConnectionError

from lakehouse_backfill.adapters.iceberg.clock import ReferenceClock

KEY_HEADER = "Idempotency-Key"
#: How long one request is sent again; the budget of a commit is as long.
PATIENCE_S = 30.0
_MAX_SENDINGS_UNANSWERED = 6
_FIRST_PAUSE_S = 0.05
#: Between sendings to a server that asks to wait, however short a time it asks for.
_MIN_WAIT_S = 0.1
#: A `Retry-After` that cannot be read.
_DEFAULT_WAIT_S = 1.0
_LATER_STATUSES = (429, 503)
_UNKNOWN_STATUSES = (500, 502, 503, 504)
_IN_PROGRESS_STATUS = 409
_UNAUTHORIZED_STATUSES = (401, 419)
#: The requests of the specification that change something and take a key.
_CHANGE_PATH = re.compile(
    r"/(namespaces(/[^/]+(/(properties|tables|register|views|register-view))?)?"
    r"|namespaces/[^/]+/tables/[^/]+(/unregister)?|namespaces/[^/]+/views/[^/]+"
    r"|tables/rename|views/rename|transactions/commit)$"
)
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)


@dataclass
class Idempotency:
    """What a server announces of idempotency keys, and keys of requests that are repeated."""

    #: How long a key may be sent again, in seconds; None: the server knows no keys.
    lifetime_s: float | None = None
    #: Changes that were answered by 401, by what is sent again with a new token.
    _repeated: dict[tuple[str, str, Any], _Sendings] = field(default_factory=dict)

    def learn(self, config: bytes) -> None:
        """Read the answer to `/v1/config`; whatever cannot be read announces nothing."""
        try:
            announced = json.loads(config).get("idempotency-key-lifetime")
        except (ValueError, AttributeError):
            announced = None
        # A key that is forgotten at once protects nothing.
        self.lifetime_s = (duration_s(announced) if isinstance(announced, str) else None) or None

    def take_sendings(self, request: PreparedRequest, now: float) -> _Sendings:
        """Return the sendings of the request so far: none, with a new key, unless it is repeated.

        The same change is a new one when it comes later than a new token takes.
        """
        kept = self._repeated.pop(_identity(request), None)
        return kept if kept is not None and now <= kept.end else _Sendings(new_key())

    def keep_sendings(self, request: PreparedRequest, sent: _Sendings) -> None:
        """Keep them for the next request that is the same."""
        self._repeated[_identity(request)] = sent


class RequestSender(BaseAdapter):
    """Sends requests through the session's own adapter; one for each session of a catalog."""

    def __init__(
        self,
        through: BaseAdapter,
        idempotency: Idempotency,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        *,
        reference: ReferenceClock | None = None,
    ) -> None:
        """Wrap `through`, which signs, verifies and sends; `reference` notes when it answered."""
        super().__init__()
        self._through = through
        self._idempotency = idempotency
        self._sleep = sleep
        self._clock = clock
        self._reference = reference or ReferenceClock()

    def close(self) -> None:
        """Close the connections."""
        self._through.close()

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        """Send the request until it is answered; its answer says how often it was sent.

        A change is sent again after a lost answer only with the key that it was sent with before,
        and any request after 503 or 429 with `Retry-After`. The last answer is returned, or its
        error raised, when the patience is spent.
        """
        sent = self._begin(request)
        while True:
            since = self._reference.uptime()
            try:
                response = self._through.send(request, *args, **kwargs)
                self._reference.note_answer(response.headers, since)
                # An answer that breaks off is lost too.
                _ = sent.key and response.content
            except (NoConnectionError, ChunkedEncodingError, Timeout) as error:
                pause_s = sent.pause_after_error(error)
                if pause_s is None or self._clock() + pause_s > sent.end:
                    raise
            else:
                pause_s = sent.pause_after_answer(response)
                if pause_s is None or self._clock() + pause_s > sent.end:
                    break
                response.close()
            self._sleep(pause_s)
        if sent.key is not None and response.status_code in _UNAUTHORIZED_STATUSES:
            sent.end = self._clock() + PATIENCE_S
            self._idempotency.keep_sendings(request, sent)
        if _path(request).endswith("/v1/config") and response.ok:
            self._idempotency.learn(response.content)
        vars(response)[_SENT] = sent
        return response

    def _begin(self, request: PreparedRequest) -> _Sendings:
        now, lifetime_s = self._clock(), self._idempotency.lifetime_s
        sent = _Sendings()
        if lifetime_s is not None and is_change(request):
            sent = self._idempotency.take_sendings(request, now)
            request.headers[KEY_HEADER] = str(sent.key)
        if sent.count == 0:
            sent.end = now + min(PATIENCE_S, lifetime_s or PATIENCE_S)
        return sent


class WaitLimit(BaseAdapter):
    """Ends requests that are not connected, or not answered, in time: `requests` waits forever."""

    def __init__(self, through: BaseAdapter, timeouts_s: tuple[float, ...]) -> None:
        """Wrap `through`, which sends; the times are for the connection, then for each read."""
        super().__init__()
        self._through = through
        self._timeouts_s = timeouts_s

    def close(self) -> None:
        """Close the connections."""
        self._through.close()

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        """Send the request once. Raises Timeout of `requests`."""
        return self._through.send(request, *args, **{**kwargs, "timeout": self._timeouts_s})


class SecretFilter(BaseAdapter):
    """Takes the secrets of a request out of the answer to it, before an error shows the answer.

    Servers, and proxies before them, quote what they were asked. Of a login that gives no
    `access_token` the whole answer is left out, as what it has may be one.
    """

    def __init__(self, through: BaseAdapter) -> None:
        """Wrap `through`, which sends."""
        super().__init__()
        self._through = through

    def close(self) -> None:
        """Close the connections."""
        self._through.close()

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        """Send the request once; return the answer, with its texts of secrets replaced."""
        response = self._through.send(request, *args, **kwargs)
        form = _form(request)
        text: str | None = None
        if not response.ok:
            text = response.text
            for secret in _secrets_of(request, form):
                text = text.replace(secret, "***")
        elif "grant_type" in form and not _gives_token(response):
            text = "{}"
        return response if text is None else _with_text(response, text)


_SECRET_FIELDS = ("client_secret", "subject_token", "actor_token", "refresh_token", "assertion")


def _form(request: PreparedRequest) -> dict[str, list[str]]:
    """Read the fields of a form; none of any other body."""
    is_form = "x-www-form-urlencoded" in str(request.headers.get("Content-Type", ""))
    body = request.body
    if not is_form or not body:
        return {}
    return parse_qs(body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body))


def _secrets_of(request: PreparedRequest, form: dict[str, list[str]]) -> list[str]:
    """List what proves in the request who asks, as it is and as it was sent; the longest first."""
    given = [text for name in _SECRET_FIELDS for text in form.get(name, ())]
    given.append(str(request.headers.get("Authorization", "")).rpartition(" ")[2])
    return sorted({*given, *map(quote_plus, given)} - {""}, key=len, reverse=True)


def _with_text(response: Response, text: str) -> Response:
    """Return the answer with another body."""
    made = Response()
    made.status_code, made.reason, made.url = response.status_code, response.reason, response.url
    made.request, made.encoding = response.request, "utf-8"
    made.headers = response.headers.copy()
    made.headers.pop("Content-Encoding", None)
    made.raw = BytesIO(text.encode())
    response.close()
    return made


def _gives_token(response: Response) -> bool:
    try:
        return isinstance(response.json()["access_token"], str)
    except (ValueError, KeyError, TypeError):
        return False


_SENT = "lakehouse_backfill_sendings"


@dataclass
class _Sendings:
    """The sendings of one request so far."""

    key: str | None = None
    #: Until when it is sent again, on the sender's clock.
    end: float = 0.0
    count: int = 0
    #: How many may have been executed without an answer that says so.
    unanswered: int = 0

    def pause_after_answer(self, response: Response) -> float | None:
        """Count an answer; return the seconds until the request is sent again, None for never."""
        self.count += 1
        wait_s = retry_after_s(response)
        is_in_progress = response.status_code == _IN_PROGRESS_STATUS and self.unanswered > 0
        if wait_s is not None and (response.status_code in _LATER_STATUSES or is_in_progress):
            return max(wait_s, _MIN_WAIT_S)
        return self._pause_unanswered() if response.status_code in _UNKNOWN_STATUSES else None

    def pause_after_error(self, error: Exception) -> float | None:
        """Count a lost answer; a server that is away from the beginning is not waited for."""
        self.count += 1
        return None if was_not_sent(error) and self.unanswered == 0 else self._pause_unanswered()

    def _pause_unanswered(self) -> float | None:
        self.unanswered += 1
        if self.key is None or self.unanswered >= _MAX_SENDINGS_UNANSWERED:
            return None
        return float(_FIRST_PAUSE_S * 2 ** (self.unanswered - 1))


def was_sent_again(response: Response | None) -> bool:
    """Return whether an earlier sending of the same request may have been executed."""
    sent = vars(response).get(_SENT) if response is not None else None
    return isinstance(sent, _Sendings) and sent.count > 1


def was_put_off(response: Response | None) -> bool:
    """Return whether the server says to every sending that it did not take the request."""
    if response is None or response.status_code not in _LATER_STATUSES:
        return False
    sent = vars(response).get(_SENT)
    is_certain = isinstance(sent, _Sendings) and sent.unanswered == 0
    return is_certain and retry_after_s(response) is not None


def is_change(request: PreparedRequest) -> bool:
    """Return whether the request changes something in the catalog, and may carry a key."""
    return request.method in ("POST", "DELETE") and bool(_CHANGE_PATH.search(_path(request)))


def was_not_sent(error: Exception) -> bool:
    """Return whether no connection was made, so that the server has seen nothing."""
    cause = error.args[0] if error.args else None
    is_refused = isinstance(getattr(cause, "reason", None), NewConnectionError)
    return isinstance(error, ConnectTimeout) or is_refused


def retry_after_s(response: Response) -> float | None:
    """Return the seconds that `Retry-After` asks to wait; None without the header."""
    text = response.headers.get("Retry-After")
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        due = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return _DEFAULT_WAIT_S
    zoned = due if due.tzinfo else due.replace(tzinfo=timezone.utc)
    return max(0.0, (zoned - datetime.now(timezone.utc)).total_seconds())


def duration_s(text: str) -> float | None:
    """Return the seconds of an ISO-8601 duration of days and less; None when it is none."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return (((days * 24) + hours) * 60 + minutes) * 60 + seconds


def new_key() -> str:
    """Return a UUID of version 7 (RFC 9562), as the specification asks for."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    return str(UUID(int=value & ~(0x3 << 62) | 0x2 << 62))


def _path(request: PreparedRequest) -> str:
    return urlsplit(request.url or "").path


def _identity(request: PreparedRequest) -> tuple[str, str, Any]:
    return (request.method or "", request.url or "", request.body)
