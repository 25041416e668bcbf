"""When a request is sent again, with which key, and what its last answer proves."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests import PreparedRequest, Request, Response
from requests.adapters import BaseAdapter
from requests.exceptions import ChunkedEncodingError, ConnectTimeout, ReadTimeout
from requests.exceptions import ConnectionError as NoConnectionError
from urllib3.exceptions import ProtocolError

from lakehouse_backfill.adapters.iceberg.clock import ReferenceClock
from lakehouse_backfill.adapters.iceberg.rest.request_sender import (
    KEY_HEADER,
    PATIENCE_S,
    Idempotency,
    RequestSender,
    SecretFilter,
    duration_s,
    is_change,
    new_key,
    retry_after_s,
    was_put_off,
    was_sent_again,
)

BASE = "http://catalog.example/v1"
TABLE = f"{BASE}/namespaces/silver/tables/t"
KEYED = 1800.0
Answer = int | tuple[int, str] | Exception
LOST = NoConnectionError("closed without an answer")
LATER = (503, "2")


class Script(BaseAdapter):
    """Gives the answers one by one; keeps what was sent."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.answers = list(answers)
        self.keys: list[str | None] = []

    def send(self, request: PreparedRequest, *_: Any, **__: Any) -> Response:
        self.keys.append(request.headers.get(KEY_HEADER))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        made = Response()
        made.status_code, wait = answer if isinstance(answer, tuple) else (answer, None)
        made.headers["Date"] = "Thu, 01 Jan 2026 00:00:00 GMT"
        if wait is not None:
            made.headers["Retry-After"] = wait
        made.raw, made._content = BytesIO(), b'{"idempotency-key-lifetime": "PT30M"}'
        return made

    def close(self) -> None:
        """Nothing is open."""


