"""Clone or branch: what decides, what a branch cannot do, and what the plan says of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.planning.target.isolation import (
    branch_problem,
    choose_isolation,
    limits_of_catalog,
)
from lakehouse_backfill.core.planning.target.write_path import (
    _BUILT,
    carry_warnings,
    choose_write_path,
    way_to_shadow,
)
from lakehouse_backfill.domain.plan import ChosenWritePath, JvmState, Plan, TableFacts
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.errors import Unsupported
from tests.support.fakes import context as fake

pytestmark = pytest.mark.req("X12")


def found(**lacking: bool) -> Capabilities:
    """What `doctor` finds of a catalog that can do everything but these."""
    every = {name: True for name in Capabilities.model_fields if name != "seen"}
    return Capabilities(**(every | lacking))


LAKEKEEPER = {"new_uuid": False, "data_path": False}
#: What releases before the other probes kept.
OLD = (
    "tags", "branches", "branch_commits", "register_table", "built_clones", "new_uuid",
    "data_path", "views", "multi_table_commit",
)  # fmt: skip
CASES: list[tuple[str, Capabilities | None, bool, str, str]] = [
    ("clone", found(**LAKEKEEPER), False, "clone", "the profile says so"),
    ("branch", found(), False, "branch", "the profile says so"),
    ("auto", None, False, "clone", "has not looked"),
    ("auto", found(), False, "clone", "at no price"),
    ("auto", found(**LAKEKEEPER), False, "branch", "no new UUID, .* try again more often"),
    ("auto", found(register_table=False), False, "clone", "at no price"),
    ("auto", found(register_table=False, built_clones=False), False, "branch", "no table can be"),
    ("auto", found(data_path=False), False, "clone", "at no price"),
    ("auto", found(data_path=False), True, "branch", r"write\.data\.path"),
    ("auto", found(overlap=False), False, "clone", "at no price"),
    ("auto", found(overlap=False), True, "branch", r"write\.data\.path"),
    ("auto", found(rights_beside=False), False, "branch", "end at its location"),
    ("auto", Capabilities(**dict.fromkeys(OLD, True)), True, "clone", "at no price"),
    ("auto", found(**LAKEKEEPER, branch_commits=False), False, "branch", "a live writer fails"),
    ("auto", found(**LAKEKEEPER, branches=False), False, "clone", "nothing can be staged"),
]


@pytest.mark.parametrize(("setting", "seen", "is_under", "kind", "why"), CASES)
def test_the_probes_decide_and_say_why(
    setting: Any, seen: Capabilities | None, is_under: bool, kind: str, why: str
) -> None:
    chosen = choose_isolation(setting, seen, is_under_target=is_under)
    assert (chosen.kind, bool(re.search(why, chosen.why))) == (kind, True), chosen.why


def planned(setting: str, seen: Capabilities | None = None, **changes: Any) -> Plan:
    lake = fake.lake()
    lake.found = seen
    profile = Profile.model_validate({"catalog": {"name": "lake"}, "isolation": setting})
    return make_plan(fake.context(lake, profile=profile), fake.declared(**changes), "bob", None)


def test_a_plan_on_a_branch_names_it_and_its_price() -> None:
    plan = planned("auto", found(**LAKEKEEPER))
    assert plan.shadow_table == f"{fake.PRODUCT}.branch_lhb_{plan.run_id.replace('-', '_')}"
    (note,) = [text for text in plan.notes if "branch" in text]
    assert "no new UUID" in note
    assert "2 chunks is one more commit" in note
    clone = planned("auto", found())
    assert clone.shadow_table.startswith("lakehouse_backfill_shadow.")
    assert not [text for text in clone.notes if "branch" in text]


@pytest.mark.parametrize("setting", ["clone", "branch"])
def test_what_holds_of_a_clone_alone_is_not_said_of_a_branch(setting: str) -> None:
    plan = planned(setting, compute={"staging_location": "under_target"})
    is_branch = setting == "branch"
    assert is_branch is not any("remove_orphan_files" in text for text in plan.warnings)
    (where,) = [str(one.answer) for one in plan.checklist if one.question == "Where is it staged?"]
    assert ("in a shadow table" in where, "branches lhb-bf-" in where) == (not is_branch, is_branch)
    way = ChosenWritePath(way="pyiceberg", why=f"it is small; {_BUILT}")
    kept = way_to_shadow(way, plan.shadow_table)
    assert kept.why == ("it is small" if is_branch else way.why)


@pytest.mark.parametrize(("setting", "policy", "is_said"), [
    ("branch", "reapply", True), ("branch", "block", False), ("clone", "reapply", False),
])  # fmt: skip
def test_a_plan_on_a_branch_says_that_equality_deletes_keep_it_from_catching_up(
    setting: str, policy: str, is_said: bool
) -> None:
    plan = planned(setting, contract=fake.contract(deletions=policy))
    facts = TableFacts(format_version=2, entries=1, equality_deletes=3)
    chosen = choose_write_path(facts, JvmState())
    said = carry_warnings(plan.resolved, chosen, plan.shadow_table)
    assert [text for text in said if "isolation: clone" in text] == list(said)
    assert bool(said) is is_said
    without = chosen.model_copy(update={"why": "it is small"})
    assert carry_warnings(plan.resolved, without, plan.shadow_table) == ()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"target": {"schema_change": [{"add": "n", "type": "int"}]}},
            "new columns would be the target's at once",
        ),
        (
            {
                "contract": fake.contract(publication="pinned"),
                "target": {"publish_mode": "pointer_swap"},
            },
            "tables of their own",
        ),
    ],
)
def test_what_a_branch_cannot_do_is_refused_before_anything_is_made(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(Unsupported, match=problem) as refused:
        planned("branch", **changes)
    assert "isolation: clone" in refused.value.fix


def test_formats_and_bounds_that_a_branch_cannot_keep_are_named() -> None:
    resolved = planned("clone").resolved
    info = fake.context(fake.lake()).tables.describe(fake.PRODUCT)
    assert info is not None
    assert branch_problem(resolved, info) == ""
    assert "format 3" in branch_problem(resolved, info.model_copy(update={"format_version": 3}))
    contract = fake.contract(privacy={"columns": {"amount": {"classification": "restricted"}}})
    restricted = resolved.model_copy(update={"contract": contract})
    assert "write.metadata.metrics.column.amount = counts" in branch_problem(restricted, info)
    kept = {"write.metadata.metrics.column.amount": "counts"}
    assert branch_problem(restricted, info.model_copy(update={"properties": kept})) == ""


def test_a_plan_says_what_the_catalog_may_hide_and_nothing_where_doctor_has_not_looked() -> None:
    def said(seen: Capabilities | None, setting: str = "clone") -> list[str]:
        return [text for text in planned(setting, seen).warnings if "`doctor` found" in text]

    assert (said(None), said(found()), said(found(unregister=False))) == ([], [], [])
    for setting in ("clone", "auto", "branch"):
        (text,) = said(found(client_planning=False), setting)
        assert "client_planning: no" in text
        assert "nothing here proves" in text


def test_a_view_that_the_catalog_cannot_make_is_named_when_the_run_is_planned() -> None:
    with_view = fake.contract(view="silver.arrivals_now")
    (text,) = limits_of_catalog(found(views=False), with_view)
    assert ("views: no" in text, "fail at silver.arrivals_now" in text) == (True, True)
    assert limits_of_catalog(found(views=False), fake.contract()) == ()
    assert limits_of_catalog(found(), with_view) == ()
