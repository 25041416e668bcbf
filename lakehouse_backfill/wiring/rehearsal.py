"""The lake of a rehearsal: the same project under another profile, and copies of real tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.iceberg.shadow.rehearsal_copies import IcebergCopies
from lakehouse_backfill.config.profiles import choose_profile, load_profiles
from lakehouse_backfill.core.rehearsal.rehearse import RehearsalPlace, require_possible_place
from lakehouse_backfill.fault_points import watch_ports_if_hooked

if TYPE_CHECKING:
    from lakehouse_backfill.wiring.adapters import Adapters


def adapters_at(real: Adapters, profile: str) -> Adapters:
    """Return the adapters of the same project for the profile of a rehearsal.

    An embedded lake that is not there is made. Raises ConfigError, NotAllowed.
    """
    chosen = choose_profile(load_profiles(real.folder), profile, real.folder)
    require_possible_place(real.profile, chosen, profile)
    invocation = replace(real.invocation, profile=profile)
    place = type(real)(real.folder, chosen, real.progress, profile, invocation)
    place.signing_key = real.signing_key
    place.create_lake()
    return place


def rehearsal_place(real: Adapters, place: Adapters) -> RehearsalPlace:
    """Return the ports of a rehearsal: those of its lake, and what copies real tables into it."""
    copies = IcebergCopies(real.catalog, place.catalog)
    return watch_ports_if_hooked(RehearsalPlace(place.context, copies))
