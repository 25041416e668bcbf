"""The `@transform` decorator attaches what it is told, or says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.transforms import (
    TRANSFORM_ATTRIBUTE,
    IntermediateInfo,
    TransformInfo,
    intermediate,
    intermediate_info,
    transform,
    transform_info,
)


def test_the_function_comes_back_unchanged_with_its_declaration() -> None:
    def build(context: object, flights: str) -> str:
        return f"built from {flights}"

    marked = transform(name="arrivals_daily", version="1.2.0", inputs=("flights",))(build)
    assert marked is build
    assert marked(None, "flights") == "built from flights"
    assert transform_info(marked) == TransformInfo("arrivals_daily", "1.2.0", ("flights",))
    assert getattr(marked, TRANSFORM_ATTRIBUTE) is transform_info(marked)


def test_another_function_is_no_transform() -> None:
    assert transform_info(len) is None


@pytest.mark.parametrize("version", ["", "1", "1.2", "v1.2.0", "1.2.0-rc1", "01.2.0", "1.2.0\n"])
def test_a_version_that_is_not_semantic_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r'write three numbers, for example version="1\.2\.0"'):
        transform(name="arrivals_daily", version=version, inputs=("flights",))


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match='write for example name="arrivals_daily"'):
        transform(name=name, version="1.2.0", inputs=("flights",))


def test_a_bare_string_of_inputs_is_refused() -> None:
    with pytest.raises(TypeError, match=r'write inputs=\("flights",\)'):
        transform(name="arrivals_daily", version="1.2.0", inputs="flights")


@pytest.mark.parametrize("inputs", [("flights", ""), ("flights", "flights")])
def test_malformed_inputs_are_refused(inputs: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="write"):
        transform(name="arrivals_daily", version="1.2.0", inputs=inputs)


@pytest.mark.req("X6")
def test_an_intermediate_result_is_declared_beside_the_transform() -> None:
    def rates_by_day(config: object, rates: str) -> str:
        return f"built from {rates}"

    marked = intermediate(name="rates_by_day", inputs=("rates",), config=("factor",))(rates_by_day)
    assert marked is rates_by_day
    assert intermediate_info(marked) == IntermediateInfo("rates_by_day", ("rates",), ("factor",))
    assert transform_info(marked) is intermediate_info(len) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "by day"}, "is no name of a parameter"),
        ({"inputs": ()}, "has no inputs"),
        ({"inputs": ("rates", " ")}, "one of its names is empty"),
        ({"config": ("",)}, "one of its names is empty"),
        ({"inputs": ("rates", "rates")}, "names an input twice, or itself"),
        ({"inputs": ("by_day",)}, "names an input twice, or itself"),
    ],
)
def test_a_malformed_intermediate_result_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        intermediate(**{"name": "by_day", "inputs": ("rates",), **fields})


@pytest.mark.parametrize("field", ["inputs", "config"])
def test_a_string_in_place_of_names_is_refused(field: str) -> None:
    with pytest.raises(TypeError, match="is the string 'rates'"):
        intermediate(**{"name": "by_day", "inputs": ("rates",), field: "rates"})
