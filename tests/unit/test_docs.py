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

from lakehouse_backfill.adapters.iceberg.control import schemas
from lakehouse_backfill.adapters.iceberg.control.log_files import COMPACT_EVERY_COMMITS
from lakehouse_backfill.adapters.iceberg.control.schemas import (
    CONTROL_TABLES,
    CURRENT_VIEW,
    LOG_ID,
    LOG_SEQ,
    ControlTable,
)
from lakehouse_backfill.core.evidence.verification.deep_verify import MAX_NAMED_DIFFERENCES
from lakehouse_backfill.core.planning.job_code import MAX_ARCHIVED_CHARACTERS
from lakehouse_backfill.core.runs.gate_registry import REPORTABLE_GATES
from lakehouse_backfill.domain.contract import PIN_DAYS, KeepVersions
from lakehouse_backfill.domain.manifest import NOT_YET_SUPPORTED, RunManifest

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
    if value is PydanticUndefined or isinstance(value, BaseModel) or value in (None, "", (), {}):
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


def test_the_manifest_page_names_exactly_what_this_release_refuses() -> None:
    """Modes that work are not called unsupported."""
    text = _text("manifest.md").split("but this release does not do")[1].split("\n- ")[0]
    named = re.findall(r"`((?:safety|compute|target|run|validation)\.\w+)[:`]", text)
    assert sorted(named) == sorted(".".join(item.path) for item in NOT_YET_SUPPORTED)
    assert not re.findall(r"`(append|merge|versioned|correction_events|row_predicate)`", text)


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


def test_every_control_table_is_written_by_this_release() -> None:
    package = Path(schemas.__file__).parents[3]
    others = [file for file in package.rglob("*.py") if file != Path(schemas.__file__)]
    code = "\n".join(file.read_text(encoding="utf-8") for file in others)
    unused = {table.name for table in CONTROL_TABLES if table.name.upper() not in code}
    text = _text("control-tables.md")
    assert not unused
    assert "writes no rows" not in text
    assert f"Every {COMPACT_EVERY_COMMITS}nd commit compacts" in text


def test_the_page_of_verification_has_the_limits_and_checks_of_the_code() -> None:
    text = _text("verification.md")
    assert f"a file above {MAX_ARCHIVED_CHARACTERS:,} characters" in text
    assert MAX_NAMED_DIFFERENCES == 10
    assert "ten names at most" in text
    table = text.split("## audit guarantees")[1].splitlines()
    assert [row.split("|")[1].strip() for row in table if row.startswith("| ")][1:] == [
        "determinism", "idempotence", "fences", "pins",
    ]  # fmt: skip


def test_the_manifest_page_names_exactly_the_gates_that_may_be_reports() -> None:
    text = _text("manifest.md").split("## Gates\n")[1].split("\n## ")[0]
    assert re.findall(r"`(\w+)`", text.split("always block:")[1]) == list(REPORTABLE_GATES)


def test_the_defaults_of_the_manifest_page_are_those_of_the_code() -> None:
    text = _text("manifest.md").split("## Defaults\n")[1].split("\n## ")[0]
    kept = KeepVersions()
    assert f"kept until {PIN_DAYS} days after acceptance" in text
    assert f"the newest {kept.count}, and all of the last {kept.days} days" in text
    for row in text.strip().splitlines()[2:]:
        for path in re.findall(r"`((?:safety|validation)\.\w+)", row):
            is_refused = tuple(path.split(".")) in {item.path for item in NOT_YET_SUPPORTED}
            assert is_refused is ("cannot be changed yet" in row), row


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
