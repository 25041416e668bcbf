"""What is decided about privacy before a run: masks, purpose, replay, retention, flow."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.guards.privacy import masks, rules
from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan
from lakehouse_backfill.core.publication.publish import run_until_decision
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.privacy import MaskedColumn, MaskKeyPin
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import BackfillError, ConfigError, NotAllowed, Tampered, Unsupported
from tests.support.fakes.context import (
    FakeSecrets,
    FixedClock,
    context,
    contract,
    declared,
    lake,
)
from tests.support.fakes.steps import approved_run, note_calls, staged_run, state_of, world

pytestmark = pytest.mark.req("E3")

NAMES = [
    {"name": "day", "type": "date"}, {"name": "id", "type": "long"},
    {"name": "amount", "type": "long"}, {"name": "mail", "type": "string"},
]  # fmt: skip
KEY = {"env": "MASK_KEY", "version": "1"}
RAW = "bronze.raw"


def private(columns: dict[str, Any] | None = None, /, **changes: Any) -> Contract:
    """The contract with declared privacy of columns."""
    declared_privacy = {"columns": columns or {}, "key": KEY} | changes.pop("privacy", {})
    return contract(columns=NAMES, privacy=declared_privacy, **changes)


def planned(run: DeclaredRun, **ports: Any) -> Plan:
    return make_plan(context(lake(), **ports), run, "bob", None)


def with_source(own: Contract, source: dict[str, Any], **changes: Any) -> DeclaredRun:
    """A run that reads a table with a contract: `source` is its privacy, and more fields."""
    fields = {"retention_days": "unlimited"} | source.pop("more", {})
    theirs = contract(product=RAW, table=RAW, privacy=source, **fields)
    return replace(declared(contract=own, **changes), input_contracts={RAW: theirs})


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"nope": {}}, "privacy.columns names nope, which is no column"),
        ({"amount": {"mask": "hash"}}, "amount cannot be masked by hash: it is long, not string"),
        ({"id": {"mask": "null"}}, "id is part of the key"),
        ({"day": {"mask": "null"}}, "day is masked, and partitions are made of it"),
        ({"day": {"classification": "restricted"}}, "partitions are named by its values"),
        ({"mail": {"mask": "truncate"}}, "mail needs `length` with truncate"),
        ({"mail": {"mask": "hash", "length": 3}}, "mail needs `length` with truncate"),
    ],
)
def test_a_mask_that_does_not_fit_its_column_is_refused(
    columns: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        planned(declared(contract=private(columns)))


def test_a_mask_of_a_column_that_tombstones_name_is_refused() -> None:
    tombstones = [{"table": "ops.erased", "columns": {"mail": "mail"}}]
    run = private({"mail": {"mask": "hash"}}, tombstones=tombstones)
    with pytest.raises(ConfigError, match="erased rows would not be found"):
        masks.require_valid_masks(run)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ({"key": None}, "mail has a keyed mask, and there is no secret"),
        ({"key": {"version": "1"}}, "neither, or both, of env and file"),
        ({"key": KEY | {"file": "key"}}, "neither, or both, of env and file"),
    ],
)
def test_a_keyed_mask_needs_one_secret(key: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        masks.require_valid_masks(private({"mail": {"mask": "tokenise"}}, privacy=key))


def test_a_missing_secret_stops_the_plan() -> None:
    run = declared(contract=private({"mail": {"mask": "hash"}}))
    with pytest.raises(ConfigError, match="environment variable MASK_KEY, is missing"):
        planned(run, secrets=FakeSecrets(b""))


def test_the_plan_holds_the_secrets_id_and_never_the_secret() -> None:
    plan = planned(declared(contract=private({"mail": {"mask": "hash"}})))
    pinned = plan.resolved.mask_key
    assert pinned is not None
    assert (pinned.place, pinned.version, len(pinned.key_id)) == (
        "environment variable MASK_KEY", "1", 16,
    )  # fmt: skip
    assert "a secret of the tests" not in plan.model_dump_json()


def test_another_secret_than_the_planned_one_stops_staging() -> None:
    plan = planned(declared(contract=private({"mail": {"mask": "hash"}})))
    masks.require_same_key(plan, FakeSecrets())
    with pytest.raises(Tampered, match="holds another secret than when"):
        masks.require_same_key(plan, FakeSecrets(b"another secret, as long"))


def test_a_secret_changes_under_a_new_version_only() -> None:
    before = MaskKeyPin(place="file key", version="1", key_id="a")
    assert masks.changed_key_notes(before, before) == ()
    renewed = before.model_copy(update={"version": "2", "key_id": "b"})
    assert "other partitions were masked with 1" in masks.changed_key_notes(renewed, before)[0]
    with pytest.raises(Tampered, match="under the same version 1"):
        masks.changed_key_notes(before.model_copy(update={"key_id": "b"}), before)


PURPOSES = {"purposes": {"repair": ["bob"], "audit": ["*"], "nobody": []}}


@pytest.mark.parametrize(
    ("purpose", "requester", "problem"),
    [
        ("repair", "bob", None),
        ("audit", "eve", None),
        ("repair", "eve", "eve may not replay"),
        ("nobody", "bob", "who may: nobody"),
        ("sales", "bob", "the run is for sales, and the purposes"),
        (None, "bob", "the run names no purpose"),
    ],
)
@pytest.mark.parametrize("where", ["product", "contract of the input", "manifest"])
def test_data_is_replayed_for_a_permitted_purpose_by_whoever_may(
    where: str, purpose: str | None, requester: str, problem: str | None
) -> None:
    run = {"purpose": purpose, "requested_by": requester}
    if where == "product":
        asked = declared(contract=private(privacy=PURPOSES), run=run)
    elif where == "manifest":
        asked = declared(run=run, sources={"raw": {"privacy": PURPOSES}})
    else:
        asked = with_source(contract(), dict(PURPOSES), run=run)
    if problem is None:
        planned(asked)
        return
    with pytest.raises(NotAllowed, match=problem):
        planned(asked)


def test_a_requester_in_the_file_is_no_permission_for_who_plans() -> None:
    asked = declared(
        contract=private(privacy=PURPOSES), run={"purpose": "repair", "requested_by": "bob"}
    )
    with pytest.raises(NotAllowed, match=r"eve may not replay .* for repair; who may: bob"):
        make_plan(context(lake()), asked, "eve", None)


class LaterClock(FixedClock):
    """The clock of the fakes, two days later."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=2)


