"""Switches of a profile: what may be done at all in one environment, for all products or for one.

They are read from the profile of the command that acts, not from the plan: switching something off
holds at once, for runs that are open as well. A way back (rollback, recover, cancel) has no switch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lakehouse_backfill.domain.contract import Profile, Switch
from lakehouse_backfill.errors import Blocked

#: By switch: what cannot be done, as a sentence begins.
_ACTS: Final[dict[Switch, str]] = {
    "publish": "publications of {product} are switched off",
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
    notes = list(describe_switched_off(profile, product).values())
    if profile.pilot is not None and product not in profile.pilot:
        notes.append(f"{product} is not in the profile's pilot list: it cannot be published")
    return tuple(notes)


def _place(profile: Profile, switch: Switch, product: str) -> str:
    """Return the field that decides: the product's own, else that of all products."""
    own = profile.product_switches.get(product)
    if own is not None and getattr(own, switch) is not None:
        return f"product_switches.{product}.{switch}"
    return f"switches.{switch}"
