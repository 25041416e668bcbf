"""The uri of a catalog on PostgreSQL says how long it is waited for."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from lakehouse_backfill.adapters.iceberg.sql.uris import postgres_uri
from lakehouse_backfill.errors import ConfigError

URI = "postgresql+psycopg2://ann:p%40s?s@db.local:5433/lake"


def query(**properties: str) -> dict[str, object]:
    uri = make_url(postgres_uri({"uri": URI, **properties}))
    assert (uri.username, uri.password, uri.host, uri.port) == ("ann", "p@s?s", "db.local", 5433)
    return dict(uri.query)


@pytest.mark.req("X1", "X3")
def test_connections_and_statements_have_a_limit_unless_the_profile_says_another() -> None:
    found = query()
    assert (found["connect_timeout"], found["statement_limit_s"]) == ("10", "60.0")
    own = f"{URI}?sslmode=require&connect_timeout=90"
    found = query(uri=own, **{"sql.statement-timeout-ms": "500"})
    assert (found["connect_timeout"], found["statement_limit_s"]) == ("90", "0.5")
    assert found["sslmode"] == "require"


def test_a_limit_of_a_statement_that_is_no_number_is_named_with_its_field() -> None:
    with pytest.raises(ConfigError) as refused:
        query(**{"sql.statement-timeout-ms": "soon"})
    assert refused.value.field == "catalog.sql.statement-timeout-ms"
