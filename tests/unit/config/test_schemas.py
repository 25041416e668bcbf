"""Editors check what the loaders check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lakehouse_backfill.config.scaffold import SCHEMA_MODELS, json_schema
from lakehouse_backfill.config.yaml_lines import load_yaml, parse_yaml
from lakehouse_backfill.errors import NotFound

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
    assert caught.value.fix == "use one of: manifest, contract, profiles"
