"""Whether decisions and publications are signed by those whom they name.

A statement is worked out again from what is stored, and must be the one that was signed: a
signature of another run, place in the log, environment, result or actor does not count. The key
must have been listed for the actor when the log says that the decision was made, and for an act
that is still to come also now: a key that was revoked since opens nothing any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.core.planning.target.catch_up import require_same_intent
from lakehouse_backfill.core.runs import event_log, roles, signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.event_log import EventChains, ProductRows
from lakehouse_backfill.core.versions import reserve
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.identity import statement
from lakehouse_backfill.domain.identity.statement import Envelope, SignedTable
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import ApprovalMissing, NotAllowed

UNSIGNED = "not signed: the name is the login's, or that of --by"
#: Decision -> the role that it needs; a plan needs none.
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
    except (ValueError, RecursionError) as error:
        return f"the signature cannot be read: {error}"
    return f"signed by {envelope.signature.keyid}; verify checks it"


def log_time(events: Iterable[Event], event: Event) -> datetime:
    """Return the latest time that the log holds up to an event: it was not made before that."""
    return max(one.at for one in events if one.seq <= event.seq)


def check_event(
    context: Context,
    events: tuple[Event, ...],
    event: Event,
    manifest_hash: str,
    to_come: tuple[Plan, datetime] | None = None,
) -> SignatureVerdict:
    """Check the signature of a plan or decision.

    Where an act is `to_come`, the key must hold at that time too, and the statement has to name the
    table of the plan and the control tables. A statement of an older release names none, and
    vouches for the past only.
    """
    found = SignatureVerdict(f"{event.verb} (event {event.seq} of {event.run_id})", event.actor)
    stored, environment = event.detail.get(statement.SIGNATURE), context.profile.environment
    if not stored:
        return found
    planned = signers.planned_table(context.profile, to_come[0]) if to_come else None

    def wanted(signed: Mapping[str, Any]) -> dict[str, Any]:
        table = planned or statement.signed_table(signed)
        return statement.decision_statement(event, manifest_hash, environment, table)

    # A clock that was set back is behind the log: no act is earlier than what the log holds.
    acts = (max(to_come[1], *(one.at for one in events)),) if to_come else ()
    moments = (log_time(events, event), *acts)
    return _check(context, found, stored, wanted, moments)


def check_publication(
    context: Context, row: Publication, *, is_pending: bool = False
) -> SignatureVerdict:
    """Check the signature of a row that was published or rolled back, or that is pending.

    Its statement has to name the table, as in `check_event`, but the names of catalog and control
    tables may be others now, and a statement of an older release vouches for what was done.
    """
    act = "publish" if row.run_id is not None else "rollback"
    found = SignatureVerdict(f"{act} (version {row.version} of {row.product})", row.by)
    if not row.signature:
        return found
    try:
        stored = json.loads(row.signature)
    except (ValueError, RecursionError):
        return replace(found, fault="its signature cannot be read")

    def wanted(signed: Mapping[str, Any]) -> dict[str, Any]:
        environment, at = context.profile.environment, str(signed["predicate"]["at"])
        table = _acted_table(context, row)
        named = None if is_pending else statement.signed_table(signed)
        if not is_pending and (named is None or table is None):
            table = named
        elif named and table:
            table = table.model_copy(update={"catalog": named.catalog, "control": named.control})
        return statement.publication_statement(row, environment, at, table)

    return _check(context, found, stored, wanted, (row.at,))


def _acted_table(context: Context, row: Publication) -> SignedTable | None:
    with suppress(errors.NotFound, errors.Tampered):
        return reserve.acted_table(context, row)
    return None  # the audit names a plan that is gone or edited


def _check(
    context: Context,
    found: SignatureVerdict,
    stored: Any,
    wanted: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    moments: tuple[datetime, ...],
) -> SignatureVerdict:
    try:
        envelope = Envelope.from_json(stored)
    except ValueError as error:
        return replace(found, fault=f"its signature is damaged: {error}")
    signed = json.loads(envelope.statement)
    try:
        needed = wanted(signed)
    except (ValueError, LookupError, TypeError):
        return replace(found, fault="its signature is damaged: it is over no statement")
    if envelope.statement != statement.statement_bytes(needed):
        fields = ", ".join(statement.differing_fields(signed, needed)) or "its form"
        fault = f"the signature is for something else; it differs in {fields}"
        return replace(found, fault=fault)
    if envelope.signature.kind == "oidc":
        # A token lasts for minutes; whether its subject is still listed is looked at now anyway.
        moments = moments[:1]
    for moment in moments:
        checked = context.identity.check(envelope, found.by, moment)
        if checked.fault:
            return replace(found, key=checked.key, fault=checked.fault)
    return replace(found, key=checked.key)


def require_registered_plan(context: Context, plan: Plan, events: tuple[Event, ...]) -> None:
    """Raise unless the plan is the one that was registered and, where required, signed.

    Raises Tampered when it is another one; ApprovalMissing when it is not signed, or wrongly;
    NotAllowed when it was signed by somebody else than who planned it.
    """
    event = next((event for event in events if event.verb == "plan"), None)
    registered = event.detail.get(signers.REGISTERED) if event else None
    if registered not in (None, plan.registered_digest):
        raise errors.Tampered(
            f"the plan of {plan.run_id} is not the one that was registered",
            state="nothing was computed, decided or published",
            fix=f"put the row of {plan.run_id} in pipeline_run back from an earlier snapshot of "
            "that table",
        )
    if not signers.is_signature_required(context.profile, plan):
        return
    fault = f"plan of {plan.run_id}: {UNSIGNED}"
    if event is not None and registered is not None:
        to_come = plan, context.clock.now()
        verdict = check_event(context, events, event, plan.manifest_hash, to_come)
        fault = "" if verdict.is_signed else str(verdict)
    if fault or event is None:
        raise ApprovalMissing(
            fault,
            state="nothing was computed, decided or published",
            fix=f"{command_line('cancel', plan.run_id)}; then plan again with "
            "--sign-with KEY: docs/security.md",
        )
    _require_planner(context, plan, event.actor)


def _require_planner(context: Context, plan: Plan, signer: str) -> None:
    """Raise NotAllowed unless who signed a plan made it; or follows live data, with the role."""
    if plan.resolved.catch_up is not None:
        for contract in _contracts(context, plan):
            roles.require_role(contract, "publish", signer, context.profile.environment)
    elif signer != plan.created_by:
        raise NotAllowed(
            f"{signer} signed the plan {plan.run_id}, and {plan.created_by} made it",
            state="nothing was computed, decided or published",
            fix=f"{command_line('cancel', plan.run_id)}; then plan again",
        )


def require_named_approver(context: Context, plan: Plan, approver: str) -> None:
    """Raise NotAllowed unless who approves is the person in whose name a manifest waives a rule.

    Where signatures are required: a name in a file is nobody's decision.
    """
    waivers = plan.resolved.manifest.safety.waivers
    others = {name: by for name, by in waivers.items() if by != approver}
    if not others or not signers.is_signature_required(context.profile, plan):
        return
    what = ", ".join(f"safety.{name} in the name of {by}" for name, by in others.items())
    people = tuple(dict.fromkeys(waivers.values()))
    fix = f"{command_line('approve', plan.run_id)} --by {people[0]}, signed by {people[0]}"
    if len(people) > 1:
        fix = f"write one person, who approves, in all waivers; {plan_command(revise=plan.run_id)}"
    raise NotAllowed(
        f"the manifest of {plan.run_id} has {what}, and {approver} approves it: who waives has to "
        "approve",
        state="nothing was computed, decided or published",
        fix=fix,
    )


def require_signed_intent(context: Context, plan: Plan, events: tuple[Event, ...]) -> None:
    """Raise unless plan and approval, from which a run is computed, are signed where required."""
    require_registered_plan(context, plan, events)
    if signers.is_signature_required(context.profile, plan):
        _require_signed_decision(context, plan, events, "approve", plan.manifest_hash)


def require_signed_run(
    context: Context, plan: Plan, events: tuple[Event, ...], digest: str, by: str
) -> None:
    """Raise unless everything that opens a publication by `by` is signed by people with the roles.

    The plan, the approval, the acceptance of the result `digest`, and all waivers in force. Where
    signatures are optional, only the plan is compared with what was registered. Raises
    ApprovalMissing for a decision that is not signed, or wrongly; NotAllowed for a signer, or a
    publisher, without the role.
    """
    require_registered_plan(context, plan, events)
    _require_approved_intent(context, plan, events)
    if not signers.is_signature_required(context.profile, plan):
        return
    for contract in _contracts(context, plan):
        roles.require_role(contract, "publish", by, context.profile.environment)
    pending = context.versions.pointer(plan.product).pending
    is_own = pending is not None and pending.run_id == plan.run_id
    if pending is None or not is_own or pending_publication_fault(context, plan, pending):
        # A publication that was interrupted is signed by who began it.
        signers.require_signer(context.identity, context.profile, "publish")
    for verb, bound_to in (("approve", plan.manifest_hash), ("accept", digest)):
        _require_signed_decision(context, plan, events, verb, bound_to)
    for event in event_log.events_since_rejection(events):
        if event.verb in ("waive", "accept difference"):
            _require_valid(context, plan, events, event)


def _require_approved_intent(context: Context, plan: Plan, events: tuple[Event, ...]) -> None:
    """Raise ApprovalMissing unless a carried-over approval was given to what the plan does.

    The plan is compared with the one that people approved, however many revisions lie between.
    """
    approved, seen = plan, {plan.run_id}
    while any(e.verb == "carry approval" for e in event_log.events_since_rejection(events)):
        origin = approved.resolved.catch_up.of if approved.resolved.catch_up else approved.run_id
        if origin in seen:
            raise _refusal(plan, f"{approved.run_id} follows no other run, and took its approval")
        seen.add(origin)
        approved, events = context.runs.plan(origin), context.runs.events(origin)
        require_same_intent(approved, plan)


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
    require_registered_plan(context, first, events)
    bound_to = first.manifest_hash if verb == "approve" else catch_up.accepted_digest
    _require_signed_decision(context, first, events, verb, bound_to)


def _require_valid(context: Context, plan: Plan, events: tuple[Event, ...], event: Event) -> None:
    to_come = plan, context.clock.now()
    verdict = check_event(context, events, event, plan.manifest_hash, to_come)
    if not verdict.is_signed:
        raise _refusal(plan, str(verdict))
    if event.verb == "approve":
        require_named_approver(context, plan, event.actor)
    for contract in _contracts(context, plan):
        roles.require_role(contract, _ROLES[event.verb], event.actor, context.profile.environment)
        if event.verb not in _CARRYING:
            roles.require_four_eyes(plan, context.profile.environment, event.actor, contract)
            if roles.is_four_eyes_required(plan, context.profile.environment, contract):
                first = next(one for one in events if one.verb == "plan")
                planning = check_event(context, events, first, plan.manifest_hash).key
                roles.require_two_keys(plan.product, verdict.key, planning)


def _contracts(context: Context, plan: Plan) -> Iterator[Contract]:
    """Yield the contract of the plan, and the one of the project: a plan may hold another one."""
    yield plan.resolved.contract
    yield context.contract(plan.product)


def _refusal(plan: Plan, problem: str) -> ApprovalMissing:
    return ApprovalMissing(
        problem,
        state="nothing was published",
        fix=f"{plan_command(plan.manifest_file, plan.run_id)}, and let it be approved and "
        "accepted with signatures: docs/security.md",
    )


def pending_publication_fault(context: Context, plan: Plan, pending: Publication) -> str:
    """Return why a publication that was begun is not finished in the name of who began it.

    Empty where no signature is required, or where somebody with the role signed it.
    """
    return published_fault(context, plan, pending, is_pending=True)


def published_fault(
    context: Context, plan: Plan, row: Publication, *, is_pending: bool = False
) -> str:
    """Return the same of a version that readers see."""
    if not signers.is_signature_required(context.profile, plan):
        return ""
    verdict = check_publication(context, row, is_pending=is_pending)
    for contract in _contracts(context, plan):
        verdict = _with_role(verdict, contract, "publish", context.profile.environment)
    return "" if verdict.is_signed else str(verdict)


def pending_rollback_fault(context: Context, contract: Contract, pending: Publication) -> str:
    """Return the same of a rollback that was begun."""
    if not context.profile.requires_signatures:
        return ""
    verdict = check_publication(context, pending, is_pending=True)
    verdict = _with_role(verdict, contract, "rollback", context.profile.environment)
    return "" if verdict.is_signed else str(verdict)


def require_rollback_allowed(context: Context, product: str, way: RollbackTarget) -> None:
    """Raise NotAllowed when a rollback is one of another environment, or to a wrong signature.

    It undoes, or leads to, runs that were planned or versions that were signed in prod. A version
    that is not signed at all may be of an older release; its absence stops no rollback.
    """
    rows, profile = (way.publication, *way.undone), context.profile
    if not signers.is_strong(profile):
        for run_id in dict.fromkeys(row.run_id for row in rows if row.run_id):
            roles.require_plan_environment(context.runs.plan(run_id), profile.environment)
        for table in dict.fromkeys(row.table for row in rows):
            signers.require_bound_environment(
                profile, context.versions, context.tables, product, table
            )
    _require_no_wrong_signature(context, way.publication)


def _require_no_wrong_signature(context: Context, row: Publication) -> None:
    if not row.signature or not context.profile.requires_signatures:
        return
    verdict = check_publication(context, row)
    if verdict.fault:
        raise NotAllowed(
            f"{verdict}; nobody vouches for that version",
            state="nothing was rolled back",
            fix=f"{command_line('versions', row.product)}; roll back to another version",
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
            contract, _ROLES.get(event.verb, ""), environment,
        )
        for event in events
        if event.verb in signers.SIGNED_VERBS
    ]  # fmt: skip
    found += [
        _with_role(check_publication(context, row), contract, "publish", environment)
        for row in rows
    ]
    return tuple(found)


def all_verdicts(
    context: Context, chains: EventChains, products: ProductRows
) -> list[SignatureVerdict]:
    """Check all decisions of all logs, and all publications and rollbacks."""
    context.progress.count("audit verify, signatures of", len(chains), "runs")
    found = list[SignatureVerdict]()
    for events in chains.values():
        found += run_verdicts(context, events, ())
        context.progress.advance()
    context.progress.finish()
    rows = (row for rows, _ in products.values() for row in rows)
    acts = (row for row in rows if row.action in ("publish", "rollback"))
    return found + [check_publication(context, row) for row in acts]


def _with_role(
    verdict: SignatureVerdict, contract: Contract | None, role: str, environment: str
) -> SignatureVerdict:
    holders = contract.holders(role, environment) if contract and role else ()
    if verdict.is_unsigned or verdict.fault or not holders or verdict.by in holders:
        return verdict
    fault = f"{verdict.by} signed it, and has not the role {role}: {', '.join(holders)}"
    return replace(verdict, fault=fault)
