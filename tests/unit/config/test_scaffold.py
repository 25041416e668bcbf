"""A new project: its files and JSON schemas."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.config.contracts import load_contract
from lakehouse_backfill.config.drafts import draft_contract, draft_manifest
from lakehouse_backfill.config.manifests import load_manifest
from lakehouse_backfill.config.profiles import choose_profile, embedded_profiles, load_profiles
from lakehouse_backfill.config.project_files import (
    FoundTransform,
    find_transforms,
    newest_transform,
)
from lakehouse_backfill.config.scaffold import (
    SCHEMA_MODELS,
    create_project,
    json_schema,
    write_new_file,
)
from lakehouse_backfill.config.yaml_lines import load_yaml, parse_yaml
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.tables.table import Column, PartitionField, TableInfo
from lakehouse_backfill.errors import ConfigError, NotFound

CODE = """
from lakehouse_backfill import transform
import lakehouse_backfill as lhb

@transform(name="orders", version="1.9.0", inputs=("orders", "rates"))
def old(context, orders, rates): ...

@lhb.transform(name="orders", version="1.10.0", inputs=("orders", "rates"))
def new(context, orders, rates): raise SystemExit("never run")

@transform(name=NAME, version="9.9.9", inputs=())
def computed(context): ...
"""


def info(*, partitioned: bool = True, comment: str = 'orders: "all" # of them') -> TableInfo:
    columns = (
        Column(field_id=1, name="day", type="date", required=True),
        Column(field_id=2, name="id", type="long", doc="who: #1"),
        Column(field_id=3, name="amount", type="decimal(10, 2)"),
        Column(field_id=4, name="tags", type="list<string>"),
    )
    spec = (PartitionField(name="day", column="day", transform="identity"),)
    return TableInfo(
        table="silver.orders", uuid="u", location="file:///x", format_version=2, snapshot_id=1,
        schema_id=0, spec_id=0, columns=columns, partitioning=spec if partitioned else (),
        spec_count=1, properties={"comment": comment} if comment else {}, refs={},
    )  # fmt: skip


def contract(folder: Path, text: str | None = None) -> Contract:
    draft = draft_contract(info(), ("day", "id"), "ana")
    path = folder / "catalog/contracts/silver.orders.yaml"
    write_new_file(path, text or draft.text)
    return load_contract(path)


def minimal_contract(column: str, kind: str) -> Contract:
    """The contract of a product with one column, by which it is partitioned."""
    return Contract.model_validate(
        {
            "api_version": "lakehouse-backfill/v1", "product": "silver.a", "table": "silver.a",
            "description": "a", "owner": "a", "key": [], "partitioning": [{"column": column}],
            "columns": [{"name": column, "type": kind}],
        }
    )  # fmt: skip


def test_a_new_project_loads_and_says_what_was_written(tmp_path: Path) -> None:
    files = create_project(tmp_path / "new")
    there = {path.relative_to(tmp_path / "new").as_posix() for path in tmp_path.rglob("*.*")}
    assert set(files) <= there | {"README.md"}
    assert "schemas/manifest.json" in files
    profiles = load_profiles(tmp_path / "new")
    assert choose_profile(profiles).catalog == choose_profile(embedded_profiles()).catalog


def test_init_writes_nothing_over_or_beside_existing_files(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"already holds README\.md"):
        create_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_drafted_contract_loads_with_the_key_that_holds(tmp_path: Path) -> None:
    found = contract(tmp_path)
    assert found.key == ("day", "id")
    assert found.description == 'orders: "all" # of them'
    assert [column.type for column in found.columns] == [
        "date",
        "long",
        "decimal(10, 2)",
        "list<string>",
    ]
    assert [(measure.name, measure.sum) for measure in found.measures] == [
        ("total_amount", "amount")
    ]


def test_a_draft_asks_what_metadata_cannot_tell() -> None:
    unknown = draft_contract(info(partitioned=False, comment=""), (), "ana")
    assert "key: which columns identify a row?" in unknown.questions
    assert unknown.questions[-1] == (
        "partitioning: the table has none, so a run restates the whole table; is it small?"
    )


@pytest.mark.req("M2")
def test_a_drafted_manifest_loads_with_the_newest_transform(tmp_path: Path) -> None:
    write_new_file(tmp_path / "jobs/orders/transform.py", CODE)
    draft = draft_manifest(
        contract(tmp_path), ("2026-01-01", "2026-02-01"), 'late: "rates"', "late_data", "ana",
        transform=newest_transform(tmp_path, "orders"),
    )  # fmt: skip
    write_new_file(tmp_path / "jobs/orders/run.yaml", draft.text)
    manifest = load_manifest(tmp_path / "jobs/orders/run.yaml", tmp_path)
    assert manifest.transform.version == "1.10.0"
    assert list(manifest.sources) == ["orders", "rates"]
    assert str(manifest.sources["rates"].range.from_) == "2025-12-29"
    assert manifest.run.reason == 'late: "rates"'
    assert str(manifest.target.partitions.from_) == "2026-01-01"
    assert str(manifest.target.partitions.to) == "2026-02-01"
    assert "sources.rates: which table is it, and which column cuts it by time?" in draft.questions


@pytest.mark.req("M2", "P9")
def test_a_draft_may_restate_some_columns_only(tmp_path: Path) -> None:
    write_new_file(tmp_path / "jobs/orders/transform.py", CODE)
    draft = draft_manifest(
        contract(tmp_path), ("2026-01-01", "2026-02-01"), "margin is new", "new_field", "ana",
        transform=newest_transform(tmp_path, "orders"), columns=("margin", "yes"),
    )  # fmt: skip
    write_new_file(tmp_path / "jobs/orders/run.yaml", draft.text)
    manifest = load_manifest(tmp_path / "jobs/orders/run.yaml", tmp_path)
    assert manifest.target.columns == ("margin", "yes")


# Without a deadline: the first example loads the templates, which a busy machine may do slowly.
@settings(deadline=None)
@given(st.text(min_size=1, max_size=40).filter(lambda text: text.strip() and text.isprintable()))
def test_a_draft_keeps_any_text_as_it_was_given(reason: str) -> None:
    found = minimal_contract("day", "date")
    draft = draft_manifest(found, (reason, "2026-01-02"), reason, "bug_fix", "ana")
    document = parse_yaml(draft.text, "draft")
    assert document.get("run", "reason") == reason
    value = document.get("target", "partitions", "from")
    if isinstance(value, date):
        assert value.isoformat()[:10] == reason[:10]
    else:
        assert str(value) in (reason, reason.lstrip("+"))


def test_transforms_are_found_without_running_them(tmp_path: Path) -> None:
    write_new_file(tmp_path / "jobs/orders/transform.py", CODE)
    write_new_file(tmp_path / "jobs/broken.py", "def (")
    write_new_file(
        tmp_path / "jobs/b.sql", "-- name: b\n-- version: 1.0.0\n-- inputs: x, y\nselect 1"
    )
    assert find_transforms(tmp_path) == (
        FoundTransform("b", "1.0.0", ("x", "y"), "jobs/b.sql"),
        FoundTransform("orders", "1.9.0", ("orders", "rates"), "jobs/orders/transform.py"),
        FoundTransform("orders", "1.10.0", ("orders", "rates"), "jobs/orders/transform.py"),
    )


def test_the_draft_of_a_text_column_names_the_partitions_before_to() -> None:
    found = minimal_contract("region", "string")
    draft = draft_manifest(found, ("EU", "US"), "why", "bug_fix", "ana")
    assert draft.questions[0].startswith("transform: none was found")
    assert parse_yaml(draft.text, "draft").get("target", "partitions", "values") == ["EU"]


pytestmark = pytest.mark.req("M2")
REPOSITORY = Path(__file__).resolve().parents[3]
DECLARATIONS = [
    *(("manifest", path) for path in sorted(REPOSITORY.glob("jobs/*/*.yaml"))),
    *(("contract", path) for path in sorted(REPOSITORY.glob("catalog/contracts/*.yaml"))),
    ("profiles", REPOSITORY / "catalog/profiles.yaml"),
    ("profiles", REPOSITORY / "docker/profiles.yaml"),
]


def plain(data: Any) -> Any:
    """Give what an editor sees: days and instants are text to JSON."""
    return json.loads(json.dumps(data, default=lambda value: value.isoformat()))


@pytest.mark.req("M1")
@pytest.mark.parametrize(
    ("kind", "path"), DECLARATIONS, ids=[path.name for _, path in DECLARATIONS]
)
def test_the_declarations_of_this_repository_fit_their_schemas(kind: str, path: Path) -> None:
    jsonschema.Draft202012Validator(json_schema(kind)).validate(plain(load_yaml(path).data))


def test_the_example_of_the_page_about_manifests_fits_its_schema() -> None:
    text = (REPOSITORY / "docs/manifest.md").read_text(encoding="utf-8")
    example = parse_yaml(text.split("```yaml\n")[1].split("```")[0], "docs/manifest.md")
    jsonschema.validate(plain(example.data), json_schema("manifest"))


def test_every_field_of_a_manifest_and_a_contract_is_described() -> None:
    for kind, name in (("manifest", "RunManifest"), ("contract", "Contract")):
        schema = json_schema(kind)
        groups = {name: schema, **schema["$defs"]} if kind == "manifest" else {name: schema}
        bare = [
            f"{group}.{field}"
            for group, body in groups.items()
            for field, content in body.get("properties", {}).items()
            if "description" not in content and "$ref" not in content
        ]
        assert bare == []


@pytest.mark.parametrize("kind", list(SCHEMA_MODELS))
def test_a_schema_is_json_and_strict(kind: str) -> None:
    schema = json.loads(json.dumps(json_schema(kind)))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False
    assert "api_version" in schema["required"]


def test_fields_are_called_as_in_yaml() -> None:
    fields = json_schema("manifest")["$defs"]["PartitionRange"]["properties"]
    assert {"from", "to", "except"} <= fields.keys()
    assert all("description" in field for field in fields.values())


def test_an_unknown_kind_is_answered_with_the_known_ones() -> None:
    with pytest.raises(NotFound) as caught:
        json_schema("plan")
    assert (
        caught.value.fix
        == "use one of: manifest, contract, profiles, defaults, source, migration, events"
    )
