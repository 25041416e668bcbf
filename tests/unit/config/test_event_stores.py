"""Rules of declared event stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.config.events.event_stores import (
    find_event_store,
    find_handler,
    load_schemas,
    replay_request,
)
from lakehouse_backfill.errors import ConfigError, NotFound

TEXT = """\
api_version: lakehouse-backfill/v1
events: orders
table: bronze.orders
"""
UPCASTER = 'upcasters:\n  - {event_type: paid, from: 1, to: TO, function: "a:b"}\n'
HANDLER = '{function: "a:b", version: 1.0.0, table: TABLE}'


def declare(folder: Path, more: str = "", name: str = "orders") -> Path:
    path = folder / "catalog/events" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT + more)
    return folder


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("version: {}\n", "needs one of column, field, schemas"),
        ("version: {column: v, field: w}\n", "needs one of column, field, schemas"),
        ("current: {paid: 2}\n", "nothing says where the version is"),
        ("version: {column: v}\n" + UPCASTER.replace("TO", "2"), "whose newest version nothing"),
        ("version: {column: v}\ncurrent: {paid: 2}\n" + UPCASTER.replace("TO", "1"), "not above 1"),
        (f"handlers:\n  h: {HANDLER.replace('TABLE', 'bronze.orders')}\n", "like another one"),
        (
            f"handlers:\n  h: {HANDLER.replace('TABLE', 's.t')}\n"
            f"  i: {HANDLER.replace('TABLE', 's.t')}\n",
            "like another one",
        ),
        ("handlers:\n  h: {function: 'os.system', version: 1.0.0, table: s.t}\n", "function"),
        ("handlers:\n  h: {function: '../x:y', version: 1.0.0, table: s.t}\n", "function"),
        ("columns: {event_ids: id}\n", "event_ids"),
        ("version: {landed_schemas: false}\n", "write true, or remove it"),
        ("version: {column: v, readers: {paid: 3}}\n", "and no schemas of writers"),
        (
            "version: {schemas: s, readers: {paid: 3}}\ncurrent: {paid: 2}\n"
            + UPCASTER.replace("TO", "2"),
            "which would not be applied",
        ),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused_with_its_place(
    more: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"orders\.yaml") as caught:
        find_event_store(declare(tmp_path, more), "orders")
    assert text in str(caught.value)


def test_names_that_are_not_declared_are_answered_with_those_that_are(tmp_path: Path) -> None:
    store = find_event_store(declare(tmp_path), "orders")
    with pytest.raises(NotFound, match="orders has no handler 'x'"):
        find_handler(store, "x")
    for name in ("order", "../orders", ""):
        with pytest.raises(NotFound):
            find_event_store(tmp_path, name)
    with pytest.raises(ConfigError, match="is orders, but the file is called other"):
        find_event_store(declare(tmp_path, name="other"), "other")


def test_a_day_begins_at_midnight_utc_and_types_have_one_order() -> None:
    made = replay_request(None, "2026-01-01", "2026-01-02", ("b", "a", "b"))
    assert made == replay_request(
        None, "2026-01-01T01:00:00+01:00", "2026-01-02T00:00:00Z", ("a", "b")
    )


@pytest.mark.req("S7")
@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"event_type": "x", "version": -1}'])
def test_a_file_that_is_no_schema_is_refused(text: str, tmp_path: Path) -> None:
    store = find_event_store(declare(tmp_path, "version: {schemas: s}\n"), "orders")
    with pytest.raises(ConfigError, match="is no folder of"):
        load_schemas(tmp_path, store)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "README.json").write_text("no schema")
    (tmp_path / "s" / "7.json").write_text(text)
    with pytest.raises(ConfigError, match=r"s/7\.json is no schema of a writer"):
        load_schemas(tmp_path, store)


def test_two_schemas_of_one_id_are_an_error(tmp_path: Path) -> None:
    store = find_event_store(declare(tmp_path, "version: {schemas: s}\n"), "orders")
    (tmp_path / "s").mkdir()
    for number, name in enumerate(("7", "007"), start=1):
        text = f'{{"event_type": "paid", "version": {number}}}'
        (tmp_path / "s" / f"{name}.json").write_text(text)
    with pytest.raises(ConfigError, match="is a second schema of the id 7"):
        load_schemas(tmp_path, store)
