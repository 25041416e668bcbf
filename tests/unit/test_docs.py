"""docs/manifest.md and docs/control-tables.md say what the code says, field by field."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from lakehouse_backfill.adapters.iceberg.control.schemas import (
    CONTROL_TABLES,
    CURRENT_VIEW,
    LOG_ID,
    LOG_SEQ,
    ControlTable,
)
from lakehouse_backfill.domain.manifest import RunManifest

DOCS = Path(__file__).resolve().parents[2] / "docs"
README = DOCS.parent / "README.md"
REQUIRED = "required"


def manifest_rows() -> list[str]:
    """Give one table row per field of a run manifest: path, default, meaning."""
    return list(_rows(RunManifest, ""))


def control_rows(table: ControlTable) -> list[str]:
    """Give one table row per column: name, type, meaning."""
    own = [row for row in table.columns if row[0] not in (LOG_SEQ, LOG_ID)]
    return [
        f"| `{name}` | {kind.rstrip('!').replace('[string]', 'list of string')}"
        f"{'' if kind.endswith('!') else ', may be null'} | {doc} |"
        for name, kind, doc in own
    ]


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner, mark = _inner(field.annotation)
        yield f"| `{path}{mark}` | {_default(field)} | {_meaning(field, inner)} |"
        if inner is not None:
            yield from _rows(inner, f"{path}{mark}.")


def _inner(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Find the model inside an annotation: itself, `dict[Name, Model]`, `tuple[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    origin = typing.get_origin(annotation)
    marks = {dict: ".NAME", tuple: "[]", typing.Union: "", types.UnionType: ""}
    for argument in typing.get_args(annotation) if origin in marks else ():
        found, mark = _inner(argument)
        if found is not None:
            return found, marks[origin] + mark
    return None, ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or isinstance(value, BaseModel) or value in (None, (), {}):
        return "none" if not isinstance(value, BaseModel) else "see below"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _meaning(field: FieldInfo, inner: type[BaseModel] | None) -> str:
    text = field.description or ""
    if not text and inner is not None:
        text = (inner.__doc__ or "").strip().splitlines()[0]
    return text.replace("|", "\\|")


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _table_rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_the_manifest_page_lists_exactly_the_fields_of_the_model() -> None:
    assert _table_rows(_text("manifest.md")) == manifest_rows()


def test_the_example_of_the_manifest_page_is_a_valid_manifest() -> None:
    example = _text("manifest.md").split("```yaml\n")[1].split("```")[0]
    assert RunManifest.model_validate(yaml.safe_load(example)).product == "silver.orders"


@pytest.mark.req("C1")
def test_the_page_of_control_tables_lists_exactly_their_columns() -> None:
    text = _text("control-tables.md")
    sections = text.split("\n## ")[1:]
    found = {part.split("\n", 1)[0].strip("`"): _table_rows(part) for part in sections}
    expected = {table.name: control_rows(table) for table in CONTROL_TABLES}
    assert {name: rows for name, rows in found.items() if rows} == expected
    assert all(table.comment in text for table in CONTROL_TABLES)
    assert f"`{CURRENT_VIEW}`" in text


def test_links_in_the_documentation_lead_to_files() -> None:
    pages = [README, *DOCS.rglob("*.md"), *(DOCS.parent / "docker").glob("*.md")]
    links = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert links
    assert [target for page, target in links if not (page.parent / target).exists()] == []


def test_the_readme_is_short_and_names_every_exit_code() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    table = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert table == ["0", "1", "2", "3", "4", "5", "6", "130"]


def test_decisions_are_numbered_without_gaps_and_keep_what_was_rejected() -> None:
    pages = sorted((DOCS / "decisions").glob("*.md"))
    assert [page.name[:4] for page in pages] == [f"{n:04d}" for n in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert heads == ["Context", "Decision", "Consequences", "Rejected"], page.name
