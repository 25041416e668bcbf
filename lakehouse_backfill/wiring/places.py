"""Where the runs of a project compute: the profile's settings with those of the place they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.domain.guards.compute import (
    PLACE_SETTING,
    REMOTE,
    pool_settings,
    require_apart,
)
from lakehouse_backfill.domain.manifest import Compute
from lakehouse_backfill.domain.profile import Profile

if TYPE_CHECKING:
    from lakehouse_backfill.wiring.adapters import Adapters


def expect_place(wiring: Adapters, compute: Compute) -> None:
    """Have the next session of Spark opened in the pool and scratch place of a manifest."""
    if "spark" not in vars(wiring):
        wiring.place = compute.named_place


def engine_profile(wiring: Adapters) -> Profile:
    """Return the profile with the Spark settings of the place; none of them is a live job's.

    Raises ConfigError for a place that the profile does not name, and Blocked for a live job's.
    """
    profile, place = wiring.profile, wiring.place
    settings = require_apart(profile.spark, profile.compute, place.pool, place.scratch)
    if place != Compute():
        settings |= {PLACE_SETTING: f"{place.pool} {place.scratch}"}
    return profile.model_copy(update={"spark": settings})


def is_connect(wiring: Adapters) -> bool:
    """Return whether the place is a Spark Connect server."""
    return REMOTE in pool_settings(wiring.profile.spark, wiring.profile.compute, wiring.place.pool)


def place_cores(wiring: Adapters) -> int | None:
    """Return the cores that the settings of the place give to Spark; None: they do not say."""
    from lakehouse_backfill.adapters.spark.session.settings import configured_cores

    profile = wiring.profile
    return configured_cores(pool_settings(profile.spark, profile.compute, wiring.place.pool))
