"""The REST catalog's own requests: a token that ran out is renewed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.exceptions import (
    BadRequestError,
    NoSuchTableError,
    RESTError,
    UnauthorizedError,
)
from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.adapters.iceberg.rest.answers import commit_refusal
from lakehouse_backfill.adapters.iceberg.rest.request_sender import KEY_HEADER
from lakehouse_backfill.adapters.iceberg.rest.rest_catalog import ResendingRestCatalog
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import CatalogDown, ConfigError, Unsupported


class Server(BaseAdapter):
    """Hands out tokens, of which only some are good, and unregisters tables that are there."""

    def __init__(self, good: str) -> None:
        super().__init__()
        self.good, self.tokens = good, 0
        self.asked: list[tuple[str, Any]] = []
        #: What happens elsewhere while a commit is under way.
        self.meanwhile: list[Callable[[], Any]] = []

    def send(self, request: PreparedRequest, *_: Any, **__: Any) -> Response:
        path, status = urlsplit(str(request.url)).path, 200
        answer: dict[str, Any] = {}
        if path.endswith("/config"):
            answer = {"defaults": {}, "overrides": {}}
        elif path.endswith("/oauth/tokens"):
            self.tokens += 1
            answer = {"access_token": f"token-{self.tokens}", "token_type": "bearer"}
        else:
            token = str(request.headers["Authorization"]).removeprefix("Bearer ")
            self.asked.append((token, request.headers.get(KEY_HEADER)))
            if request.method == "POST" and self.meanwhile:
                self.meanwhile.pop()()
            status = 401 if token not in self.good.split() else 204 if "/tables/t/" in path else 404
            if status != 204:
                answer = {"error": {"message": "no", "type": "None", "code": status}}
        made = Response()
        made.status_code, made.request, made.url = status, request, str(request.url)
        made.raw, made._content = BytesIO(), json.dumps(answer).encode()
        return made

    def close(self) -> None:
        """Nothing is open."""


def catalog_on(server: Server, **login: Any) -> ResendingRestCatalog:
    with pytest.MonkeyPatch.context() as patch:
        # The session logs in while it is opened.
        patch.setattr(Session, "get_adapter", lambda *_, **__: server)
        base = "http://catalog.example"
        made = ResendingRestCatalog(
            "lake",
            uri=base,
            **(login or {"credential": "me:secret"}),
            **{"oauth2-server-uri": f"{base}/oauth/tokens"},
        )
    made.idempotency.lifetime_s = 1800.0
    return made


def test_a_token_that_ran_out_is_renewed_for_unregister_too() -> None:
    server = Server(good="token-3")
    catalog_on(server).unregister_table("shadow.t")
    (first, key), (second, same) = server.asked
    assert (first, second, server.tokens) == ("token-2", "token-3", 3)
    assert key == same is not None


def test_a_login_that_stays_refused_and_a_missing_table_are_told() -> None:
    server = Server(good="none")
    with pytest.raises(UnauthorizedError):
        catalog_on(server).unregister_table("shadow.t")
    assert len(server.asked) == 2
    with pytest.raises(NoSuchTableError):
        catalog_on(Server(good="token-2")).unregister_table("shadow.u")


def table_with_token(name: str) -> Any:
    return SimpleNamespace(name=lambda: ("silver", name), config={"token": f"of-{name}"})


def commit(catalog: ResendingRestCatalog, name: str) -> None:
    with pytest.raises(RESTError):
        catalog.commit_table(table_with_token(name), (), ())


def in_a_thread(act: Callable[..., Any], *what: Any) -> None:
    thread = Thread(target=act, args=what)
    thread.start()
    thread.join()


def test_the_token_of_a_table_is_sent_with_its_commits_only_whatever_other_threads_ask() -> None:
    server = Server(good="mine of-u of-v")
    # A login of PyIceberg's own would replace all of them by its token.
    login = {"header.Authorization": "Bearer mine", "auth": {"type": "noop"}}
    catalog = catalog_on(server, **login)

    def others() -> None:
        in_a_thread(look)
        in_a_thread(commit, catalog, "v")

    def look() -> None:
        assert not catalog.namespace_exists("silver")

    server.meanwhile = [others]
    commit(catalog, "u")
    look()
    tokens = [token for token, _ in server.asked]
    assert tokens == ["of-u", "mine", "of-v", "mine"]


def test_a_server_that_does_not_know_commits_of_several_tables_has_certainly_refused() -> None:
    named: Any = SimpleNamespace(name=lambda: ("silver", "t"), config={})
    change: Any = SimpleNamespace(table=named, requirements=(), updates=())
    with pytest.raises(BadRequestError) as refused:
        catalog_on(Server(good="token-2")).commit_tables((change, change))
    assert isinstance(commit_refusal(refused.value, "silver.t", "as before"), Unsupported)


@pytest.mark.req("X1", "X3")
@pytest.mark.parametrize("login", [{}, {"token": "t"}, {"credential": "me:secret"}], ids=str)
def test_a_server_that_takes_connections_and_answers_none_is_not_waited_for_forever(
    tmp_path: Path, login: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        catalog = {"name": "lake", "type": "rest", "uri": uri, **login}
        catalog["rest.client.socket-timeout-ms"] = "50"
        began = time.monotonic()
        with pytest.raises(CatalogDown, match=r"(?i)timed out"):
            open_catalog(Profile(catalog=catalog), tmp_path)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1.5", ""])
def test_a_limit_of_time_that_is_no_number_is_named_with_its_field(
    tmp_path: Path, text: str
) -> None:
    key = "rest.client.connection-timeout-ms"
    catalog = {"name": "lake", "type": "rest", "uri": "http://127.0.0.1:1", key: text}
    with pytest.raises(ConfigError) as refused:
        open_catalog(Profile(catalog=catalog), tmp_path)
    assert refused.value.field == f"catalog.{key}"
