"""Signs decisions, publications and rollbacks, where a key was given; refuses where one must be."""

from __future__ import annotations

from datetime import datetime

from lakehouse_backfill.domain.contract import FOUR_EYES_ENVIRONMENTS, Profile
from lakehouse_backfill.domain.identity import statement
from lakehouse_backfill.domain.identity.statement import PAYLOAD_TYPE, Envelope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.errors import ApprovalMissing
from lakehouse_backfill.ports.identity import Identity

#: Decisions, and moves that carry a decision over, which are signed by who makes them.
SIGNED_VERBS = frozenset(
    {"approve", "accept", "waive", "accept difference", "carry approval", "carry acceptance"}
)
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
    document = statement.decision_statement(event, plan.manifest_hash, profile.environment)
    envelope = _sign(identity, document, event.actor, event.at)
    return event.model_copy(
        update={"detail": {**event.detail, statement.SIGNATURE: envelope.to_json()}}
    )


def sign_publication(
    identity: Identity, profile: Profile, row: Publication, at: datetime
) -> Publication:
    """Return the row of a publication or rollback with its signed statement; as `sign_event`."""
    if not identity.has_signer():
        require_signer(identity, profile, "rollback" if row.run_id is None else "publish")
        return row
    document = statement.publication_statement(row, profile.environment, at.isoformat())
    envelope = _sign(identity, document, row.by, at)
    return row.model_copy(update={"signature": canonical_json(envelope.to_json())})


def require_signer(identity: Identity, profile: Profile, act: str) -> None:
    """Raise ApprovalMissing when an act has to be signed, and nothing was given to sign with."""
    if profile.requires_signatures and not identity.has_signer():
        raise unsigned_error(act, profile)


def unsigned_error(act: str, profile: Profile) -> ApprovalMissing:
    """Build the error for an act without a key, where a signature is required."""
    return ApprovalMissing(
        f"'{act}' has to be signed in {profile.environment}, and nothing was given to sign with",
        state="nothing was decided or published",
        fix="lakehouse-backfill --sign-with KEY …: your SSH key or an Ed25519 key file, or `oidc` "
        "in a CI job; docs/security.md",
    )


def _sign(identity: Identity, document: dict[str, object], by: str, at: datetime) -> Envelope:
    payload, message = statement.statement_to_sign(document)
    found = identity.sign(message, by, at)
    return Envelope(payload_type=PAYLOAD_TYPE, payload=payload, signature=found)
