"""Editors check what the loaders check."""

from __future__ import annotations

import json

import pytest

from lakehouse_backfill.config.schemas import KINDS, json_schema
from lakehouse_backfill.errors import NotFound

pytestmark = pytest.mark.req("M2")


@pytest.mark.parametrize("kind", list(KINDS))
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