class Clock:
    """Time that passes by sleeping."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def sender(script: Script, lifetime_s: float | None, clock: Clock | None = None) -> RequestSender:
    time = clock or Clock()
    return RequestSender(script, Idempotency(lifetime_s), time.sleep, lambda: time.now)


def a_request(method: str = "POST", url: str = TABLE, body: str = "{}") -> PreparedRequest:
    return Request(method, url, data=body).prepare()


@pytest.mark.parametrize(
    ("answers", "lifetime_s", "status"),
    [
        pytest.param([LOST, 200], KEYED, 200, id="a lost answer"),
        pytest.param([ReadTimeout(), 500, 502, 504, 503, 200], KEYED, 200, id="five of them"),
        pytest.param([LOST, (409, "1"), 200], KEYED, 200, id="the first one is at work"),
        pytest.param([LATER, 200], KEYED, 200, id="not taken yet, with keys"),
        pytest.param([LATER, LATER, 200], None, 200, id="not taken yet, without"),
        pytest.param([(429, "1"), 200], None, 200, id="too many requests"),
        pytest.param([500], None, 500, id="unknown, without keys"),
        pytest.param([503], None, 503, id="503 that asks for nothing, without keys"),
        pytest.param([409], KEYED, 409, id="a lost race"),
        pytest.param([(409, "1")], KEYED, 409, id="a lost race that asks to wait"),
        pytest.param([400], KEYED, 400, id="a refusal"),
    ],
)
def test_a_change_is_sent_again_only_where_it_is_made_once(
    answers: list[Answer], lifetime_s: float | None, status: int
):
    script = Script(*answers)
    response = sender(script, lifetime_s).send(a_request())
    assert (response.status_code, script.answers) == (status, [])
    assert was_sent_again(response) == (len(answers) > 1)
    assert len({*script.keys}) == 1
    assert (script.keys[0] is not None) == (lifetime_s is not None)


@pytest.mark.parametrize(
    ("answers", "lifetime_s"),
    [
        pytest.param([LOST], None, id="lost, without keys"),
        pytest.param([ConnectTimeout()], KEYED, id="no server"),
        pytest.param([LOST] * 6, KEYED, id="lost again and again"),
    ],
)
def test_an_answer_that_stays_lost_is_an_error(answers: list[Answer], lifetime_s: float | None):
    script = Script(*answers)
    with pytest.raises((NoConnectionError, ConnectTimeout)):
        sender(script, lifetime_s).send(a_request())
    assert script.answers == []


def test_a_server_that_asks_for_more_than_the_patience_is_not_waited_for():
    clock, script = Clock(), Script((503, str(int(PATIENCE_S) + 1)))
    response = sender(script, None, clock).send(a_request())
    assert (clock.now, was_put_off(response)) == (0.0, True)


def test_the_patience_is_for_all_waits_together():
    clock, script = Clock(), Script(*[(503, "8")] * 9)
    response = sender(script, KEYED, clock).send(a_request())
    assert (clock.now, len(script.answers), was_put_off(response)) == (24.0, 5, True)


def test_a_put_off_after_a_lost_answer_proves_nothing():
    response = sender(Script(LOST, (503, "99")), KEYED).send(a_request())
    assert (was_put_off(response), was_sent_again(response)) == (False, True)


def test_the_key_outlives_a_token_that_expired_in_between():
    script = Script(LOST, 401, 200, 200)
    sent = sender(script, KEYED)
    for _ in range(3):
        sent.send(a_request())
    lost, unauthorized, repeated, another = script.keys
    assert lost == unauthorized == repeated != another


def test_a_refusal_with_a_new_token_does_not_hide_a_lost_answer():
    script = Script(LOST, 401, 403)
    sent = sender(script, KEYED)
    answers = [sent.send(a_request()) for _ in range(2)]
    assert [was_sent_again(one) for one in answers] == [True, True]
    script.answers = [LOST, 401, (503, "99")]
    again = [sent.send(a_request()) for _ in range(2)]
    assert not was_put_off(again[-1])


def test_the_same_change_has_a_new_key_when_it_is_made_later():
    clock, script = Clock(), Script(401, 200)
    sent = sender(script, KEYED, clock)
    sent.send(a_request("DELETE"))
    clock.sleep(PATIENCE_S + 1)
    response = sent.send(a_request("DELETE"))
    assert len({*script.keys}) == 2
    assert not was_sent_again(response)


class Broken(BytesIO):
    """A body that breaks off."""

    def stream(self, *_: Any, **__: Any) -> Any:
        raise ProtocolError("broke off")


@pytest.mark.parametrize(("lifetime_s", "sendings"), [(KEYED, 2), (None, 1)])
def test_an_answer_that_breaks_off_is_lost(lifetime_s: float | None, sendings: int):
    class Breaking(Script):
        def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
            made = super().send(request, *args, **options)
            if self.answers:
                made._content, made.raw = False, Broken()
            return made

    script = Breaking(200, 200)
    response = sender(script, lifetime_s).send(a_request())
    assert len(script.keys) == sendings
    if lifetime_s is None:
        with pytest.raises(ChunkedEncodingError):
            _ = response.content


@pytest.mark.parametrize("text", ["0", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_server_that_asks_for_no_pause_is_not_flooded(text: str):
    clock, script = Clock(), Script(*[(503, text)] * 999)
    sender(script, None, clock).send(a_request())
    assert len(script.keys) <= 10 * PATIENCE_S + 1


@pytest.mark.parametrize(
    "text",
    [
        "-5",
        "",
        "soon",
        "1.5",
        "nan",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2020 00:00:00 +99999999999999999999",
    ],
)
def test_a_pause_that_cannot_be_read_is_a_second(text: str):
    response = Response()
    response.headers["Retry-After"] = text
    assert retry_after_s(response) == 1.0


def test_each_answer_tells_the_time_also_one_that_refuses():
    noted = ReferenceClock(now=lambda: 0.0, uptime=lambda: 0.0)
    RequestSender(Script(503), Idempotency(None), reference=noted).send(a_request())
    found = noted.skew()
    assert found is not None
    assert (found.there_s, found.within_s) == (1_767_225_600.5, 0.5)


def test_a_server_announces_keys_in_its_configuration():
    script, known = Script(200), Idempotency()
    RequestSender(script, known).send(a_request("GET", f"{BASE}/config"))
    assert (known.lifetime_s, script.keys) == (1800.0, [None])


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/namespaces/silver/tables/t", True),
        ("POST", "/prefix/namespaces/silver/tables/t/unregister", True),
        ("POST", "/prefix/transactions/commit", True),
        ("POST", "/namespaces/silver/register", True),
        ("DELETE", "/namespaces/silver/tables/t", True),
        ("GET", "/namespaces/silver/tables/t", False),
        ("POST", "/oauth/tokens", False),
        ("POST", "/namespaces/silver/tables/t/metrics", False),
        ("POST", "/namespaces/silver/tables/t/plan", False),
    ],
)
def test_only_changes_get_a_key(method: str, path: str, expected: bool):
    assert is_change(a_request(method, BASE + path)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT30M", 1800.0), ("PT24H", 86400.0), ("P1DT1H1M1.5S", 90061.5), ("P", None), ("30", None)],
)
def test_a_lifetime_is_a_duration(text: str, expected: float | None):
    assert duration_s(text) == expected


def test_keys_that_live_for_no_time_are_none():
    known = Idempotency()
    known.learn(b'{"idempotency-key-lifetime": "PT0S"}')
    assert known.lifetime_s is None


@given(st.binary(max_size=40))
def test_a_configuration_that_cannot_be_read_announces_nothing(config: bytes):
    known = Idempotency()
    known.learn(config)
    assert known.lifetime_s is None


def test_keys_are_uuids_of_version_7_in_the_order_of_time():
    made: list[UUID] = [UUID(new_key()) for _ in range(50)]
    assert {(one.version, one.variant) for one in made} == {(7, "specified in RFC 4122")}
    times: Callable[[UUID], int] = lambda one: one.int >> 80  # noqa: E731 (short)
    assert [*map(times, made)] == sorted(map(times, made))


class Quoting(BaseAdapter):
    """Answers with a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__()
        self.status, self.text = status, text

    def send(self, request: PreparedRequest, *_: Any, **__: Any) -> Response:
        made = Response()
        made.status_code, made.raw = self.status, BytesIO(self.text.encode())
        return made

    def close(self) -> None:
        """Nothing is open."""


LOGIN = {"grant_type": "client_credentials", "client_id": "robot", "client_secret": "hunter/2"}


@pytest.mark.req("X1")
@pytest.mark.parametrize(
    ("status", "text", "shown"),
    [
        (400, "robot by hunter/2 or hunter%2F2", "robot by *** or ***"),
        (502, "<p>Authorization: Bearer token-1</p>", "<p>Authorization: Bearer ***</p>"),
        (200, '{"accessToken": "token-2"}', "{}"),
        (200, "token-2", "{}"),
        (200, '{"access_token": "token-2"}', '{"access_token": "token-2"}'),
    ],
)
def test_no_answer_tells_who_asked_by_what(status: int, text: str, shown: str) -> None:
    header = {"Authorization": "Bearer token-1"}
    request = Request("POST", f"{BASE}/oauth/tokens", headers=header, data=LOGIN).prepare()
    answer = SecretFilter(Quoting(status, text)).send(request)
    assert (answer.status_code, answer.text) == (status, shown)