def test_a_permission_that_ended_since_the_plan_stops_staging() -> None:
    own = private(privacy=PURPOSES, retention_days=2192)
    asked = declared(contract=own, run={"purpose": "repair", "requested_by": "bob"})
    plan, now = planned(asked), context(lake())
    rules.require_permission_now(replace(now, contract=lambda _: own), plan, "bob")
    withdrawn = private(privacy={"purposes": {"repair": ["eve"]}}, retention_days=2192)
    with pytest.raises(NotAllowed, match="bob may not replay") as refused:
        rules.require_permission_now(replace(now, contract=lambda _: withdrawn), plan, "bob")
    assert refused.value.state == "nothing was computed; readers see what they saw before"
    late = replace(now, contract=lambda _: own, clock=LaterClock())
    with pytest.raises(Unsupported, match="older than its retention of 2192 days"):
        rules.require_permission_now(late, plan, "bob")
    # Staging asks it, before anything is computed.
    _, found = world()
    run_id = approved_run(found, asked)
    late = replace(found, clock=LaterClock(), contract=lambda _: own)
    with pytest.raises(Unsupported, match="older than its retention of 2192 days"):
        stage(late, run_id, "bob")
    assert state_of(found, run_id) == "approved"


@pytest.mark.parametrize("verb", ["stage", "validate", "run"])
def test_who_runs_what_another_planned_needs_the_permission_too(verb: str) -> None:
    own = private(privacy=PURPOSES)
    asked = declared(contract=own, run={"purpose": "repair", "requested_by": "bob"})
    _, world_ = world()
    found = replace(world_, contract=lambda _: own)
    run_id = (staged_run if verb == "validate" else approved_run)(found, asked)
    before = found.runs.events(run_id)
    calls = note_calls(found.compute().staging, "stage")
    verbs = {"stage": stage, "validate": validate, "run": run_until_decision}
    with pytest.raises(NotAllowed, match=r"eve may not replay .* for repair; who may: bob") as no:
        verbs[verb](found, run_id, "eve")
    assert no.value.state == "nothing was computed; readers see what they saw before"
    assert (found.runs.events(run_id), calls) == (before, [])
    verbs[verb](found, run_id, "bob")
    assert found.runs.events(run_id) != before


