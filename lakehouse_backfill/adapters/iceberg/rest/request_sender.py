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
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from requests.exceptions import ConnectionError as NoConnectionError
from requests.exceptions import ConnectTimeout, Timeout
from urllib3.exceptions import NewConnectionError

KEY_HEADER = "Idempotency-Key"
#: How long one request is sent again; the budget of a commit is as long.
PATIENCE_S = 30.0
_MAX_SENDINGS_UNANSWERED = 6
_FIRST_PAUSE_S = 0.05
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
    #: Keys of changes that were answered by 401, by what is sent again with a new token.
    _repeated: dict[tuple[str, str, Any], str] = field(default_factory=dict)

    def learn(self, config: bytes) -> None:
        """Read the answer to `/v1/config`; whatever cannot be read announces nothing."""
        try:
            announced = json.loads(config).get("idempotency-key-lifetime")
        except (ValueError, AttributeError):
            announced = None
        self.lifetime_s = duration_s(announced) if isinstance(announced, str) else None

    def take_key(self, request: PreparedRequest) -> str:
        """Return the key of the request: a new one, unless the same one is sent again."""
        return self._repeated.pop(_identity(request), None) or new_key()

    def keep_key(self, request: PreparedRequest, key: str) -> None:
        """Keep the key for the next request that is the same."""
        self._repeated[_identity(request)] = key


class RequestSender(BaseAdapter):
    """Sends requests through the session's own adapter; one for each session of a catalog."""

    def __init__(
        self,
        through: BaseAdapter,
        idempotency: Idempotency,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap `through`, which signs, verifies and sends."""
        super().__init__()
        self._through = through
        self._idempotency = idempotency
        self._sleep = sleep
        self._clock = clock

    def close(self) -> None:
        """Close the connections."""
        self._through.close()

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        """Send the request until it is answered; its answer says how often it was sent.

        A change is sent again after a lost answer only with the key that it was sent with before,
        and any request after 503 or 429 with `Retry-After`. The last answer is returned, or its
        error raised, when the patience is spent.
        """
        key = self._set_key(request)
        end = self._clock() + min(PATIENCE_S, self._idempotency.lifetime_s or PATIENCE_S)
        sent = _Sendings(is_keyed=key is not None)
        while True:
            try:
                response = self._through.send(request, *args, **kwargs)
            except (NoConnectionError, Timeout) as error:
                pause_s = sent.pause_after_error(error)
                if pause_s is None or self._clock() + pause_s > end:
                    raise
            else:
                pause_s = sent.pause_after_answer(response)
                if pause_s is None or self._clock() + pause_s > end:
                    break
                response.close()
            self._sleep(pause_s)
        if key is not None and response.status_code in _UNAUTHORIZED_STATUSES:
            self._idempotency.keep_key(request, key)
        if _path(request).endswith("/v1/config") and response.ok:
            self._idempotency.learn(response.content)
        vars(response)[_SENT] = sent
        return response

    def _set_key(self, request: PreparedRequest) -> str | None:
        if self._idempotency.lifetime_s is None or not is_change(request):
            return None
        key = self._idempotency.take_key(request)
        request.headers[KEY_HEADER] = key
        return key


_SENT = "lakehouse_backfill_sendings"


@dataclass
class _Sendings:
    """The sendings of one request so far."""

    is_keyed: bool
    count: int = 0
    #: How many may have been executed without an answer that says so.
    unanswered: int = 0

    def pause_after_answer(self, response: Response) -> float | None:
        """Count an answer; return the seconds until the request is sent again, None for never."""
        self.count += 1
        wait_s = retry_after_s(response)
        is_in_progress = response.status_code == _IN_PROGRESS_STATUS and self.unanswered > 0
        if wait_s is not None and (response.status_code in _LATER_STATUSES or is_in_progress):
            return wait_s
        return self._pause_unanswered() if response.status_code in _UNKNOWN_STATUSES else None

    def pause_after_error(self, error: Exception) -> float | None:
        """Count a lost answer; a server that is away from the beginning is not waited for."""
        self.count += 1
        return None if was_not_sent(error) and self.unanswered == 0 else self._pause_unanswered()

    def _pause_unanswered(self) -> float | None:
        self.unanswered += 1
        if not self.is_keyed or self.unanswered >= _MAX_SENDINGS_UNANSWERED:
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
    except ValueError:
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
