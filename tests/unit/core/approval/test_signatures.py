"""Signed decisions: what opens a publication in prod, and each way to get around it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions, signatures
from lakehouse_backfill.core.evidence import document
from lakehouse_backfill.core.evidence.verification.audit import audit_all
from lakehouse_backfill.core.evidence.verification.verify import verify
from lakehouse_backfill.core.publication import catch_up
from lakehouse_backfill.core.publication.publish import publish, publish_with_catch_up
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.identity import statement
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.run import Event, RunState
from lakehouse_backfill.errors import (
    ApprovalMissing,
    BackfillError,
    Blocked,
    NotAllowed,
    Tampered,
    TargetChanged,
)
from tests.support.examples.keys import PROD, Keyring
from tests.support.fakes import steps
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared
from tests.support.fakes.lake import FixedClock
from tests.support.fakes.signed import (
    accepted,
    accepted_but_for_acceptance,
    planned,
    prod_world,
    published,
    signed_anew,
)

E4 = pytest.mark.req("E4")
LEAD = contract(roles={"approve": ["ana"], "accept": ["ana"]})


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "ana", "bob", "eve")


def refused(keys: Keyring, found: Context, run_id: str, match: str) -> BackfillError:
    """Try to publish as bob; the refusal has exit code 3, and nothing is published."""
    with pytest.raises(Blocked, match=match) as caught:
        publish(keys.acting(found, "bob"), run_id, "bob")
    assert caught.value.exit_code == 3
    assert caught.value.state in (
        "nothing was published", "nothing was changed",
        "nothing was computed, decided or published",
    )  # fmt: skip
    assert "publish" not in {row.action for row in found.versions.history(PRODUCT)}
    assert steps.state_of(found, run_id) is RunState.ACCEPTED
    return caught.value


class LaterClock(FixedClock):
    """The clock of the fakes, two days later."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=2)


Edit = Callable[[list[Event]], list[Event]]


def edit_of(verb: str, change: Callable[[Event], Event]) -> Edit:
    """Edit the event of a verb."""
    return lambda events: [change(event) if event.verb == verb else event for event in events]


def without_signature(event: Event) -> Event:
    detail = {name: each for name, each in event.detail.items() if name != statement.SIGNATURE}
    return event.model_copy(update={"detail": detail})


def by_eve(event: Event) -> Event:
    return event.model_copy(update={"actor": "eve"})


def with_signature_byte(event: Event) -> Event:
    """Change one letter inside the signature."""
    envelope = statement.Envelope.from_json(event.detail[statement.SIGNATURE])
    lines = envelope.signature.sig.splitlines()
    lines[3] = lines[3][:10] + ("A" if lines[3][10] != "A" else "B") + lines[3][11:]
    edited = envelope.signature.model_copy(update={"sig": "\n".join([*lines, ""])})
    document = envelope.model_copy(update={"signature": edited}).to_json()
    return event.model_copy(update={"detail": {**event.detail, statement.SIGNATURE: document}})


def with_other_reason(event: Event) -> Event:
    return event.model_copy(update={"detail": {**event.detail, "reason": "other"}})


@E4
def test_prod_publishes_what_is_approved_accepted_and_published_with_signatures(
    keys: Keyring,
) -> None:
    found = prod_world(keys)
    run_id = published(keys, found)
    assert steps.state_of(found, run_id) is RunState.PUBLISHED
    checks = verify(found, run_id).checks
    signed = {one.name: one.ok for one in checks if one.name.startswith("signature")}
    assert list(signed.values()) == [True, True, True, True]
    verdict = audit_all(found)
    assert (verdict.first_bad, verdict.signed, verdict.unsigned) == (None, 4, 0)


@E4
def test_an_audit_checks_the_signatures_of_the_logs_that_it_verified(keys: Keyring) -> None:
    """A second read could find other rows, which nothing has verified."""
    found = prod_world(keys)
    published(keys, found)
    audit: Any = found.audit
    reads, read_chains = [], audit.chains

    def chains() -> Any:
        reads.append(read_chains())
        return reads[-1]

    audit.chains = chains
    assert audit_all(found).first_bad is None
    assert len(reads) == 1