def test_that_restricted_rows_are_still_there_is_no_permission_to_replay_them() -> None:
    restricted = {"columns": {"id": "restricted"}}
    with pytest.raises(NotAllowed, match="may be used for are: none"):
        planned(declared(sources={"raw": {"privacy": restricted}}))


def test_manifest_and_contract_may_not_both_say_how_private_an_input_is() -> None:
    run = with_source(contract(), {}, sources={"raw": {"privacy": {}}})
    with pytest.raises(ConfigError, match=r"bronze\.raw has a contract, which alone says"):
        planned(run)


FLOW = {"columns": {"id": {"classification": "restricted"}}, "purposes": {"repair": ["*"]}}
SAME, OTHER = {"from": ["raw.id"]}, {"from": ["other.id"]}


@pytest.mark.parametrize(
    ("columns", "is_refused"),
    [
        ({}, True),
        ({"id": {"classification": "confidential"}}, True),
        ({"id": {"classification": "restricted"}}, False),
        ({"id": {"classification": "restricted"}, "mail": SAME}, True),
        ({"id": {"classification": "restricted"}, "mail": OTHER}, False),
        ({"id": {"classification": "restricted"}, "mail": SAME | {"mask": "hash"}}, False),
    ],
    ids=["same name", "lower class", "same class", "declared", "of another input", "masked"],
)
def test_a_restricted_column_does_not_travel_to_a_lower_class(
    columns: dict[str, Any], is_refused: bool
) -> None:
    run = with_source(private(columns), dict(FLOW), run={"purpose": "repair"})
    if not is_refused:
        planned(run)
        return
    with pytest.raises(Unsupported, match=r"raw\.id, which is restricted"):
        planned(run)


def test_values_are_not_masked_twice() -> None:
    own = {"self": {"table": "silver.daily", "range": declared().manifest.sources["raw"].range}}
    run = declared(contract=private({"mail": {"mask": "hash", "from": ["self.id"]}}), sources=own)
    with pytest.raises(Unsupported, match="mail would be masked twice"):
        planned(run)


HIDDEN = {"amount": {"classification": "restricted"}}


@pytest.mark.parametrize(
    ("contract_fields", "manifest_fields", "problem"),
    [
        ({}, {"target": {"row_predicate": {"amount": 4711}}}, "target.row_predicate"),
        ({}, {"validation": {"spot_checks": [{"key": {"id": 1}, "expect": {"amount": 7}}]}},
         "validation.spot_checks"),
        ({"measures": [{"name": "total", "sum": "amount"}]}, {}, "measure total"),
        ({"measures": [{"name": "total", "counts_by": "amount"}]}, {}, "measure total"),
    ],
)  # fmt: skip
def test_values_of_restricted_columns_do_not_get_into_plans_and_totals(
    contract_fields: dict[str, Any], manifest_fields: dict[str, Any], problem: str
) -> None:
    target = {"partitions": {"column": "day", "from": "2020-01-02", "to": "2020-01-04"}}
    if "target" in manifest_fields:
        manifest_fields = {"target": target | manifest_fields["target"]}
    with pytest.raises(Unsupported, match=problem):
        planned(declared(contract=private(HIDDEN, **contract_fields), **manifest_fields))


DAY = ScopeField(column="day", transform="identity", type="date")
MONTH = ScopeField(column="day", transform="month", type="date")
REGION = ScopeField(column="region", transform="identity", type="string")


