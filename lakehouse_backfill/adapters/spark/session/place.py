"""Where the session of this process computes: its pool by name, and its folder for temporary data.

A named scratch place gets a folder for each session, which goes with it.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from lakehouse_backfill.adapters.spark.guard import scratch
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings
from lakehouse_backfill.domain.guards.compute import (
    DEFAULT,
    LOCAL_DIR,
    LOCAL_DIR_VARIABLES,
    PLACE_SETTING,
)
from lakehouse_backfill.errors import ConfigError, EnvironmentDown

#: How long a cluster's master may take to answer; Spark itself would try for a minute, and then
#: end the session while it is at work.
_MASTER_S = 10.0
_PORTS = {"http": 80, "https": 443}
#: How long a JVM may take to end.
_JVM_END_S = 10.0
#: The names of pool and scratch place, and the folder of temporary data, if there is one.
_place: dict[str, str] = {}


def master_addresses(master: str) -> tuple[tuple[str, int], ...]:
    """Return host and port of each master that a URL names; none where it names no host.

    Raises ConfigError for a URL that Spark would not understand.
    """
    kind, _, rest = master.partition("://")
    if kind not in ("spark", "k8s"):
        return ()
    # As Spark does: without a scheme, an API server is asked by HTTPS.
    scheme = "" if kind == "spark" or re.match("https?://", rest) else "https://"
    texts = [f"//{one}" for one in rest.split(",")] if kind == "spark" else [f"{scheme}{rest}"]
    try:
        parts = [urlsplit(text) for text in texts]
        found = [(one.hostname, one.port or _PORTS.get(one.scheme)) for one in parts]
    except ValueError:
        found = []
    addresses = tuple((host, port) for host, port in found if host and port)
    if not addresses or len(addresses) < len(found):
        raise ConfigError(
            f"spark.master is {master!r}, which names no host and port",
            state="nothing was computed; readers see what they saw before",
            fix="write spark://HOST:PORT or k8s://https://HOST:PORT",
        )
    return addresses


def require_master(settings: SparkSettings) -> None:
    """Raise EnvironmentDown, in bounded time, when no master of the settings' cluster answers."""
    master, causes = settings.options["spark.master"], list[str]()
    addresses = master_addresses(master)
    for address in addresses:
        try:
            socket.create_connection(address, _MASTER_S).close()
        except OSError as error:
            causes.append(f"{address[0]}:{address[1]}: {error.strerror or error}")
        else:
            return
    if causes:
        raise EnvironmentDown(
            f"Spark's master {master} does not answer: {'; '.join(causes)}",
            state="nothing was computed; readers see what they saw before",
            fix="start it, or correct spark.master in the profile",
        )


def keep_names(settings: SparkSettings) -> None:
    """Keep where the session that was opened computes."""
    _place["names"] = settings.options.get(PLACE_SETTING, "")


@contextmanager
def own_scratch(settings: SparkSettings) -> Iterator[SparkSettings]:
    """Give the settings of a session whose temporary data lies in a folder of the place it names.

    The folder goes when the session ends, and when the block fails; what a killed or interrupted
    process left goes when a later one begins. Raises ConfigError where nothing can be written
    there.
    """
    named = settings.options.get(PLACE_SETTING, "").partition(" ")[2]
    if named in ("", DEFAULT):
        yield settings
        return
    parent = settings.options[LOCAL_DIR]
    try:
        folder = str(scratch.make_held(parent))
    except OSError as error:
        raise ConfigError(
            f"scratch place {named} ({parent}) cannot be used: {error.strerror}",
            state="nothing was computed",
            fix="make the folder, or correct compute.scratch of the profile",
        ) from error
    _place["folder"] = folder
    # Spark would rather take a folder that these variables name.
    for variable in LOCAL_DIR_VARIABLES:
        os.environ.pop(variable, None)
    warehouse = {"spark.sql.warehouse.dir": f"{folder}/warehouse"}
    own = {**settings.options, LOCAL_DIR: folder, **warehouse}
    try:
        yield SparkSettings(catalog=settings.catalog, options=own)
    except BaseException:
        drop_scratch()
        raise
    atexit.register(_drop_at_exit)


def _drop_at_exit() -> None:
    """Remove the folder once the JVM has ended: while it lives, it would make it again."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and "folder" in _place:
        # A JVM ends when its input does, which is also when this process ends.
        with suppress(OSError, subprocess.TimeoutExpired):
            process.stdin.close()
            process.wait(_JVM_END_S)
    drop_scratch()


def drop_scratch() -> None:
    """Remove the folder of the session's temporary data, if it has one."""
    if folder := _place.pop("folder", None):
        shutil.rmtree(folder, ignore_errors=True)


def refuse_other(settings: SparkSettings) -> None:
    """Raise ConfigError when the open session computes in another place than the settings say."""
    wanted, names = settings.options.get(PLACE_SETTING, ""), _place.get("names", "")
    if wanted != names:
        both = [
            f"pool {pool}, scratch place {place}"
            for pool, _, place in (
                (text or f"{DEFAULT} {DEFAULT}").partition(" ") for text in (names, wanted)
            )
        ]
        raise ConfigError(
            f"this process already computes in {both[0]}; a run names {both[1]}",
            state="nothing was computed; readers see what they saw before",
            fix="give the command in a process of its own",
        )
