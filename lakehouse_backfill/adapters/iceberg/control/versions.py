"""The accepted-version pointer of each product, on `accepted_output_version`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from lakehouse_backfill.adapters.iceberg.control.log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.runs import require_not_fenced
from lakehouse_backfill.adapters.iceberg.control.schemas import ACCEPTED_OUTPUT_VERSION
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.domain import publication as rules
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.serialization import canonical_json, digest

_POINTER_PREFIX = "pointer."


class IcebergVersions:
    """`ports.control.Versions` on PyIceberg: row and pointer move in one conditional commit."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(ACCEPTED_OUTPUT_VERSION)

    def pointer(self, product: str) -> Pointer:
        """Read the current pointer: one table load, whatever the length of the history."""
        return self.pointers((product,))[product]

    def whole_pointer(self, product: str) -> Pointer:
        """Read the current pointer; raises Tampered unless the product's rows lead to it."""
        return _read_whole_pointer(self._log.head(), product)

    def move(self, product: str, decide: Callable[[Pointer], tuple[Publication, ...]]) -> Pointer:
        """Append the rows that `decide` returns for the current pointer, in one commit.

        Raises RunMoved when a later epoch than a row's has fenced its run; Tampered when the
        pointer is not the one that the product's rows lead to.
        """
        pointers_by_product = self.move_all((product,), lambda pointers: decide(pointers[product]))
        return pointers_by_product[product]

    def move_all(
        self,
        products: tuple[str, ...],
        decide: Callable[[dict[str, Pointer]], tuple[Publication, ...]],
    ) -> dict[str, Pointer]:
        """Move the pointers of several products in one conditional commit, otherwise as `move`."""

        def change(head: LogHead) -> LogAppend[dict[str, Pointer]]:
            pointers = {product: _read_whole_pointer(head, product) for product in products}
            rows = []
            for row in decide(dict(pointers)):
                if row.product not in pointers:
                    known = ", ".join(products)
                    raise ValueError(f"a move of {known} cannot write a row of {row.product}")
                require_not_fenced(head, row.run_id, row.epoch)
                before = pointers[row.product]
                content = rules.sealed_content(before.head, row)
                sealed = row.model_copy(update={"seal": digest(content)})
                pointers[row.product] = rules.apply_to_pointer(before, sealed)
                rows.append(sealed)
            moved = {row.product for row in rows}
            return LogAppend(
                result=pointers,
                rows=tuple(_publication_row(publication) for publication in rows),
                set_properties={
                    _pointer_key(name): canonical_json(pointers[name]) for name in sorted(moved)
                },
            )

        return self._log.append(change)

    def pointers(self, products: tuple[str, ...]) -> dict[str, Pointer]:
        """Read several pointers as of one moment: one table load."""
        head = self._log.head()
        return {product: _read_pointer(head, product) for product in products}

    def history(self, product: str) -> tuple[Publication, ...]:
        """Return all rows of the product, newest first."""
        rows = self._log.head().rows({"data_product": product})
        return tuple(_publication(row) for row in reversed(rows))

    def of_table(self, table: str) -> tuple[Publication, ...]:
        """Return all rows of a table, of whichever product, newest first."""
        rows = self._log.head().rows({"table_name": table})
        return tuple(_publication(row) for row in reversed(rows))

    def pending(self) -> tuple[Publication, ...]:
        """Return the reservations of all products by product name, from one table load.

        A pointer that cannot be read has none: `recover` rebuilds it first.
        """
        head = self._log.head()
        products = sorted(head.named_properties(_POINTER_PREFIX))
        pointers = (_read_untrusted_pointer(head, product) for product in products)
        return tuple(pointer.pending for pointer in pointers if pointer and pointer.pending)

    def rebuild(self, product: str, tokens: Collection[str]) -> Pointer:
        """Write the pointer that the product's rows lead to.

        Raises Tampered when a row was edited, or when the row of one of the tokens is missing.
        """

        def change(head: LogHead) -> LogAppend[Pointer]:
            rows = _untrusted_rows(head, product)
            pointer = rules.rebuilt_pointer(product, rows, tokens)
            if pointer == _read_untrusted_pointer(head, product):
                return LogAppend(result=pointer)
            properties = {_pointer_key(product): canonical_json(pointer)}
            return LogAppend(result=pointer, set_properties=properties, moves_head=True)

        return self._log.append(change)


def read_products(head: LogHead) -> dict[str, tuple[tuple[Publication, ...], Pointer | None]]:
    """Return each product's rows, oldest first, and its pointer; None if it is not readable."""
    rows: dict[str, list[Publication]] = {
        product: [] for product in head.named_properties(_POINTER_PREFIX)
    }
    for row in head.rows():
        rows.setdefault(row["data_product"], []).append(_read_untrusted_publication(row))
    return {
        product: (tuple(rows[product]), _read_untrusted_pointer(head, product))
        for product in sorted(rows)
    }


def _untrusted_rows(head: LogHead, product: str) -> tuple[Publication, ...]:
    rows = head.rows({"data_product": product})
    return tuple(_read_untrusted_publication(row) for row in rows)


def _read_whole_pointer(head: LogHead, product: str) -> Pointer:
    """Read a pointer to move it; raises Tampered unless the product's rows lead to it."""
    rows, pointer = _untrusted_rows(head, product), _read_untrusted_pointer(head, product)
    if rows or _pointer_key(product) in head.properties:
        rules.require_whole_pointer(product, rows, pointer)
    return pointer or Pointer()


def _read_untrusted_pointer(head: LogHead, product: str) -> Pointer | None:
    """Read a pointer that may have been edited."""
    try:
        return Pointer.model_validate_json(head.properties.get(_pointer_key(product), ""))
    except ValueError:
        return None


def _read_untrusted_publication(row: dict[str, Any]) -> Publication:
    """Read a row that may have been edited; an invalid row keeps its values unchecked."""
    try:
        return _publication(row)
    except ValueError:
        return Publication.model_construct(**ACCEPTED_OUTPUT_VERSION.fields(row, Publication))


def _pointer_key(product: str) -> str:
    return f"{_POINTER_PREFIX}{product}"


def _read_pointer(head: LogHead, product: str) -> Pointer:
    if _pointer_key(product) not in head.properties:
        return Pointer()
    pointer = _read_untrusted_pointer(head, product)
    if pointer is None:
        raise rules.tampered_pointer_error(rules.unreadable_pointer_fault(product))
    return pointer


def _publication_row(publication: Publication) -> dict[str, Any]:
    text = None if publication.scope is None else canonical_json(publication.scope)
    return ACCEPTED_OUTPUT_VERSION.row(publication, scope=text)


def _publication(row: dict[str, Any]) -> Publication:
    text = row["scope"]
    scope = None if text is None else Scope.model_validate_json(text)
    return ACCEPTED_OUTPUT_VERSION.read(row, Publication, scope=scope)
