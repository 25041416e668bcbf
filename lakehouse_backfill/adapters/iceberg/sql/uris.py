"""The uri of a SQL catalog, with limits of how long its database is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lakehouse_backfill import errors
from lakehouse_backfill.domain.profile import SQL_STATEMENT_TIMEOUT_MS, timeout_s

_SQLITE_WAIT_S = 30
#: Settings of PostgreSQL's client library, where the uri does not say them: it waits without end
#: for a server that takes connections and answers none, and a connection that is not used for long
#: is found to be dead after two hours.
_CLIENT_SETTINGS = {
    "connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10",
    "keepalives_count": "3",
}  # fmt: skip
_PSYCOPG2 = ("postgresql", "postgresql+psycopg2")


def uses_psycopg2(uri: str) -> bool:
    """Return whether PyIceberg opens the catalog by PostgreSQL's driver psycopg2."""
    return uri.partition("://")[0] in _PSYCOPG2


def sqlite_uri(uri: str, *, must_exist: bool) -> str:
    """Create the file's folder, and set a timeout so that writers wait for each other.

    Raises ConfigError for a relative path, CatalogDown for a folder that cannot be made, and with
    `must_exist` NotFound for a file that is not there.
    """
    scheme, _, rest = uri.partition("://")
    path, _, query = rest.partition("?")
    file = Path(path.removeprefix("/").removeprefix("file:"))
    if not file.is_absolute():
        raise errors.ConfigError(
            f"{uri!r} is relative, so it depends on the current folder",
            fix="write uri: sqlite:///${project}/catalog.db",
            field="catalog.uri",
        )
    if must_exist and not file.is_file():
        raise errors.NotFound(
            f"there is no lake at {file}",
            state="nothing was made there",
            fix="correct catalog.uri in catalog/profiles.yaml; a new lake begins with its first "
            "table, written by Spark or PyIceberg",
            field="catalog.uri",
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.CatalogDown(f"cannot make {file.parent}: {error}") from error
    options = [option for option in query.split("&") if option]
    if not any(option.startswith("timeout=") for option in options):
        options.append(f"timeout={_SQLITE_WAIT_S}")
    return f"{scheme}://{path}?{'&'.join(options)}"


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
