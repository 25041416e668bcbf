"""The uri of a catalog on PostgreSQL, with limits of how long the database is waited for."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_backfill.domain.profile import SQL_STATEMENT_TIMEOUT_MS, timeout_s

#: Settings of PostgreSQL's client library, where the uri does not say them: it waits without end
#: for a server that takes connections and answers none, and a connection that is not used for long
#: is found to be dead after two hours.
_CLIENT_SETTINGS = {
    "connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10",
    "keepalives_count": "3",
}  # fmt: skip


def postgres_uri(properties: Mapping[str, str]) -> str:
    """Return the catalog's uri with a limit for connections, and one for each statement.

    What the uri says itself stays. Raises ConfigError for a limit that is no number, and
    SQLAlchemy's errors for a uri that it cannot read.
    """
    from sqlalchemy import make_url

    from lakehouse_backfill.adapters.iceberg.sql.statement_limit import as_plugin

    limit_s = timeout_s(properties, *SQL_STATEMENT_TIMEOUT_MS)
    uri = make_url(properties["uri"])
    limited = uri.update_query_dict({**_CLIENT_SETTINGS, **uri.query, **as_plugin(limit_s)})
    return limited.render_as_string(hide_password=False)