@pytest.mark.parametrize(
    ("field", "labels", "days", "expired"),
    [
        (DAY, ("2026-01-01", "2025-12-02", "2025-12-03"), 30, ("2025-12-02",)),
        (DAY, ("2013-01-01", "null"), 30, ("2013-01-01",)),
        (MONTH, ("2025-11", "2025-12"), 30, ("2025-11",)),
        (REGION, ("EU",), 1, ()),
    ],
)
def test_a_partition_has_expired_when_its_newest_possible_row_is_too_old(
    field: ScopeField, labels: tuple[str, ...], days: int, expired: tuple[str, ...]
) -> None:
    now = datetime(2026, 1, 2, 3, tzinfo=timezone.utc)
    scope = Scope(field=field, partitions=labels)
    assert rules.expired_partitions(scope, days, now) == expired


def test_a_restatement_older_than_the_retention_is_refused() -> None:
    with pytest.raises(Unsupported, match="older than its retention of 30 days") as raised:
        planned(declared(contract=contract(retention_days=30)))
    assert raised.value.field == "safety.retention_exception"


def test_input_older_than_its_own_retention_is_refused() -> None:
    run = with_source(contract(), {"more": {"retention_days": 30}})
    with pytest.raises(Unsupported, match="input raw is read from 2019-12-01 on"):
        planned(run)


ALLOWED = {"safety": {"retention_exception": {"by": "lead", "reason": "a court asked for it"}}}


def test_a_person_may_waive_retention_and_the_approver_sees_who_and_why() -> None:
    plan = planned(declared(contract=contract(retention_days=30), **ALLOWED))
    # The advice on when not to backfill names the retention, too.
    note = next(note for note in plan.notes if "older than its retention" in note)
    assert note.endswith("older than its retention of 30 days: written in the manifest, in "
                         "lead's name: a court asked for it")  # fmt: skip
    assert "retention_exception" in plan.resolved.manifest.model_dump_json()
    answer = next(item.answer for item in plan.checklist if item.number == 14)
    assert "retention waived in the manifest, in lead's name: a court asked for it" in str(answer)


def test_only_who_may_waive_may_waive_retention() -> None:
    rules = contract(retention_days=30, roles={"waive": ["owner"]})
    with pytest.raises(NotAllowed, match="lead may not waive"):
        planned(declared(contract=rules, **ALLOWED))


def test_iceberg_keeps_no_bounds_of_restricted_columns() -> None:
    own = private({"mail": {"classification": "restricted"}})
    prefix = "write.metadata.metrics"
    assert masks.metrics_properties(own, None) == {f"{prefix}.column.mail": "counts"}
    nested = [*NAMES, {"name": "home", "type": "struct<8: street: optional string>"}]
    own = contract(columns=nested, privacy={"columns": {"home": {"classification": "restricted"}}})
    info = context(lake()).tables.describe("silver.daily")
    assert info is not None
    full = info.model_copy(update={"properties": {f"{prefix}.column.home.street": "full"}})
    assert masks.metrics_properties(own, full) == {
        f"{prefix}.column.home": "counts",
        f"{prefix}.column.home.street": "counts",
        f"{prefix}.default": "counts",
    }
    assert masks.metrics_properties(contract(), info) == {}


@pytest.mark.parametrize(
    ("column", "passed"),
    [
        (MaskedColumn(column="mail", values=9, misshapen=0, raw=0), True),
        (MaskedColumn(column="mail", values=9, misshapen=0, raw=None), True),
        (MaskedColumn(column="mail", values=9, misshapen=1, raw=0), False),
        (MaskedColumn(column="mail", values=9, misshapen=0, raw=1), False),
    ],
)
def test_one_value_that_no_mask_made_closes_the_gate(column: MaskedColumn, passed: bool) -> None:
    result = gates.check_masks([column])
    assert (result.passed, result.blocking, result.waivable) == (passed, True, False)


def test_a_plan_without_privacy_is_what_it_was() -> None:
    plan = planned(declared())
    assert "privacy" not in plan.resolved.model_dump_json()
    assert "mask" not in plan.resolved.model_dump_json()


def test_every_refusal_says_what_to_write() -> None:
    with pytest.raises(BackfillError) as raised:
        planned(declared(contract=contract(retention_days=30)))
    assert "safety.retention_exception" in str(raised.value.fix)
