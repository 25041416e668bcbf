"""Whether decisions and publications are signed by those whom they name.

A statement is worked out again from what is stored, and must be the one that was signed: a
signature of another run, place in the log, environment, result or actor does not count. The key
must have been listed for the actor when the log says that the decision was made, and for an act
that is still to come also now: a key that was revoked since opens nothing any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.planning.catch_up import require_same_intent
from lakehouse_backfill.core.runs import event_log, roles, signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.identity import statement
from lakehouse_backfill.domain.identity.statement import Envelope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import ApprovalMissing, NotAllowed

UNSIGNED = "not signed: the name was given by --by"
#: Decision -> the role that it needs.
_ROLES = {
    "approve": "approve",
    "accept": "accept",
    "waive": "waive",
    "accept difference": "waive",
    # Whoever carries a decision over vouches that it covers the revision.
    "carry approval": "publish",
    "carry acceptance": "publish",
}
_CARRYING = frozenset(roles.CARRIED_DECISION_VERBS.values())


@dataclass(frozen=True)
class SignatureVerdict:
    """What was found of one decision or publication: its key, and what is wrong; both may be ""."""

    what: str
    by: str
    key: str = ""
    fault: str = ""

    @property
    def is_signed(self) -> bool:
        """Whether it is signed by whom it names."""
        return bool(self.key) and not self.fault

    @property
    def is_unsigned(self) -> bool:
        """Whether there is no signature at all."""
        return not self.key and not self.fault

    def __str__(self) -> str:
        if self.fault:
            return f"{self.what}: {self.fault}"
        return f"{self.what}: {describe_key(self.key, self.by)}"


def describe_key(key: str, by: str) -> str:
    """Describe a signature that was checked, or that there is none."""
    return f"signed by {key} of {by}" if key else UNSIGNED


def describe_stored(stored: Any) -> str:
    """Describe a stored signature without checking it."""
    if not stored:
        return UNSIGNED
    try:
        envelope = Envelope.from_json(json.loads(stored) if isinstance(stored, str) else stored)
    except ValueError as error:
        return f"the signature cannot be read: {error}"
    return f"signed by {envelope.signature.keyid}; verify checks it"


def log_time(events: Iterable[Event], event: Event) -> datetime:
    """Return the latest time that the log holds up to an event: it was not made before that."""
    return max(one.at for one in events if one.seq <= event.seq)


def check_event(
    context: Context, events: tuple[Event, ...], event: Event, manifest_hash: str,
    now: datetime | None = None,
) -> SignatureVerdict:  # fmt: skip
    """Check the signature of a decision; with `now` its key must hold at that time too."""
    what = f"{event.verb} (event {event.seq} of {event.run_id})"
    stored = event.detail.get(statement.SIGNATURE)
    if not stored:
        return SignatureVerdict(what, event.actor)
    wanted = statement.decision_statement(event, manifest_hash, context.profile.environment)
    at = log_time(events, event)
    return _check(context, SignatureVerdict(what, event.actor), stored, wanted, (at, now))


def check_publication(context: Context, row: Publication) -> SignatureVerdict:
    """Check the signature of a row that was published or rolled back."""
    act = "publish" if row.run_id is not None else "rollback"
    found = SignatureVerdict(f"{act} (version {row.version} of {row.product})", row.by)
    if not row.signature:
        return found
    try:
        stored = json.loads(row.signature)
        signed = json.loads(Envelope.from_json(stored).statement)
        at = str(signed["predicate"]["at"])
    except (ValueError, LookupError, TypeError):
        return SignatureVerdict(found.what, row.by, fault="its signature cannot be read")
    wanted = statement.publication_statement(row, context.profile.environment, at)
    return _check(context, found, stored, wanted, (row.at, None))


def _check(
    context: Context,
    found: SignatureVerdict,
    stored: Any,
    wanted: Mapping[str, Any],
    times: tuple[datetime, datetime | None],
) -> SignatureVerdict:
    try:
        envelope = Envelope.from_json(stored)
    except ValueError as error:
        return SignatureVerdict(found.what, found.by, fault=f"its signature is damaged: {error}")
    if envelope.statement != statement.statement_bytes(wanted):
        signed = json.loads(envelope.statement)
        fields = ", ".join(statement.differing_fields(signed, wanted)) or "its form"
        fault = f"the signature is for something else; it differs in {fields}"
        return SignatureVerdict(found.what, found.by, fault=fault)
    moments = [moment for moment in times if moment is not None]
    if envelope.signature.kind == "oidc":
        # A token lasts for minutes; whether its subject is still listed is looked at now anyway.
        moments = moments[:1]
    for moment in moments:
        checked = context.identity.check(envelope, found.by, moment)
        if checked.fault:
            return SignatureVerdict(found.what, found.by, checked.key, checked.fault)
    return SignatureVerdict(found.what, found.by, checked.key)


def require_signed_run(
    context: Context, plan: Plan, events: tuple[Event, ...], digest: str, by: str
) -> None:
    """Raise unless everything that opens a publication by `by` is signed by people with the roles.

    The approval, the acceptance of the result `digest`, and all waivers in force. Nothing is
    checked where signatures are optional. Raises ApprovalMissing for a decision that is not
    signed, or wrongly; NotAllowed for a signer, or a publisher, without the role.
    """
    if not signers.is_signature_required(context.profile, plan):
        return
    for contract in _contracts(context, plan):
        roles.require_role(contract, "publish", by, context.profile.environment)
    pending = context.versions.pointer(plan.product).pending
    if pending is None or pending.run_id != plan.run_id:
        # A publication that was interrupted is signed by who began it.
        signers.require_signer(context.identity, context.profile, "publish")
    for verb, bound_to in (("approve", plan.manifest_hash), ("accept", digest)):
        _require_signed_decision(context, plan, events, verb, bound_to)
    for event in event_log.events_since_rejection(events):
        if event.verb in ("waive", "accept difference"):
            _require_valid(context, plan, events, event)


def _require_signed_decision(
    context: Context, plan: Plan, events: tuple[Event, ...], verb: str, bound_to: str
) -> None:
    """Raise unless one of the decisions in force on `bound_to` is signed.

    Of a decision that was carried over, both are needed: the first one, and the carrying over.
    """
    verbs = (verb, roles.CARRIED_DECISION_VERBS[verb])
    made = [
        event
        for event in event_log.events_since_rejection(events)
        if event.verb in verbs and event.detail.get("bound_to") == bound_to
    ]
    roles.require_decision(events, verb, bound_to, plan.run_id)
    # A result that was accepted again, for example with a newer key, has two decisions.
    refusals: list[errors.Blocked] = []
    for event in reversed(made):
        try:
            _require_valid(context, plan, events, event)
            if event.verb != verb:
                _require_signed_origin(context, plan, event, verb)
        except (ApprovalMissing, NotAllowed) as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def _require_signed_origin(context: Context, plan: Plan, event: Event, verb: str) -> None:
    """Check the decision on the run that a revision took it over from."""
    catch_up = plan.resolved.catch_up
    if catch_up is None or event.detail.get("carried_from") != catch_up.of:
        raise _refusal(
            plan, f"{event.verb} (event {event.seq}) names no run that {plan.run_id} follows"
        )
    first = context.runs.plan(catch_up.of)
    require_same_intent(first, plan)
    events = context.runs.events(first.run_id)
    successors = [one.detail.get("by_run") for one in events if one.verb == "supersede"]
    if successors != [plan.run_id]:
        raise _refusal(plan, f"{plan.run_id} is not the run that followed {first.run_id}")
    event_log.require_intact_log(context.runs.status(first.run_id), events)
    bound_to = first.manifest_hash if verb == "approve" else catch_up.accepted_digest
    _require_signed_decision(context, first, events, verb, bound_to)


def _require_valid(context: Context, plan: Plan, events: tuple[Event, ...], event: Event) -> None:
    verdict = check_event(context, events, event, plan.manifest_hash, context.clock.now())
    if not verdict.is_signed:
        raise _refusal(plan, str(verdict))
    for contract in _contracts(context, plan):
        roles.require_role(contract, _ROLES[event.verb], event.actor, context.profile.environment)
        if event.verb not in _CARRYING:
            roles.require_four_eyes(plan, context.profile.environment, event.actor, contract)


def _contracts(context: Context, plan: Plan) -> Iterator[Contract]:
    """Yield the contract of the plan, and the one of the project: a plan may hold another one."""
    yield plan.resolved.contract
    yield context.contract(plan.product)


def _refusal(plan: Plan, problem: str) -> ApprovalMissing:
    return ApprovalMissing(
        problem,
        state="nothing was published",
        fix=f"{errors.plan_command(plan.manifest_file, plan.run_id)}, and let it be approved and "
        "accepted with signatures: docs/security.md",
    )


def require_no_wrong_signature(context: Context, row: Publication) -> None:
    """Raise NotAllowed when the version that a rollback leads to is signed wrongly.

    A version that is not signed at all may be of an older release; its absence stops no rollback.
    """
    if not row.signature or not context.profile.requires_signatures:
        return
    verdict = check_publication(context, row)
    if verdict.fault:
        raise NotAllowed(
            f"{verdict}; nobody vouches for that version",
            state="nothing was rolled back",
            fix=f"lakehouse-backfill verify {row.run_id or 'RUN'}, or roll back to another version",
        )


def run_verdicts(
    context: Context,
    events: tuple[Event, ...],
    rows: Iterable[Publication],
    contract: Contract | None = None,
) -> tuple[SignatureVerdict, ...]:
    """Check all decisions of a run's log, and rows of its publications, as the log dates them.

    With `contract`, the signers must have the roles that it names.
    """
    manifest_hash = next((str(e.detail.get("manifest_hash")) for e in events), "")
    environment = context.profile.environment
    found = [
        _with_role(
            check_event(context, events, event, manifest_hash),
            contract, _ROLES[event.verb], environment,
        )
        for event in events
        if event.verb in signers.SIGNED_VERBS
    ]  # fmt: skip
    found += [
        _with_role(check_publication(context, row), contract, "publish", environment)
        for row in rows
    ]
    return tuple(found)


def _with_role(
    verdict: SignatureVerdict, contract: Contract | None, role: str, environment: str
) -> SignatureVerdict:
    holders = contract.holders(role, environment) if contract else ()
    if verdict.is_unsigned or verdict.fault or not holders or verdict.by in holders:
        return verdict
    fault = f"{verdict.by} signed it, and has not the role {role}: {', '.join(holders)}"
    return replace(verdict, fault=fault)
