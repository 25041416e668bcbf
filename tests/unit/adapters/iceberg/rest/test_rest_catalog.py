"""The REST catalog's own requests: a token that ran out is renewed."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.exceptions import NoSuchTableError, UnauthorizedError
from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter

from lakehouse_backfill.adapters.iceberg.rest.request_sender import KEY_HEADER
from lakehouse_backfill.adapters.iceberg.rest.rest_catalog import ResendingRestCatalog


class Server(BaseAdapter):
    """Hands out tokens, of which only one is good, and unregisters tables that are there."""

    def __init__(self, good: str) -> None:
        super().__init__()
        self.good, self.tokens = good, 0
        self.asked: list[tuple[str, Any]] = []

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
            status = 401 if token != self.good else 204 if "/tables/t/" in path else 404
            if status != 204:
                answer = {"error": {"message": "no", "type": "None", "code": status}}
        made = Response()
        made.status_code, made.request, made.url = status, request, str(request.url)
        made.raw, made._content = BytesIO(), json.dumps(answer).encode()
        return made

    def close(self) -> None:
        """Nothing is open."""


def catalog_on(server: Server) -> ResendingRestCatalog:
    with pytest.MonkeyPatch.context() as patch:
        # The session logs in while it is opened.
        patch.setattr(Session, "get_adapter", lambda *_, **__: server)
        base = "http://catalog.example"
        made = ResendingRestCatalog(
            "lake",
            uri=base,
            credential="me:secret",
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
