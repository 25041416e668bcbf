"""Who may decide what in an environment: roles, decisions in force, and switches of the profile.

Names and reasons are checked before they are stored permanently.

Switches say what may be done at all, for all products or for one. They are read from the profile of
the command that acts, not from the plan: switching something off holds at once, for runs that are
open as well. A way back (rollback, recover, cancel) has no switch.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Final

from lakehouse_backfill.command_lines import (
    PERSON_PLACEHOLDER,
    REASON_PLACEHOLDER,
    plan_command,
)
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.safety import OFF_BY_DEFAULT, Switch
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.profile import FOUR_EYES_ENVIRONMENTS, Profile
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import ApprovalMissing, Blocked, NotAllowed

#: Decision -> the move that carries it over to a catch-up revision.
CARRIED_DECISION_VERBS = {"approve": "carry approval", "accept": "carry acceptance"}


def require_role(contract: Contract, role: str, who: str, environment: str) -> None:
    """Raise NotAllowed unless the contract lets `who` act as `role` (an empty list allows all)."""
    holders = contract.holders(role, environment)
    if holders and who not in holders:
        raise NotAllowed(
            f"{who} may not {role} {contract.product}; the contract names {', '.join(holders)}",
            fix=f"ask one of them to run it with --by, or change roles.{role} in the contract",
        )


def require_validator(contract: Contract, who: str | None) -> None:
    """Raise NotAllowed unless `who` may read candidates before they are published (U7).

    When the contract names no validator, everyone may, also without a name.
    """
    holders = contract.roles.validators
    if holders and who not in holders:
        raise NotAllowed(
            f"{who or 'somebody unnamed'} may not read a candidate of {contract.product} before it "
            f"is published; the contract names {', '.join(holders)}",
            fix="ask one of them, with --by, or change roles.validators in the contract",
        )


def require_any_role(
    contract: Contract, roles: tuple[str, ...], requester: str, who: str, environment: str
) -> None:
    """Raise NotAllowed unless `who` requested the run, or may act as one of the roles."""
    holders = [contract.holders(role, environment) for role in roles]
    names = dict.fromkeys(name for held in holders for name in held)
    if who != requester and all(holders) and who not in names:
        raise NotAllowed(
            f"{who} neither requested the run nor may {' or '.join(roles)} {contract.product}; "
            f"the contract names {', '.join(names)}",
            fix=f"ask {requester} or one of them to run it with --by",
        )


def require_plan_environment(plan: Plan, environment: str) -> None:
    """Raise NotAllowed when a run of prod is decided or published under another environment.

    The roles of that environment, and whether it requires signatures, are others.
    """
    planned = plan.resolved.environment
    if planned in FOUR_EYES_ENVIRONMENTS and environment != planned:
        raise NotAllowed(
            f"{plan.run_id} was planned in {planned}, and the profile is of {environment}",
            fix=f"name a profile of {planned} with --profile",
        )


def require_four_eyes(
    plan: Plan, environment: str, who: str, contract: Contract | None = None
) -> None:
    """Raise NotAllowed when four eyes are required and `who` requested or planned the run.

    The contract (by default that of the plan) decides whether they are required. Names are compared
    without case, and in Unicode's compatible form.
    """
    contract = contract or plan.resolved.contract
    requester = plan.resolved.manifest.run.requested_by
    acts = {_comparable_name(plan.created_by): "planned", _comparable_name(requester): "requested"}
    role = acts.get(_comparable_name(who))
    if role is not None and is_four_eyes_required(plan, environment, contract):
        raise NotAllowed(
            f"{who} {role} the run and may not decide on it: {contract.product} needs four eyes",
            fix="let somebody else decide",
        )


def is_four_eyes_required(plan: Plan, environment: str, contract: Contract) -> bool:
    """Return whether two people have to decide, by a contract.

    Without a setting there, they have to when the environment of the plan, or the deciding one,
    requires it: another profile does not bypass the rule.
    """
    if contract.four_eyes is not None:
        return contract.four_eyes
    return not {environment, plan.resolved.environment}.isdisjoint(FOUR_EYES_ENVIRONMENTS)


def require_two_keys(product: str, deciding: str, planning: str) -> None:
    """Raise NotAllowed when one key, or one CI subject, signed both the plan and a decision."""
    if deciding and deciding == planning:
        raise NotAllowed(
            f"{deciding} signed the plan and decides on it: {product} needs four eyes, of two keys",
            state="nothing was decided or published",
            fix="let somebody else decide, with a key of their own",
        )


def _comparable_name(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().strip()


def decision_makers(events: tuple[Event, ...], verb: str, bound_to: str) -> tuple[str, ...]:
    """Return who made the decision `verb` on exactly `bound_to`, oldest first.

    A later rejection voids earlier decisions. A decision that was carried over to a revision counts
    for those who made it.
    """
    verbs = (verb, CARRIED_DECISION_VERBS.get(verb))
    return tuple(
        decider
        for event in event_log.events_since_rejection(events)
        if event.verb in verbs and event.detail.get("bound_to") == bound_to
        for decider in event_deciders(event)
    )


def event_deciders(event: Event) -> tuple[str, ...]:
    """Return who made the decision of an event; if carried over, those of the first run."""
    return tuple(event.detail.get("decided_by", ())) or (event.actor,)


def require_approval(events: tuple[Event, ...], plan: Plan) -> None:
    """Raise ApprovalMissing unless the plan's intent was approved, and not rejected since."""
    require_decision(events, "approve", plan.manifest_hash, plan.run_id, plan.manifest_file)


