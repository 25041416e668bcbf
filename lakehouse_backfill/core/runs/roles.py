"""Who may decide what; names and reasons people give.

Who may decide what.

What people write about themselves and their reasons, before it is kept for ever.
"""

from __future__ import annotations

import unicodedata

from lakehouse_backfill import errors
from lakehouse_backfill.domain.contract import FOUR_EYES_ENVIRONMENTS, Contract
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import ApprovalMissing, NotAllowed

#: Decision -> the move that carries it over to a revision that catches up with live data.
CARRIED_DECISION_VERBS = {"approve": "carry approval", "accept": "carry acceptance"}


def require_role(contract: Contract, role: str, who: str) -> None:
    """Raise NotAllowed unless the contract lets `who` act as `role` (an empty list: everybody)."""
    holders: tuple[str, ...] = getattr(contract.roles, role)
    if holders and who not in holders:
        raise NotAllowed(
            f"{who} may not {role} {contract.product}; the contract names {', '.join(holders)}",
            fix=f"ask one of them to run it with --by, or change roles.{role} in the contract",
        )


def require_validator(contract: Contract, who: str | None) -> None:
    """Raise NotAllowed unless `who` may read candidates before they are published (U7).

    Nobody named in the contract: everybody may, also who does not say who they are.
    """
    holders = contract.roles.validators
    if holders and who not in holders:
        raise NotAllowed(
            f"{who or 'somebody unnamed'} may not read a candidate of {contract.product} before it "
            f"is published; the contract names {', '.join(holders)}",
            fix="ask one of them, with --by, or change roles.validators in the contract",
        )


def require_any_role(contract: Contract, roles: tuple[str, ...], requester: str, who: str) -> None:
    """Raise NotAllowed unless `who` asked for the run, or may act as one of the roles."""
    holders = [getattr(contract.roles, role) for role in roles]
    names = dict.fromkeys(name for held in holders for name in held)
    if who != requester and all(holders) and who not in names:
        raise NotAllowed(
            f"{who} neither requested the run nor may {' or '.join(roles)} {contract.product}; "
            f"the contract names {', '.join(names)}",
            fix=f"ask {requester} or one of them to run it with --by",
        )


def require_four_eyes(plan: Plan, environment: str, who: str) -> None:
    """Raise NotAllowed when four eyes are asked for and `who` asked for the run or planned it.

    They are asked for by the contract, or where it does not say, when the run was planned in, or
    `environment` that decides is, one that wants them: another profile is no way around.
    """
    contract, asked = plan.resolved.contract, plan.resolved.manifest.run.requested_by
    wanted = contract.four_eyes
    if wanted is None:
        wanted = not {environment, plan.resolved.environment}.isdisjoint(FOUR_EYES_ENVIRONMENTS)
    did = {plan.created_by.strip(): "planned", asked.strip(): "requested"}.get(who.strip())
    if wanted and did is not None:
        raise NotAllowed(
            f"{who} {did} the run and may not decide on it: {contract.product} needs four eyes",
            fix="let somebody else decide",
        )


def decision_makers(events: tuple[Event, ...], verb: str, bound_to: str) -> tuple[str, ...]:
    """Name who made the decision `verb` on exactly `bound_to`, oldest first.

    A later rejection takes back what was decided before it. A decision that was carried over to a
    revision counts for those who made it.
    """
    standing: list[str] = []
    for event in sorted(events, key=lambda event: event.seq):
        if event.verb == "reject":
            standing.clear()
        elif (
            event.verb in (verb, CARRIED_DECISION_VERBS.get(verb))
            and event.detail.get("bound_to") == bound_to
        ):
            standing += event_deciders(event)
    return tuple(standing)


def event_deciders(event: Event) -> tuple[str, ...]:
    """Name who made the decision of an event: those of the first run, if it was carried over."""
    return tuple(event.detail.get("decided_by", ())) or (event.actor,)


def require_approval(events: tuple[Event, ...], plan: Plan) -> None:
    """Raise ApprovalMissing unless the plan's intent was approved, and nobody rejected it since."""
    require_decision(events, "approve", plan.manifest_hash, plan.run_id, plan.manifest_file)


def require_decision(
    events: tuple[Event, ...],
    verb: str,
    bound_to: str,
    run_id: str,
    manifest_file: str = errors.MANIFEST_PLACEHOLDER,
) -> None:
    """Raise ApprovalMissing unless `verb` was decided on exactly `bound_to`."""
    rejected = [event for event in events if event.verb == "reject"]
    if not decision_makers(events, verb, bound_to) and rejected:
        raise ApprovalMissing(
            f"{rejected[-1].actor} rejected {run_id}: {rejected[-1].detail.get('reason') or '-'}",
            fix=f"{errors.plan_command(manifest_file, run_id)}, and let that be approved",
        )
    if not decision_makers(events, verb, bound_to):
        raise ApprovalMissing(
            f"{run_id}: nobody made the decision '{verb}' on what is about to happen "
            f"({bound_to[:12]}…)",
            fix=f"lakehouse-backfill {verb} {run_id} --by WHO",
        )


#: Characters of a reason: it stands in the log, on the evidence page and in snapshots.
MAX_REASON_CHARACTERS = 2_000
#: Control characters move the cursor of whoever reads the log; lone surrogates are no text at all.
_REFUSED = ("Cc", "Cs")


def name_fault(name: str) -> str | None:
    """Say what is wrong with the name of a person; None: nothing."""
    stripped = name.strip()
    if not stripped:
        return "is empty, so nobody would have acted"
    return "holds a control character" if _has_refused_character(stripped) else None


def reason_fault(reason: str) -> str | None:
    """Say what is wrong with a reason; None: nothing. Lines and tabs are fine."""
    if len(reason) > MAX_REASON_CHARACTERS:
        return f"is {len(reason):,} characters long, and {MAX_REASON_CHARACTERS:,} are the most"
    return "holds a control character" if _has_refused_character(reason, but="\n\t") else None


def _has_refused_character(text: str, but: str = "") -> bool:
    return any(unicodedata.category(letter) in _REFUSED for letter in text if letter not in but)
