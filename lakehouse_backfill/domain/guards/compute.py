"""Where runs compute: named pools and scratch places of a profile, and what live jobs use.

A run names both in its manifest. It never computes where a declared live job does.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from pydantic import Field

from lakehouse_backfill.domain.serialization import Name, Text, Value
from lakehouse_backfill.errors import Blocked, ConfigError

DEFAULT: Final = "default"
MASTER, REMOTE, LOCAL_DIR = "spark.master", "spark.remote", "spark.local.dir"
#: Where Spark finds one of them it does not look at `spark.local.dir`; the first one wins.
LOCAL_DIR_VARIABLES: Final = ("SPARK_EXECUTOR_DIRS", "SPARK_LOCAL_DIRS")
#: Java's, whatever `TMPDIR` says.
_JAVA_FOLDER: Final = "/tmp"  # noqa: S108 (looked at, not written)
#: What Spark does where a setting is absent, of those by which live jobs are told apart.
_SPARK_DEFAULTS: Final = {
    MASTER: "local[*]",
    "spark.yarn.queue": "default",
    "spark.kubernetes.namespace": "default",
}
#: Settings that say where something is computed, and hold no secret.
_SHOWN: Final = (
    MASTER,
    REMOTE,
    "spark.yarn.queue",
    "spark.kubernetes.namespace",
    "spark.executor.instances",
    "spark.cores.max",
    "spark.dynamicAllocation.maxExecutors",
)
#: In the settings of a session: the names of its pool and scratch place.
PLACE_SETTING: Final = "spark.lakehouse-backfill.place"
_STATE: Final = "nothing was planned, computed or changed"


class LiveJob(Value):
    """What one live job uses; a run that would compute there is refused."""

    name: Name = Field(description="Name of the job, for messages.")
    spark: dict[str, str] = Field(
        default_factory=dict,
        description="Spark settings that tell its compute, e.g. spark.yarn.queue: a run whose "
        "settings are the same in all of them is refused.",
    )
    scratch: tuple[Text, ...] = Field((), description="Folders of its temporary data.")


class ComputePlaces(Value):
    """Named pools and scratch places that runs may use, and those of live jobs."""

    pools: dict[Name, dict[str, str]] = Field(
        default_factory=dict,
        description="By name: Spark settings of a pool, which win over those of the profile.",
    )
    scratch: dict[Name, Text] = Field(
        default_factory=dict,
        description="By name: folder for temporary data of Spark's driver, and of its executors "
        "where they are threads of the driver.",
    )
    live: tuple[LiveJob, ...] = Field((), description="What live jobs use.")


def pool_settings(spark: Mapping[str, str], places: ComputePlaces, pool: str) -> dict[str, str]:
    """Return the Spark settings of a pool: the profile's, and its own over them.

    A pool that names a master does not connect to the profile's server, and the other way round.
    Raises ConfigError for a pool that the profile does not name.
    """
    if pool != DEFAULT and pool not in places.pools:
        raise _unknown("pool", pool, places.pools)
    own = places.pools.get(pool, {})
    other = {MASTER: REMOTE, REMOTE: MASTER}
    dropped = {other[key] for key in other if key in own}
    return {key: text for key, text in spark.items() if key not in dropped} | own


def scratch_folder(places: ComputePlaces, name: str) -> str | None:
    """Return the folder of a scratch place; None: Spark's own choice.

    Raises ConfigError for a place that the profile does not name.
    """
    if name != DEFAULT and name not in places.scratch:
        raise _unknown("scratch", name, places.scratch)
    return places.scratch.get(name)


def _unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    field = "pools" if kind == "pool" else kind
    return ConfigError(
        f"compute.{kind} is {name}, which the profile does not name",
        state=_STATE,
        fix=f"write one of {', '.join(sorted({DEFAULT, *known}))}; or add {name} to "
        f"compute.{field} of the profile in catalog/profiles.yaml",
        field=f"compute.{kind}",
    )


def require_apart(
    spark: Mapping[str, str], places: ComputePlaces, pool: str, scratch: str
) -> dict[str, str]:
    """Return the settings that a run computes with; none of them is a live job's place.

    Raises ConfigError for a name that the profile lacks, or a scratch place on a Spark Connect
    server, which has its own; Blocked where a declared live job computes, or keeps its temporary
    data.
    """
    settings = pool_settings(spark, places, pool)
    folder = scratch_folder(places, scratch)
    if folder is not None and REMOTE in settings:
        raise ConfigError(
            f"compute.scratch is {scratch}, and pool {pool} is a Spark Connect server, which has "
            "its own place for temporary data",
            state=_STATE,
            fix="write compute.scratch: default, and set spark.local.dir where the server starts",
            field="compute.scratch",
        )
    for job in places.live:
        if job.spark and all(_is_same(settings, key, text) for key, text in job.spark.items()):
            shared = ", ".join(f"{key}={job.spark[key]}" for key in sorted(job.spark))
            raise Blocked(
                f"pool {pool} is where the live job {job.name} computes ({shared})",
                state=_STATE,
                fix="name another pool in compute.pool of the manifest: "
                f"{', '.join(sorted(places.pools)) or 'compute.pools of the profile has none yet'}",
            )
        for mine in _folders(settings, folder):
            for theirs in job.scratch:
                if _overlap(mine, theirs):
                    raise Blocked(
                        f"scratch place {scratch} ({mine}) is that of the live job {job.name} "
                        f"({theirs})",
                        state=_STATE,
                        fix="name another place in compute.scratch of the manifest: "
                        f"{', '.join(sorted(places.scratch)) or 'the profile has none yet'}",
                    )
    return settings if folder is None else settings | {LOCAL_DIR: folder}


def plan_notes(
    spark: Mapping[str, str], places: ComputePlaces, pool: str, scratch: str
) -> tuple[str, ...]:
    """Return what a plan says of where its run computes; nothing where nobody named anything.

    Raises as `require_apart` does.
    """
    settings = require_apart(spark, places, pool, scratch)
    if (pool, scratch) == (DEFAULT, DEFAULT) and not places.live:
        return ()
    place = describe_place(settings, places)
    return (f"computes in pool {pool}, scratch place {scratch}: {place}",)


def describe_place(settings: Mapping[str, str], places: ComputePlaces) -> str:
    """Say where a run computes, and from which live jobs that was told apart."""
    shown = [f"{key}={_without_token(settings[key])}" for key in _SHOWN if key in settings]
    folder = settings.get(LOCAL_DIR)
    named = folder if folder in places.scratch.values() else _named_folders(settings)
    if named and REMOTE not in settings:
        shown.append(f"temporary data in {named}")
    names = ", ".join(job.name for job in places.live)
    apart = f"apart from live jobs: {names}" if names else "the profile declares no live jobs"
    return f"{', '.join(shown) or 'Spark on all cores of this machine'}; {apart}"


def _without_token(address: str) -> str:
    """Return an address without what follows it, which may be a token."""
    return address.partition("/;")[0]


def _is_same(settings: Mapping[str, str], key: str, text: str) -> bool:
    return settings.get(key, _SPARK_DEFAULTS.get(key)) == text


def _folders(settings: Mapping[str, str], folder: str | None) -> list[str]:
    """Return the folders of temporary data; of a server they are not known."""
    if REMOTE in settings:
        return []
    named = folder or _named_folders(settings)
    if not named:
        # That of Java, and that of Python's workers.
        return sorted({_JAVA_FOLDER, tempfile.gettempdir()})
    return [each.strip() for each in named.split(",") if each.strip()]


def _named_folders(settings: Mapping[str, str]) -> str | None:
    found = [text for name in LOCAL_DIR_VARIABLES if (text := os.environ.get(name))]
    return found[0] if found else settings.get(LOCAL_DIR)


def _overlap(one: str, other: str) -> bool:
    """Return whether two folders are the same, or one lies in the other, also by links or `..`."""
    folders = [os.path.realpath(re.sub(r"^file:/*", "/", text)) for text in (one, other)]
    parts = [PurePosixPath(folder).parts for folder in folders]
    length = min(map(len, parts))
    return parts[0][:length] == parts[1][:length]
