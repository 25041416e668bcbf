"""SQL views on REST catalogs, for Spark and Trino at once, without a JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Endpoints, IdentifierKind, RestCatalog
from pyiceberg.exceptions import NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.domain.labels.names import table_parts
from lakehouse_backfill.domain.publication import ACCEPTED_ROWS
from lakehouse_backfill.errors import TooBusy, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.compute import Views

_MAX_ATTEMPTS = 5
_CONFLICT_STATUS, _UNSUPPORTED_STATUSES = 409, (404, 405, 406, 501)


class RestViews(Views):
    """Views in a REST catalog: one metadata with a representation for each dialect."""

    def __init__(self, catalog: Catalog) -> None:
        if not isinstance(catalog, RestCatalog):
            raise TypeError("views without a JVM need a REST catalog")
        self._catalog = catalog

    def show(
        self, view: str, table: str, snapshot_id: int | None, *, accepted_only: bool = False
    ) -> None:
        """Make the view show a table at a snapshot, or at its head; readers see old or new.

        `accepted_only`: of a table of versions only the accepted rows. Raises Unsupported where the
        catalog keeps no views, TooBusy when others keep changing it.
        """
        schema = load_table(self._catalog, table).schema()
        rows = ACCEPTED_ROWS if accepted_only else ""
        selects = self._sql_by_dialect(table, snapshot_id)
        sql_by_dialect = {dialect: select + rows for dialect, select in selects.items()}
        for _ in range(_MAX_ATTEMPTS):
            with translate_errors():
                try:
                    existing = self._catalog.load_view(view)
                except NoSuchViewError:
                    existing = None
                except NotImplementedError as error:
                    raise _no_views_error(view) from error
                if existing is not None and _view_sql(existing) == sql_by_dialect:
                    return
                is_committed = (
                    self._create(view, schema, sql_by_dialect)
                    if existing is None
                    else self._replace(view, existing, schema, sql_by_dialect)
                )
            if is_committed:
                return
        raise TooBusy(f"the view {view} changes faster than it can be written", fix="try again")

    def _sql_by_dialect(self, table: str, snapshot_id: int | None) -> dict[str, str]:
        at = "" if snapshot_id is None else f" VERSION AS OF {int(snapshot_id)}"
        for_at = "" if snapshot_id is None else f" FOR VERSION AS OF {int(snapshot_id)}"
        # Names are quoted, the id is a number.
        name = self._catalog.name
        return {
            "spark": f"SELECT * FROM {_quote_table_name(name, table, '`')}{at}",  # noqa: S608
            "trino": f"SELECT * FROM {_quote_table_name(name, table, chr(34))}{for_at}",  # noqa: S608
        }

    def _create(self, view: str, schema: Schema, texts: dict[str, str]) -> bool:
        try:
            with commit_window("Views.commit"):
                self._catalog.create_view(view, schema, self._version(view, texts))
        except ViewAlreadyExistsError:
            return False
        except NotImplementedError as error:
            raise _no_views_error(view) from error
        return True

    def _replace(self, view: str, held: Any, schema: Schema, texts: dict[str, str]) -> bool:
        """Commit another version of the view; PyIceberg 0.12 has no call for this."""
        number = max(version.version_id for version in held.versions) + 1
        # An existing schema is not added again, so -1 ("the last added") cannot refer to it.
        existing_schema_id = next(
            (s.schema_id for s in held.metadata.schemas if _has_same_columns(s, schema)), None
        )
        fresh_schema = _to_json_value(assign_fresh_schema_ids(schema))
        schema_update = {"action": "add-schema", "schema": fresh_schema}
        schema_id = -1 if existing_schema_id is None else existing_schema_id
        version = self._version(view, texts, number, schema_id)
        path = self._catalog._split_identifier_for_path(view, IdentifierKind.VIEW)
        body = {
            "requirements": [{"type": "assert-view-uuid", "uuid": str(held.uuid())}],
            "updates": [
                *([schema_update] if existing_schema_id is None else []),
                {"action": "add-view-version", "view-version": _to_json_value(version)},
                {"action": "set-current-view-version", "view-version-id": -1},
            ],
        }
        with commit_window("Views.commit"):
            response = self._catalog._session.post(
                self._catalog.url(Endpoints.load_view, **path), json=body
            )
        if response.status_code in _UNSUPPORTED_STATUSES:
            raise _no_views_error(view)
        if response.status_code == _CONFLICT_STATUS:
            return False
        response.raise_for_status()
        return True

    def _version(
        self, view: str, texts: dict[str, str], number: int = 1, schema_id: int = 0
    ) -> ViewVersion:
        own = {
            "version-id": number,
            "schema-id": schema_id,
            "summary": {"engine-name": "lakehouse-backfill"},
            "default-catalog": self._catalog.name,
        }
        return build_view_version(texts, table_parts(view)[:-1], own)


def build_view_version(
    sql_by_dialect: Mapping[str, str],
    namespace: Sequence[str],
    more: Mapping[str, Any] | None = None,
) -> ViewVersion:
    """Build a version of a view in the namespace, with further fields in `more`."""
    return ViewVersion.model_validate(
        {
            "schema-id": 0,
            "representations": [
                ViewRepresentation(SQLViewRepresentation(type="sql", sql=sql, dialect=dialect))
                for dialect, sql in sql_by_dialect.items()
            ],
            "default-namespace": [*namespace],
            **(more or {}),
        }
    )


def _view_sql(held: Any) -> dict[str, str]:
    return {
        representation.root.dialect: representation.root.sql
        for representation in held.current_version().representations
    }


def _has_same_columns(held: Schema, wanted: Schema) -> bool:
    """Compare columns by name: field ids are assigned by the view."""
    held_columns, wanted_columns = (
        [(f.name, str(f.field_type)) for f in schema.fields] for schema in (held, wanted)
    )
    return held_columns == wanted_columns


def _to_json_value(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True)


def _quote_table_name(catalog: str, table: str, mark: str) -> str:
    parts = [catalog, *table_parts(table)]
    return ".".join(f"{mark}{part.replace(mark, mark * 2)}{mark}" for part in parts)


def _no_views_error(view: str) -> Unsupported:
    return Unsupported(
        f"the catalog keeps no views, so {view} was not made",
        fix="remove `view` from the contract; readers use accepted()",
    )
