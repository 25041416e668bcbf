"""What a REST server offers beyond what PyIceberg asks it for; other catalogs offer nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import RESTError

from lakehouse_backfill.adapters.iceberg.rest.answers import is_unsupported_by_server

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

UNREGISTER_ENDPOINT = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/unregister"


def advertised_endpoints(catalog: Catalog) -> frozenset[str]:
    """Return the endpoints that a REST server advertises; empty if it advertises none."""
    return frozenset(str(endpoint) for endpoint in getattr(catalog, "_supported_endpoints", ()))


def announces_keys(catalog: Catalog) -> bool:
    """Return whether the server executes a change once for each idempotency key."""
    idempotency = getattr(catalog, "idempotency", None)
    return idempotency is not None and idempotency.lifetime_s is not None


def can_unregister(catalog: Catalog) -> bool:
    """Return whether the server takes a table out of the catalog without a drop."""
    return hasattr(catalog, "unregister_table") and UNREGISTER_ENDPOINT in advertised_endpoints(
        catalog
    )


def take_out(catalog: Catalog, table: str) -> None:
    """Take a table out of the catalog; all files stay where the server can unregister it.

    A server that offers this and does not know it leaves the table where it is.
    """
    if can_unregister(catalog):
        # PyIceberg's base class does not know it.
        rest: Any = catalog
        try:
            rest.unregister_table(table)
        except RESTError as error:
            if not is_unsupported_by_server(error):
                raise
    else:
        catalog.drop_table(table)
