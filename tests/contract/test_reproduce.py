"""reproduce and audit guarantees on a real lake: the scratch table comes and goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chaos.aging import register_aged
from tests.chaos.lab import BY, SOURCE, TARGET, Lab


def tables(lab: Lab) -> set[tuple[str, ...]]:
    with lab.opened() as catalog:
        return {
            name for (space,) in catalog.list_namespaces() for name in catalog.list_tables(space)
        }


def verdicts(data: dict[str, Any]) -> dict[str, bool | None]:
    return {one["name"]: one["ok"] for one in data["checks"]}


@pytest.mark.req("D5")
def test_an_accepted_run_comes_out_again_and_leaves_the_lake_as_it_was(lab: Lab) -> None:
    before, state = tables(lab), lab.oracle.state()[0]
    data = lab.must("reproduce", lab.run).data
    assert (data["equal"], len(data["partitions"])) == (True, 3)
    assert (tables(lab), lab.oracle.state()[0]) == (before, state)


@pytest.mark.req("D5")
def test_without_its_pinned_input_a_run_cannot_come_out_again(lab: Lab) -> None:
    with lab.opened() as catalog:
        catalog.drop_table(SOURCE)
    ended = lab.do("reproduce", lab.run)
    assert (ended.code, "its pins are gone: s (bronze.s@" in ended.error["problem"]) == (2, True)


@pytest.mark.req("O7")
def test_what_is_promised_holds_of_a_sampled_chunk(lab: Lab) -> None:
    before = tables(lab)
    data = lab.must("audit", "guarantees", TARGET).data
    names = ("determinism", "idempotence", "fences", "pins")
    assert (data["held"], verdicts(data)) == (True, dict.fromkeys(names, True))
    assert [one["run_id"] for one in data["sampled"]] == [lab.run]
    assert tables(lab) == before


@pytest.mark.req("O7")
def test_a_pin_that_somebody_dropped_is_named(lab: Lab) -> None:
    with lab.opened() as catalog, catalog.load_table(SOURCE).manage_snapshots() as change:
        change.remove_tag(f"lhb-pin-{lab.run}-s")
    ended = lab.do("audit", "guarantees")
    assert ended.code == 3
    assert verdicts(json.loads(ended.said)["data"])["pins"] is False
    assert f"{SOURCE}@lhb-pin-{lab.run}-s" in ended.error["problem"]


@pytest.mark.req("D5")
def test_maintain_lets_a_scratch_table_go_that_a_kill_left_behind(lab: Lab) -> None:
    with lab.opened() as catalog:
        shadow = f"lakehouse_backfill_shadow.t__{lab.run.replace('-', '_')}"
        left, young = f"{shadow}__again_0123abcd", f"{shadow}__again_4567abcd"
        register_aged(catalog, shadow, left, days=1)
        register_aged(catalog, shadow, young, days=0)
    retired = lab.must("maintain", *BY).data["retired"]
    because = f"a scratch table of {lab.run}, left behind by a command that was cut off"
    assert [(one["name"], one["because"]) for one in retired] == [(left, because)]
    assert tuple(left.split(".")) not in tables(lab)
    assert tuple(young.split(".")) in tables(lab)
