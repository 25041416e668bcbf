"""What was planned or signed in prod is not handled under a weaker profile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.publication.groups.rollbacks import rollback_together
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.signers import require_bound_environment, signed_environment
from lakehouse_backfill.core.versions.reserve import sign_row
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ApprovalMissing, NotAllowed
from tests.support.examples.keys import PROD, Keyring
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, contract, declared
from tests.support.fakes.signed import accepted, prod_world, published

E4 = pytest.mark.req("E4")
DEV = Profile(catalog={"name": "lake"})
LAX = Profile(catalog={"name": "lake"}, environment="prod", signatures="optional")


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "ana", "bob", "eve")


def in_dev(found: Context, profile: Profile = DEV) -> Context:
    return dataclasses.replace(found, profile=profile)


def newest_row(found: Context) -> Publication:
    return found.versions.history(PRODUCT)[0]


@E4
@pytest.mark.parametrize("verb", ["reject", "cancel", "publish"])
def test_a_run_of_prod_is_not_handled_under_a_profile_of_dev(keys: Keyring, verb: str) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    dev, before = in_dev(found), found.runs.status(run_id)
    acts: dict[str, Callable[[], object]] = {
        "reject": lambda: decisions.reject(dev, run_id, "ana", "no"),
        "cancel": lambda: decisions.cancel(dev, run_id, "bob", "no"),
        "publish": lambda: publish(dev, run_id, "bob"),
    }
    with pytest.raises(NotAllowed, match="was planned in prod, and the profile is of dev") as seen:
        acts[verb]()
    assert (seen.value.exit_code, seen.value.fix) == (3, "name a profile of prod with --profile")
    assert found.runs.status(run_id) == before


@E4
def test_a_rollback_under_dev_undoes_no_run_of_prod(keys: Keyring) -> None:
    # Published without signatures: the plan alone says that it is of prod.
    found = prod_world(keys)
    lax = in_dev(found, LAX)
    steps.published_run(lax)
    before = found.versions.history(PRODUCT)
    with pytest.raises(NotAllowed, match="was planned in prod, and the profile is of dev"):
        steps.roll_back(in_dev(found))
    assert found.versions.history(PRODUCT) == before
    assert steps.roll_back(lax).publication.action == "rollback"


@E4
@pytest.mark.parametrize(
    ("profile", "why"),
    [(DEV, "the profile is of dev"), (LAX, "the signatures of this profile are optional")],
    ids=["dev", "optional"],
)
def test_a_version_that_was_signed_in_prod_is_not_published_over_by_a_weaker_profile(
    keys: Keyring, profile: Profile, why: str
) -> None:
    found = prod_world(keys)
    published(keys, found)
    weak = in_dev(found, profile)
    run_id = steps.accepted_run(weak, declared(transform={"version": "2.0.0"}))
    before = found.versions.history(PRODUCT)
    problem = f"version 1 of {PRODUCT} .* was signed in prod, and {why}"
    with pytest.raises(NotAllowed, match=problem):
        publish(weak, run_id, "bob")
    assert found.versions.history(PRODUCT) == before


@E4
def test_a_signed_version_binds_its_table_for_another_product_too(keys: Keyring) -> None:
    found = prod_world(keys)
    published(keys, found)
    weak = in_dev(found)
    ports = weak.profile, weak.versions, weak.tables
    require_bound_environment(*ports, "silver.other", "silver.other")
    with pytest.raises(NotAllowed, match="was signed in prod"):
        require_bound_environment(*ports, "silver.other", PRODUCT)
    with pytest.raises(NotAllowed, match="was signed in prod"):
        require_bound_environment(*ports, PRODUCT, "silver.other")


@E4
def test_a_signed_version_is_not_rolled_back_by_a_weaker_profile(keys: Keyring) -> None:
    found = prod_world(keys)
    published(keys, found)
    before = found.versions.history(PRODUCT)
    for profile in (DEV, LAX):
        weak = in_dev(found, profile)
        way = plan_rollback(weak, PRODUCT, 0, ())
        pinned = contract(publication="pinned")
        with pytest.raises(NotAllowed):
            rollback(weak, contract(), way, "wrong", "bob")
        with pytest.raises(NotAllowed):
            rollback_together(weak, ((pinned, way),), "wrong", "bob")
    assert found.versions.history(PRODUCT) == before


@E4
def test_dev_stays_free_where_nothing_was_signed_in_prod(keys: Keyring) -> None:
    found = in_dev(prod_world(keys))
    steps.published_run(found)
    signed_in_dev = keys.acting(found, "ana")
    steps.roll_back(signed_in_dev)
    assert signed_environment(newest_row(found)) == "dev"
    assert steps.roll_back(found, 1).publication.action == "rollback"


@E4
@pytest.mark.parametrize("text", ["{", "{}", '{"signatures": [1]}', "[[", '"x"'])
def test_a_signature_that_cannot_be_read_binds_as_one_of_prod(keys: Keyring, text: str) -> None:
    found = in_dev(prod_world(keys))
    steps.published_run(found)
    row = newest_row(found).model_copy(update={"signature": text})
    assert signed_environment(row) == "prod"


def die_in(found: Context, method: str, *, has_landed: bool) -> Callable[[], None]:
    """Let a method of the publisher die before or after it acts; the result undoes that."""
    publisher: Any = found.publisher
    through = getattr(publisher, method)

    def die(request: Any) -> None:
        if has_landed:
            through(request)
        raise KeyboardInterrupt

    setattr(publisher, method, die)
    return lambda: setattr(publisher, method, through)


def begun_publication(keys: Keyring, found: Context, how: str, *, has_landed: bool) -> str:
    """Publish with going around the signature, and die on the way."""
    run_id = accepted(keys, found, declared(contract=contract(roles={"publish": ["bob"]})))
    alive = die_in(found, "adopt", has_landed=has_landed)
    # Eve has a key, and not the role: her copy of the program does not look at roles.
    forger = in_dev(found, LAX) if how == "unsigned" else keys.acting(found, "bob")
    with pytest.raises(KeyboardInterrupt):
        publish(forger, run_id, "bob")
    if how == "without the role":
        versions: Any = found.versions
        (pending,) = versions.pending()
        by_eve = pending.model_copy(update={"by": "eve", "signature": ""})
        signed = sign_row(keys.acting(found, "eve"), by_eve)
        versions.move(PRODUCT, lambda _: (signed,))
    alive()
    return run_id


def after_death(found: Context) -> Context:
    return dataclasses.replace(found, driver="here:2", is_alive=lambda driver: driver == "here:2")


HOW = pytest.mark.parametrize("how", ["unsigned", "without the role"])


@E4
@HOW
def test_recover_gives_back_a_publication_that_nobody_signed(keys: Keyring, how: str) -> None:
    found = prod_world(keys)
    run_id = begun_publication(keys, found, how, has_landed=False)
    (done,) = recover(after_death(found), run_id, "carl")
    assert done.result.startswith("given back: 'publish' has to be signed in prod")
    assert steps.pending_of(found) is None
    assert "publish" not in {row.action for row in found.versions.history(PRODUCT)}


@E4
@HOW
def test_recover_does_not_finish_a_landed_publication_that_nobody_signed(
    keys: Keyring, how: str
) -> None:
    found = prod_world(keys)
    run_id = begun_publication(keys, found, how, has_landed=True)
    again = after_death(found)
    with pytest.raises(ApprovalMissing) as seen:
        recover(again, run_id, "carl")
    assert seen.value.exit_code == 3
    assert seen.value.state == f"the files of {run_id} are in {PRODUCT}; no version was accepted"
    assert "publish" not in {row.action for row in found.versions.history(PRODUCT)}
    publish(keys.acting(again, "bob"), run_id, "bob")
    row = newest_row(found)
    assert (row.action, row.by, row.accepted_by) == ("publish", "bob", ("ana",))
    assert signed_environment(row) == "prod"


@E4
def test_publish_takes_the_place_of_a_publication_that_nobody_signed(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = begun_publication(keys, found, "unsigned", has_landed=False)
    (forged,) = found.versions.pending()
    publish(keys.acting(after_death(found), "bob"), run_id, "bob")
    row = newest_row(found)
    assert (row.action, row.by, row.token == forged.token) == ("publish", "bob", False)
    assert signed_environment(row) == "prod"


@E4
@pytest.mark.parametrize("has_landed", [False, True], ids=["not landed", "landed"])
def test_a_rollback_that_nobody_signed_is_not_finished(keys: Keyring, has_landed: bool) -> None:
    found = prod_world(keys)
    published(keys, found)
    alive = die_in(found, "revert", has_landed=has_landed)
    signed = keys.acting(found, "bob")
    way = plan_rollback(signed, PRODUCT, 0, ())
    with pytest.raises(KeyboardInterrupt):
        rollback(signed, contract(), way, "wrong", "bob")
    alive()
    versions: Any = found.versions
    (pending,) = versions.pending()
    versions.move(PRODUCT, lambda _: (pending.model_copy(update={"signature": "", "by": "eve"}),))
    again = after_death(found)
    (done,) = recover(again, None, "carl")
    assert "'rollback' has to be signed in prod" in done.result
    assert done.is_done is not has_landed
    assert newest_row(found).action == ("reserve" if has_landed else "release")
    rollback(keys.acting(again, "bob"), contract(), way, "wrong", "bob")
    row = newest_row(found)
    assert (row.action, row.by) == ("rollback", "bob")
    assert signed_environment(row) == "prod"


@E4
def test_a_version_that_readers_see_and_nobody_signed_finishes_no_run(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    evidence: Any = found.evidence
    record = evidence.record

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    evidence.record = die
    with pytest.raises(KeyboardInterrupt):
        publish(in_dev(found, LAX), run_id, "bob")
    evidence.record = record
    again = after_death(found)
    assert newest_row(found).action == "publish"
    with pytest.raises(NotAllowed, match=f"not signed.*; {run_id} is not finished") as seen:
        recover(again, run_id, "carl")
    assert seen.value.state == f"readers see version 1 of {PRODUCT}"
    assert seen.value.fix == f"lakehouse-backfill rollback {PRODUCT} --to 0 --reason TEXT"
    assert steps.state_of(found, run_id) is RunState.PUBLISHING
    bob = keys.acting(again, "bob")
    rollback(bob, contract(), plan_rollback(bob, PRODUCT, 0, ()), "nobody signed it", "bob")
    assert steps.state_of(found, run_id) is RunState.ROLLED_BACK


@E4
def test_a_profile_with_other_control_tables_does_not_publish_over_a_signed_commit(
    keys: Keyring,
) -> None:
    found = prod_world(keys)
    published(keys, found)
    _, other = steps.world()
    # The same catalog; its control tables know nothing of prod.
    profile = PROD.model_copy(update={"environment": "dev", "control_namespace": "trial"})
    weak = dataclasses.replace(
        found, profile=profile, versions=other.versions, runs=other.runs, evidence=other.evidence
    )
    assert weak.versions.history(PRODUCT) == ()
    ports = weak.profile, weak.versions, weak.tables
    with pytest.raises(
        NotAllowed, match=r"was signed in prod, and this profile .* in trial.* weak"
    ):
        require_bound_environment(*ports, PRODUCT, PRODUCT)
    # A copy of the lake, whose catalog has another name, is a lake of its own.
    copy = profile.model_copy(update={"catalog": {**profile.catalog, "name": "copy"}})
    require_bound_environment(copy, *ports[1:], PRODUCT, PRODUCT)