@E4
@pytest.mark.parametrize("act", ["plan", "approve", "accept", "publish", "rollback"])
def test_prod_records_no_act_without_a_key(keys: Keyring, act: str) -> None:
    found = prod_world(keys)
    run_id = {
        "plan": lambda _: "",
        "approve": lambda found: planned(keys, found),
        "accept": lambda found: accepted_but_for_acceptance(keys, found),
        "publish": lambda found: accepted(keys, found),
        "rollback": lambda found: published(keys, found),
    }[act](found)
    before = found.runs.list(open_only=False), found.versions.history(PRODUCT)
    call: dict[str, Callable[[], object]] = {
        "plan": lambda: steps.planned_run(found),
        "approve": lambda: decisions.approve(found, run_id, "ana", ""),
        "accept": lambda: decisions.accept(found, run_id, "ana", ""),
        "publish": lambda: publish(found, run_id, "bob"),
        "rollback": lambda: steps.roll_back(found),
    }
    with pytest.raises(ApprovalMissing, match=f"'{act}' has to be signed in prod") as caught:
        call[act]()
    assert caught.value.exit_code == 3
    assert "--sign-with KEY" in caught.value.fix
    assert (found.runs.list(open_only=False), found.versions.history(PRODUCT)) == before


@E4
def test_a_name_that_is_not_the_signer_is_refused(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = planned(keys, found)
    with pytest.raises(NotAllowed, match=r"is that of eve, not of ana") as caught:
        decisions.approve(keys.acting(found, "eve"), run_id, "ana", "")
    assert caught.value.exit_code == 3
    assert steps.state_of(found, run_id) is RunState.PLANNED


@E4
@pytest.mark.parametrize(
    ("verb", "change", "match"),
    [
        (
            "approve",
            without_signature,
            "approve .*not signed: the name is the login's, or that of --by",
        ),
        (
            "accept",
            without_signature,
            "accept .*not signed: the name is the login's, or that of --by",
        ),
        ("approve", by_eve, r"something else; it differs in by"),
        ("accept", with_other_reason, r"something else; it differs in detail\.reason"),
        ("approve", with_signature_byte, "not one of this statement"),
    ],
    ids=["unsigned approval", "unsigned acceptance", "forged actor", "edited detail", "bad bytes"],
)
def test_a_log_that_was_made_anew_opens_no_publication(
    keys: Keyring, verb: str, change: Callable[[Event], Event], match: str
) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    steps.rewrite_log(found, run_id, edit_of(verb, change))
    refused(keys, found, run_id, match)


@E4
def test_an_approval_is_not_replayed_in_another_run_place_or_environment(keys: Keyring) -> None:
    found = prod_world(keys)
    first = accepted(keys, found)
    envelope = found.runs.events(first)[1].detail[statement.SIGNATURE]

    def taken(event: Event) -> Event:
        return event.model_copy(update={"detail": {**event.detail, statement.SIGNATURE: envelope}})

    # Another run of the same partitions.
    decisions.cancel(found, first, "ana", "")
    second = accepted(keys, found, declared(transform={"version": "1.1.0"}))
    steps.rewrite_log(found, second, edit_of("approve", taken))
    refused(keys, found, second, r"something else; it differs in .*run")

    # The same run, at another place of its log: an approval after a rejection.
    third = keys.acting(steps.world()[1], None, profile=PROD)
    run_id = accepted(keys, third)
    noted = third.runs.events(run_id)[0].model_copy(update={"verb": "dual read"})
    steps.rewrite_log(third, run_id, lambda events: [events[0], noted, *events[1:]])
    refused(keys, third, run_id, r"it differs in previous, sequence")

    # The same lake, under a profile of another environment.
    dev = Profile(catalog={"name": "lake"}, environment="dev", signatures="required")
    fourth = keys.acting(steps.world()[1], None, profile=dev)
    run_id = accepted(keys, fourth)
    moved = dataclasses.replace(fourth, profile=PROD)
    refused(keys, moved, run_id, r"it differs in environment")


@E4
def test_a_manifest_that_was_changed_after_the_approval_is_not_published(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    runs: Any = found.runs
    plan = runs.plans[run_id]
    other = plan.resolved.model_copy(update={"code_hash": "f00d"})
    changed = plan.model_copy(update={"resolved": other, "manifest_hash": other.manifest_hash})
    runs.plans[run_id] = changed

    def rebound(event: Event) -> Event:
        return event.model_copy(
            update={"detail": {**event.detail, "bound_to": changed.manifest_hash}}
        )

    refused(keys, found, run_id, "nobody made the decision 'approve'")
    steps.rewrite_log(found, run_id, edit_of("approve", rebound))
    with pytest.raises(Tampered, match="is not the one that was registered"):
        publish(keys.acting(found, "bob"), run_id, "bob")

    def registered(event: Event) -> Event:
        new = {"manifest_hash": changed.manifest_hash, "registered": changed.registered_digest}
        return event.model_copy(update={"detail": {**event.detail, **new}})

    steps.rewrite_log(found, run_id, edit_of("plan", registered))
    refused(keys, found, run_id, r"plan .*differs in detail.manifest_hash, detail.registered")
    # Bob planned it, and has a key: the approval is still one of another plan.
    steps.rewrite_log(
        found, run_id,
        edit_of("plan", lambda event: signed_anew(keys, "bob", event, changed)),
    )  # fmt: skip
    refused(keys, found, run_id, r"approve .*differs in detail.bound_to, previous, subject")


@E4
@pytest.mark.parametrize("how", ["revoked", "removed"])
def test_a_key_that_was_revoked_since_opens_no_publication(keys: Keyring, how: str) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    now = found.clock.now()
    if how == "removed":
        del keys.keys["ana"]
        keys.list_keys()
        refused(keys, found, run_id, "is not listed for ana")
        return
    later = keys.acting(found, None, clock=LaterClock())
    revoked_at = now + timedelta(days=1)
    keys.list_keys(ana=f'valid-before="{revoked_at:%Y%m%d%H%M%S}"')
    refused(keys, later, run_id, r"does not hold at .*key has expired")
    # The decision itself was made before: verify says that it is of ana's key.
    checks = {one.name: one.ok for one in verify(later, run_id).checks}
    assert checks[f"signature of approve (event 2 of {run_id})"] is True


@E4
def test_a_decision_is_not_made_with_a_key_that_does_not_hold(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = planned(keys, found)
    for option, why in (("valid-before", "has expired"), ("valid-after", "not yet valid")):
        at = found.clock.now() + timedelta(days=-1 if option == "valid-before" else 1)
        keys.list_keys(ana=f'{option}="{at:%Y%m%d}"')
        with pytest.raises(NotAllowed, match=why):
            decisions.approve(keys.acting(found, "ana"), run_id, "ana", "")


@E4
def test_a_revoked_key_cannot_date_a_decision_back_beyond_the_event_before_it(
    keys: Keyring,
) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    events = found.runs.events(run_id)
    early = events[0].at - timedelta(days=400)
    dated = events[1].model_copy(update={"at": early})
    assert signatures.log_time((events[0], dated), dated) == events[0].at


@E4
def test_a_signer_without_the_role_opens_nothing_by_the_contract_of_plan_or_project(
    keys: Keyring,
) -> None:
    # Eve plans a run whose contract names her, and approves it with her own, listed key.
    own = contract(roles={"approve": ["eve"], "accept": ["eve"]})
    found = dataclasses.replace(prod_world(keys), contract=lambda product: LEAD)
    run_id = planned(keys, found, declared(contract=own))
    eve = keys.acting(found, "eve")
    decisions.approve(eve, run_id, "eve", "")
    with pytest.raises(NotAllowed, match="eve may not approve"):
        stage(found, run_id, "bob")
    # Another project would compute it.
    stage(dataclasses.replace(found, contract=lambda _: own), run_id, "bob")
    validate(found, run_id, "bob")
    decisions.accept(eve, run_id, "eve", "")
    refused(keys, found, run_id, "eve may not approve silver.daily; the contract names ana")


@E4
def test_a_publisher_needs_the_role_by_the_contract_of_the_project_too(keys: Keyring) -> None:
    alone = contract(roles={"publish": ["eve"]})
    found = dataclasses.replace(prod_world(keys), contract=lambda _: alone)
    run_id = accepted(keys, found, declared(contract=LEAD))

    assert "bob may not publish" in refused(keys, found, run_id, "the contract names eve").problem


@E4
def test_a_plan_cannot_switch_off_the_four_eyes_of_its_project(keys: Keyring) -> None:
    found = dataclasses.replace(prod_world(keys), contract=lambda _: contract())
    lenient = declared(
        contract=contract(four_eyes=False),
        run={"requested_by": "ana", "reason": "x", "reason_code": "bug_fix"},
    )
    elsewhere = dataclasses.replace(found, contract=lambda _: lenient.contract)
    run_id = accepted(keys, elsewhere, lenient)

    refused(keys, found, run_id, "ana requested the run")


@E4
def test_a_run_of_prod_is_neither_decided_nor_published_in_another_environment(
    keys: Keyring,
) -> None:
    prod = prod_world(keys)
    dev = dataclasses.replace(prod, profile=Profile(catalog={"name": "lake"}))
    undecided, run_id = planned(keys, prod), accepted(keys, prod)
    for act in (
        lambda: decisions.approve(keys.acting(dev, "ana"), undecided, "ana", ""),
        lambda: publish(keys.acting(dev, "bob"), run_id, "bob"),
    ):
        with pytest.raises(NotAllowed, match="was planned in prod, and the profile is of dev"):
            act()
    assert steps.state_of(prod, run_id) is RunState.ACCEPTED


@E4
def test_four_eyes_hold_for_signers_who_went_around_the_verb(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    plan = found.runs.plan(run_id)
    event = found.runs.events(run_id)[1]
    forged = signed_anew(keys, "bob", event, plan)
    steps.rewrite_log(found, run_id, edit_of("approve", lambda _: forged))
    refused(keys, found, run_id, "needs four eyes")


@E4
def test_a_waiver_has_to_be_signed_too(keys: Keyring) -> None:
    found = prod_world(keys, open_edges={"2020-01-01"})
    run_id = accepted_but_for_acceptance(keys, found)
    gate = decisions.failed_gates(found, run_id)[0].name
    with pytest.raises(ApprovalMissing, match="'waive' has to be signed"):
        decisions.waive(found, run_id, gate, "ana", "known")
    ana = keys.acting(found, "ana")
    decisions.waive(ana, run_id, gate, "ana", "known")
    decisions.accept(ana, run_id, "ana", "")
    steps.rewrite_log(found, run_id, edit_of("waive", without_signature))
    # The acceptance is signed over the hash of the event before it, so also over the waiver.
    refused(keys, found, run_id, r"accept .*it differs in previous")


@E4
def test_a_rejection_needs_no_key_and_takes_signed_decisions_back(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    decisions.reject(found, run_id, "ana", "stop")
    with pytest.raises(BackfillError):
        publish(keys.acting(found, "bob"), run_id, "bob")
    assert found.versions.history(PRODUCT) == ()


@E4
def test_a_publication_whose_row_names_somebody_else_is_found(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = published(keys, found)
    row = next(row for row in found.versions.history(PRODUCT) if row.action == "publish")
    assert signatures.check_publication(found, row).is_signed
    cases = {
        "by": {"by": "eve"},
        "supersedes": {"supersedes": 7},
        "token": {"token": "f00d"},
        "subject": {"result_digest": "0" * 64},
        "accepted_by": {"accepted_by": ("eve",)},
    }
    for field, update in cases.items():
        fault = signatures.check_publication(found, row.model_copy(update=update)).fault
        assert field in fault, fault
    assert signatures.check_publication(found, row.model_copy(update={"signature": "{}"})).fault
    unsigned = row.model_copy(update={"signature": ""})
    assert signatures.check_publication(found, unsigned).is_unsigned
    assert run_id


@E4
def test_a_rollback_is_signed_and_one_to_a_wrongly_signed_version_is_refused(
    keys: Keyring,
) -> None:
    found = prod_world(keys)
    published(keys, found)
    bob = keys.acting(found, "bob")
    way = plan_rollback(bob, PRODUCT, 0, ())
    rollback(bob, contract(), way, "wrong", "bob")
    row = found.versions.history(PRODUCT)[0]
    assert (row.action, signatures.check_publication(found, row).is_signed) == ("rollback", True)
    back = plan_rollback(bob, PRODUCT, 1, ())
    wrong = dataclasses.replace(back, publication=back.publication.model_copy(update={"by": "eve"}))
    with pytest.raises(NotAllowed, match="nobody vouches for that version"):
        rollback(bob, contract(), wrong, "wrong", "bob")
    rollback(bob, contract(), back, "right after all", "bob")


@E4
def test_roles_hold_in_one_environment_and_for_rollback() -> None:
    found = contract(
        roles={"publish": ["ana"]},
        roles_in={"prod": {"publish": ["bob"], "rollback": ["eve"]}},
    )
    assert found.holders("publish", "dev") == ("ana",)
    assert found.holders("rollback", "dev") == ("ana",)
    assert found.holders("publish", "prod") == ("bob",)
    assert found.holders("rollback", "prod") == ("eve",)
    assert found.holders("approve", "prod") == ()


@E4
def test_dev_may_stay_unsigned_and_says_so() -> None:
    found = steps.world()[1]
    run_id = steps.published_run(found)
    events = found.runs.events(run_id)
    records = document.decision_records(events)
    assert [(one["decision"], one["signature"]) for one in records] == [
        ("approve", "not signed: the name is the login's, or that of --by"),
        ("accept", "not signed: the name is the login's, or that of --by"),
    ]
    evidence = found.runs.plan(run_id).checklist[-1]
    assert str(evidence.answer).endswith("a name is the login's, or that of --by")
    check = next(one for one in verify(found, run_id).checks if one.name == "signatures")
    assert (check.ok, check.because[:18]) == (None, "nothing is signed:")


@E4
def test_a_signed_decision_says_whose_key_it_is(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    texts = [one["signature"] for one in document.decision_records(found.runs.events(run_id))]
    assert len(texts) == 2
    for text in texts:
        assert text.startswith("signed by ED25519 SHA256:")
        assert text.endswith("verify checks it")


@E4
def test_a_publication_that_an_edited_log_opens_is_refused_before_signatures_are_read(
    keys: Keyring,
) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    runs: Any = found.runs
    runs.log[run_id][1] = by_eve(runs.log[run_id][1])
    with pytest.raises(Tampered, match="was edited"):
        publish(keys.acting(found, "bob"), run_id, "bob")


def test_an_envelope_that_is_none_is_named_and_no_crash() -> None:
    for bad in (None, 3, {}, {"signatures": []}, {"signatures": [{}]}, {"signatures": [1, 2]}):
        with pytest.raises(ValueError, match="no DSSE envelope"):
            statement.Envelope.from_json(bad)
    assert "cannot be read" in signatures.describe_stored({"signatures": []})


def test_a_statement_is_an_in_toto_statement_over_the_hashes(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    plan = found.runs.plan(run_id)
    accept = next(event for event in found.runs.events(run_id) if event.verb == "accept")
    envelope = accept.detail[statement.SIGNATURE]
    document = json.loads(statement.Envelope.from_json(envelope).statement)
    assert (document["_type"], envelope["payloadType"]) == (
        "https://in-toto.io/Statement/v1", "application/vnd.in-toto+json",
    )  # fmt: skip
    assert [one["digest"]["sha256"] for one in document["subject"]] == [
        plan.manifest_hash, accept.detail["bound_to"], accept.detail["archive"],
    ]  # fmt: skip
    predicate = document["predicate"]
    assert (predicate["by"], predicate["environment"], predicate["sequence"]) == (
        "ana", "prod", accept.seq,
    )  # fmt: skip
    assert datetime.fromisoformat(predicate["at"]) == accept.at.astimezone(timezone.utc)


def drifted(keys: Keyring, **changes: Any) -> tuple[Context, str]:
    """An accepted run in prod that follows live commits, one of which changed its first day."""
    where = steps.lake()
    compute = FakeCompute(where)
    found = keys.acting(context(where, compute), None, profile=PROD)
    run_id = accepted(keys, found, declared(safety={"on_conflict": "catch_up"}, **changes))
    where.write(PRODUCT, "2020-01-02", "old-2@live")
    return found, run_id


@E4
def test_a_decision_that_is_carried_over_is_signed_by_who_carries_it_and_who_made_it(
    keys: Keyring,
) -> None:
    found, first = drifted(keys)
    done = publish_with_catch_up(keys.acting(found, "bob"), first, "bob")
    run_id = str(done.publication.run_id)
    assert run_id != first
    verdicts = signatures.run_verdicts(found, found.runs.events(run_id), (done.publication,))
    assert [(one.by, one.is_signed) for one in verdicts] == [("bob", True)] * 4
    assert done.publication.approved_by == ("ana",)


@E4
def test_a_revision_is_not_published_when_the_decision_on_the_first_run_was_forged(
    keys: Keyring,
) -> None:
    found, first = drifted(keys)
    steps.rewrite_log(found, first, edit_of("accept", without_signature))
    with pytest.raises(ApprovalMissing, match=rf"accept \(event 7 of {first}\): not signed"):
        publish_with_catch_up(keys.acting(found, "bob"), first, "bob")
    assert found.versions.history(PRODUCT) == ()


@E4
@pytest.mark.parametrize("how", ["other code", "another successor"])
def test_a_decision_carried_over_to_a_plan_that_nobody_approved_opens_nothing(
    keys: Keyring, how: str
) -> None:
    """Bob, who may write to the control tables, edits the revision before it is published."""
    found, first = drifted(keys)
    bob = keys.acting(found, "bob")
    runs: Any = found.runs
    adopt = bob.publisher.adopt
    publisher: Any = bob.publisher

    def die_of_the_revision(request: Any) -> Any:
        if catch_up.newest_revision(found, first) == first:
            return adopt(request)
        raise KeyboardInterrupt

    publisher.adopt = die_of_the_revision
    with pytest.raises(KeyboardInterrupt):
        publish_with_catch_up(bob, first, "bob")
    publisher.adopt = adopt
    run_id = catch_up.newest_revision(found, first)
    if how == "other code":
        resolved = runs.plans[run_id].resolved.model_copy(update={"code_hash": "e71l"})
        runs.plans[run_id] = runs.plans[run_id].model_copy(update={"resolved": resolved})
    else:
        steps.rewrite_log(found, first, edit_of("supersede", lambda event: event.model_copy(
            update={"detail": {**event.detail, "by_run": "bf-0000000000"}}
        )))  # fmt: skip
    with pytest.raises(Blocked, match=r"differs from .* in code_hash|is not the run that followed"):
        publish(bob, run_id, "bob")
    assert "publish" not in {row.action for row in found.versions.history(PRODUCT)}


@E4
def test_an_interrupted_publication_is_finished_without_a_key_in_the_name_of_who_signed_it(
    keys: Keyring,
) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    where: Any = found.publisher
    adopt = where.adopt

    def die(request: Any) -> None:
        adopt(request)
        raise KeyboardInterrupt

    where.adopt = die
    with pytest.raises(KeyboardInterrupt):
        publish(keys.acting(found, "bob"), run_id, "bob")
    where.adopt = adopt
    recover(dataclasses.replace(found, is_alive=lambda driver: False), None, "carl")
    row = next(row for row in found.versions.history(PRODUCT) if row.action == "publish")
    assert (row.by, signatures.check_publication(found, row).is_signed) == ("bob", True)


@E4
def test_a_decision_that_somebody_without_a_role_carried_over_opens_nothing(
    keys: Keyring,
) -> None:
    own = contract(roles={"publish": ["bob"]})
    found, first = drifted(keys, contract=own)
    found = dataclasses.replace(found, contract=lambda product: own)
    bob, eve = keys.acting(found, "bob"), keys.acting(found, "eve")
    with pytest.raises(TargetChanged) as changed:
        publish(bob, first, "bob")
    revision = catch_up.plan_catch_up(bob, found.runs.plan(first), changed.value, "bob")
    with pytest.raises(NotAllowed, match="eve may not publish"):
        catch_up.bring_to_accepted(eve, revision, "eve")
    # A profile without signatures would compute it.
    lax = PROD.model_copy(update={"signatures": "optional"})
    catch_up.bring_to_accepted(dataclasses.replace(eve, profile=lax), revision, "eve")
    refused(keys, found, revision.run_id, "eve may not publish silver.daily")


@E4
def test_verify_names_a_signer_without_the_role_by_the_contract_of_the_plan(
    keys: Keyring,
) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    plan, events = found.runs.plan(run_id), found.runs.events(run_id)
    faults = [one.fault for one in signatures.run_verdicts(found, events, (), LEAD)]
    assert faults == ["", "", ""]
    other = contract(roles_in={"prod": {"approve": ["eve"], "accept": ["ana"]}})
    found_faults = [one.fault for one in signatures.run_verdicts(found, events, (), other)]
    assert found_faults == ["", "ana signed it, and has not the role approve: eve", ""]
    assert plan.resolved.contract.holders("approve", "prod") == ()
