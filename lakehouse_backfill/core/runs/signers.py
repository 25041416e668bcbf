"""Signs decisions, publications and rollbacks, where a key was given; refuses where one must be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime

from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.domain.identity import statement
from lakehouse_backfill.domain.identity.statement import (
    BOUND_PROPERTY,
    PAYLOAD_TYPE,
    Envelope,
    SignedTable,
)
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.profile import FOUR_EYES_ENVIRONMENTS, Profile
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.errors import ApprovalMissing, NotAllowed
from lakehouse_backfill.ports.control import Versions
from lakehouse_backfill.ports.system import Identity
from lakehouse_backfill.ports.tables import Tables

#: Plans, decisions, and moves that carry a decision over: signed by who makes them.
SIGNED_VERBS = frozenset(
    {
        "plan", "approve", "accept", "waive", "accept difference", "carry approval",
        "carry acceptance",
    }
)  # fmt: skip
#: The field of a plan's first event that holds what was registered.
REGISTERED = "registered"
#: Decisions that another key has to make than the plan's, where four eyes are required.
FOUR_EYES_VERBS = frozenset({"approve", "accept", "waive", "accept difference"})
#: Signed where a key is given. It is never required: whoever sees a fault may stop a run.
_STOPS = frozenset({"reject"})


def is_signature_required(profile: Profile, plan: Plan) -> bool:
    """Return whether decisions on the run have to be signed.

    Also when the run was planned under a profile of `prod`, and another profile is used now.
    """
    environment = plan.resolved.environment
    is_elsewhere = environment != profile.environment
    return profile.requires_signatures or (is_elsewhere and environment in FOUR_EYES_ENVIRONMENTS)


def sign_event(identity: Identity, profile: Profile, plan: Plan, event: Event) -> Event:
    """Return the event with the envelope of its signed statement in its detail.

    `event` has the product, and the hash of the event that it follows. Without a key it is returned
    as it is; raises ApprovalMissing when a signature is required, NotAllowed when the key is not
    that of the actor.
    """
    if event.verb not in SIGNED_VERBS | _STOPS:
        return event
    if not identity.has_signer():
        if event.verb in SIGNED_VERBS and is_signature_required(profile, plan):
            raise unsigned_error(event.verb, profile)
        return event
    document = statement.decision_statement(
        event, plan.manifest_hash, profile.environment, planned_table(profile, plan)
    )
    envelope = _sign(identity, document, event.actor, event.at)
    return event.model_copy(
        update={"detail": {**event.detail, statement.SIGNATURE: envelope.to_json()}}
    )


def require_second_key(
    identity: Identity, profile: Profile, plan: Plan, event: Event, events: Iterable[Event]
) -> None:
    """Raise NotAllowed when a decision is signed with the key that signed the plan.

    Only where four eyes are required, and both are signed; names are compared elsewhere.
    """
    first = next((one for one in events if one.verb == "plan"), None)
    stored = first.detail.get(statement.SIGNATURE) if first else None
    contract = plan.resolved.contract
    if not stored or not roles.is_four_eyes_required(plan, profile.environment, contract):
        return
    planned, decided = (
        identity.check(Envelope.from_json(one.detail[statement.SIGNATURE]), one.actor, one.at).key
        for one in (first or event, event)
    )
    roles.require_two_keys(contract.product, decided, planned)


def planned_table(profile: Profile, plan: Plan) -> SignedTable:
    """Return the table that a plan changes, as it was when it was planned."""
    target, catalog = plan.resolved.target, profile.catalog.get("name", "")
    return SignedTable(
        catalog=catalog,
        name=target.table,
        uuid=target.uuid,
        base_snapshot_id=target.snapshot_id,
        control=profile.control_namespace,
    )


def sign_publication(
    identity: Identity,
    profile: Profile,
    row: Publication,
    at: datetime,
    table: Callable[[], SignedTable | None],
) -> Publication:
    """Return the row of a publication or rollback with its signed statement; as `sign_event`."""
    if not identity.has_signer():
        require_signer(identity, profile, "rollback" if row.run_id is None else "publish")
        return row
    document = statement.publication_statement(row, profile.environment, at.isoformat(), table())
    envelope = _sign(identity, document, row.by, at)
    return row.model_copy(update={"signature": canonical_json(envelope.to_json())})


def require_signer(identity: Identity, profile: Profile, act: str) -> None:
    """Raise ApprovalMissing when an act has to be signed, and nothing was given to sign with."""
    if profile.requires_signatures and not identity.has_signer():
        raise unsigned_error(act, profile)


def require_planner(identity: Identity, profile: Profile, plan: Plan, by: str) -> None:
    """Raise unless `by` may register the plan: with a key, and in their own name, where required.

    A revision that follows live data is registered by who publishes, in the planner's name.
    """
    if not is_signature_required(profile, plan):
        return
    require_signer(identity, profile, "plan")
    if plan.resolved.catch_up is None and by != plan.created_by:
        raise NotAllowed(
            f"{plan.created_by} made the plan {plan.run_id}, and did not sign it: {by} cannot "
            "sign it for them",
            state="nothing was registered",
            fix=f"{plan_command(plan.manifest_file, plan.revises or '')} --by {plan.created_by}",
        )


def unsigned_error(act: str, profile: Profile) -> ApprovalMissing:
    """Build the error for an act without a key, where a signature is required."""
    return ApprovalMissing(
        f"'{act}' has to be signed in {profile.environment}, and nothing was given to sign with",
        state="nothing was registered, decided or published",
        fix="lakehouse-backfill --sign-with KEY …: your SSH key or an Ed25519 key file, or `oidc` "
        "in a CI job; docs/security.md",
    )


#: Acts that make a version what consumers read.
_ACCEPTING_ACTS = frozenset({"publish", "rollback"})


def binding_mark(profile: Profile, table: str) -> dict[str, str]:
    """Return the summary property of a commit to a table that is signed in prod; else nothing."""
    mark = f"{profile.environment}:{profile.catalog.get('name', '')}:{table}"
    return {BOUND_PROPERTY: mark} if is_strong(profile) else {}


def require_bound_environment(
    profile: Profile, versions: Versions, tables: Tables, product: str, table: str
) -> None:
    """Raise NotAllowed when product or table were signed in prod, and the profile is weaker.

    A profile is weaker when it is of another environment, or when its signatures are optional:
    docs/decisions/0016. The table itself is asked, too: its versions may be in other control
    tables. Nothing is read for any other profile.
    """
    if is_strong(profile):
        return
    for row in (*versions.history(product), *versions.of_table(table)):
        bound_to = signed_environment(row) if row.action in _ACCEPTING_ACTS else None
        if bound_to not in FOUR_EYES_ENVIRONMENTS:
            continue
        weakness = f"the profile is of {profile.environment}"
        if profile.environment == bound_to:
            weakness = "the signatures of this profile are optional"
        raise NotAllowed(
            f"version {row.version} of {row.product} in {row.table} was signed in {bound_to}, and "
            f"{weakness}",
            state="nothing was published or rolled back",
            fix=f"name a profile of {bound_to} that requires signatures with --profile",
        )
    for environment in FOUR_EYES_ENVIRONMENTS:
        if f"{environment}:{profile.catalog.get('name', '')}:{table}" in tables.marks(table):
            raise NotAllowed(
                f"a commit to {table} was signed in {environment}, and this profile "
                f"({profile.environment}, control tables in {profile.control_namespace}) is weaker",
                state="nothing was published or rolled back",
                fix=f"name a profile of {environment} that requires signatures with --profile; for "
                "a copy of the lake, give the catalog another name in the profile",
            )


def is_strong(profile: Profile) -> bool:
    """Return whether a profile is of prod and requires signatures."""
    return profile.environment in FOUR_EYES_ENVIRONMENTS and profile.requires_signatures


def signed_environment(row: Publication) -> str | None:
    """Return the environment that the signature of a row names; None when there is no signature.

    A signature that cannot be read binds as one of prod does: somebody edited the row.
    """
    if not row.signature:
        return None
    try:
        signed = json.loads(Envelope.from_json(json.loads(row.signature)).statement)
        return str(signed["predicate"]["environment"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return FOUR_EYES_ENVIRONMENTS[0]


def _sign(identity: Identity, document: dict[str, object], by: str, at: datetime) -> Envelope:
    payload, message = statement.statement_to_sign(document)
    found = identity.sign(message, by, at)
    return Envelope(payload_type=PAYLOAD_TYPE, payload=payload, signature=found)