def require_decision(
    events: tuple[Event, ...],
    verb: str,
    bound_to: str,
    run_id: str,
    manifest_file: str = "",
) -> None:
    """Raise ApprovalMissing unless `verb` was decided on exactly `bound_to`."""
    if decision_makers(events, verb, bound_to):
        return
    rejected = [event for event in events if event.verb == "reject"]
    if rejected:
        raise ApprovalMissing(
            f"{rejected[-1].actor} rejected {run_id}: {rejected[-1].detail.get('reason') or '-'}",
            fix=f"{plan_command(manifest_file, run_id)}, and let that be approved",
        )
    raise ApprovalMissing(
        f"{run_id}: nobody made the decision '{verb}' on what is about to happen "
        f"({bound_to[:12]}…)",
        fix=f"lakehouse-backfill {verb} {run_id}",
    )


#: Maximum characters of a reason: it is in the log, on the evidence page and in snapshots.
MAX_REASON_CHARACTERS = 2_000
#: Control characters move the cursor of a terminal that shows the log; lone surrogates are no text.
_REFUSED = ("Cc", "Cs")


def name_fault(name: str) -> str | None:
    """Return what is wrong with the name of a person; None when it is valid."""
    stripped = name.strip()
    if not stripped:
        return "is empty, so nobody would have acted"
    if stripped == PERSON_PLACEHOLDER:
        return f"is {stripped}, which stands for a name"
    return "holds a control character" if _has_refused_character(stripped) else None


def reason_fault(reason: str) -> str | None:
    """Return what is wrong with a reason; None when it is valid. Lines and tabs are allowed."""
    if len(reason) > MAX_REASON_CHARACTERS:
        return f"is {len(reason):,} characters long, and {MAX_REASON_CHARACTERS:,} are the most"
    if reason.strip() == REASON_PLACEHOLDER:
        return f"is {REASON_PLACEHOLDER}, which stands for a sentence of yours"
    return "holds a control character" if _has_refused_character(reason, but="\n\t") else None


def _has_refused_character(text: str, but: str = "") -> bool:
    return any(unicodedata.category(letter) in _REFUSED for letter in text if letter not in but)


#: By switch: what cannot be done, as a sentence begins.
_ACTS: Final[dict[Switch, str]] = {
    "publish": "publications of {product} are switched off",
    "live_topic": "topics of {product} are switched off",
    "waivers": "waivers for {product} are switched off",
    "hooks": "hooks of {product} are switched off",
    "catch_up": "catch-up of {product} is switched off",
}


def describe_switched_off(profile: Profile, product: str) -> dict[Switch, str]:
    """Return, by switch, a sentence for what is switched off for the product in this profile."""
    return {
        switch: f"{text.format(product=product)} in this profile ({place})"
        for switch, text in _ACTS.items()
        for place in [_place(profile, switch, product)]
        if not profile.is_on(switch, product)
    }


def require_switched_on(profile: Profile, switch: Switch, product: str, state: str) -> None:
    """Raise Blocked, naming the field of the profile, when something is switched off."""
    problem = describe_switched_off(profile, product).get(switch)
    if problem is not None:
        place = _place(profile, switch, product)
        raise Blocked(
            problem,
            state=state,
            fix=f"write {place}: true in catalog/profiles.yaml, then repeat it",
        )


def require_pilot(profile: Profile, product: str) -> None:
    """Raise Blocked when a pilot list limits publication to other products."""
    if profile.pilot is not None and product not in profile.pilot:
        named = ", ".join(profile.pilot) or "none"
        raise Blocked(
            f"{product} is not in the profile's pilot list, which limits publication to: {named}",
            state="nothing was published",
            fix="add it to pilot in catalog/profiles.yaml, then repeat it",
        )


def check_plan(profile: Profile, product: str, waivers: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a plan says of switches and pilot list, as they are now.

    Raises Blocked when its manifest has `waivers`, and these are switched off.
    """
    if waivers:
        require_switched_on(profile, "waivers", product, "nothing was registered")
    off = describe_switched_off(profile, product)
    # What is off by default is no news; a run that needs it is refused.
    notes = [text for switch, text in off.items() if switch not in OFF_BY_DEFAULT]
    if profile.pilot is not None and product not in profile.pilot:
        notes.append(f"{product} is not in the profile's pilot list: it cannot be published")
    return tuple(notes)


def _place(profile: Profile, switch: Switch, product: str) -> str:
    """Return the field that decides: the product's own, else that of all products."""
    own = profile.product_switches.get(product)
    if own is not None and getattr(own, switch) is not None:
        return f"product_switches.{product}.{switch}"
    return f"switches.{switch}"
