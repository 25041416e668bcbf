"""Fetches the jars of a lock file with the Ivy that comes inside pyspark."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from bootstrap import stamp
from bootstrap.packages import SetupFault

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.spark.session.java import JavaRuntime

#: Group, artifact, version, classifier or "", SHA-256.
Jar = tuple[str, str, str, str, str]
SETTINGS_FIX = (
    "check the network; behind a mirror, name it in ~/.m2/settings.xml (as a mirror of central), "
    "or give Ivy's own settings in LAKEHOUSE_BACKFILL_IVY_SETTINGS; then run `make setup` again"
)


@dataclass(frozen=True)
class Place:
    """A lock file and the folder that its jars lie in, both relative to the clone."""

    lock: str
    folder: str


SPARK = Place("tools/jars.lock", ".tools/jars")


def fetch(root: Path, java: JavaRuntime, place: Place = SPARK) -> None:
    """Bring every jar of the lock into its folder, each checked by its SHA-256.

    A file with another digest is deleted, wherever it came from, and stops the set-up.
    """
    wanted: list[Jar] = stamp.jars(str(root), place.lock)
    missing = [jar for jar in wanted if not _path(root, jar, place).is_file()]
    if missing:
        sys.stderr.write(f"set-up: {len(missing)} jar(s), by Ivy\n")
        _retrieve(root, java, missing, place)
    faults = [fault for jar in wanted for fault in _check(root, jar, place)]
    if faults:
        raise SetupFault(
            "; ".join(faults),
            f"run it again; if it stays, the jar's source or {place.lock} is wrong",
        )


def settings(home: Path) -> str:
    """Write Ivy settings that follow the machine's Maven: its local store, then its mirror.

    Without a mirror Ivy's own default, Maven Central, is used, so no address is written here.
    """
    mirror = next((url for path in _maven_settings(home) for url in _mirrors(path)), None)
    at = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    store = quoteattr((home / ".m2" / "repository").as_uri() + "/")
    return (
        "<ivysettings>\n"
        '  <settings defaultResolver="all"/>\n'
        "  <resolvers>\n"
        '    <chain name="all" returnFirst="true">\n'
        f'      <ibiblio name="store" m2compatible="true" usepoms="false" root={store}/>\n'
        f'      <ibiblio name="central" m2compatible="true" usepoms="false"{at}/>\n'
        "    </chain>\n"
        "  </resolvers>\n"
        "</ivysettings>\n"
    )


def _retrieve(root: Path, java: JavaRuntime, jars: list[Jar], place: Place) -> None:
    folder = root / ".tools" / "ivy"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    module = folder / "ivy.xml"
    module.write_text(_module(jars), encoding="utf-8")
    command = [str(java.home / "bin" / "java"), *java.options]
    command += [f"-Divy.default.ivy.user.dir={folder}", "-cp", str(_ivy_jar(root))]
    command += ["org.apache.ivy.Main", "-warn", "-settings", str(_settings_file(folder))]
    command += ["-cache", str(folder / "cache"), "-ivy", str(module), "-types", "jar"]
    pattern = root / place.folder / "[artifact]-[revision](-[classifier]).[ext]"
    command += ["-retrieve", str(pattern)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    if result.returncode != 0:
        words = [line for line in result.stdout.splitlines() if line.strip()]
        sys.stderr.write("\n".join([*words[-15:], result.stderr[-2000:], ""]))
        names = ", ".join(jar[1] for jar in jars)
        raise SetupFault(f"Ivy could not fetch {names}, see its words above", SETTINGS_FIX)


def _settings_file(folder: Path) -> Path:
    """Choose Ivy settings: named by the user, the user's usual ones, else after Maven's."""
    named = os.environ.get("LAKEHOUSE_BACKFILL_IVY_SETTINGS")
    usual = Path.home() / ".ivy2" / "ivysettings.xml"
    if named or usual.is_file():
        return Path(named) if named else usual
    made = folder / "ivysettings.xml"
    made.write_text(settings(Path.home()), encoding="utf-8")
    return made


def _module(jars: list[Jar]) -> str:
    """Name each module once, with those of its jars that are wanted."""
    modules: dict[tuple[str, str, str], str] = {}
    for group, name, version, classifier, _ in jars:
        part = f' m:classifier="{classifier}"' if classifier else ""
        line = f'      <artifact name="{name}" type="jar"{part}/>\n'
        key = (group, name, version)
        modules[key] = modules.get(key, "") + line
    lines = "".join(
        f'    <dependency org="{group}" name="{name}" rev="{version}" transitive="false">\n'
        f"{artifacts}    </dependency>\n"
        for (group, name, version), artifacts in modules.items()
    )
    info = '  <info organisation="local" module="set-up"/>\n'
    wanted = f"  <dependencies>\n{lines}  </dependencies>\n"
    head = '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
    return f"{head}{info}{wanted}</ivy-module>\n"


def _maven_settings(home: Path) -> list[Path]:
    installed = [os.environ.get(name, "") for name in ("MAVEN_HOME", "M2_HOME")]
    folders = [Path(name) / "conf" for name in installed if name] + [Path("/etc/maven")]
    return [home / ".m2" / "settings.xml", *(folder / "settings.xml" for folder in folders)]


def _mirrors(path: Path) -> list[str]:
    """List the mirrors of Maven Central that a settings file names."""
    try:
        tree = ET.parse(path)  # noqa: S314 - the user's own file
    except (OSError, ET.ParseError):
        return []
    found = []
    for mirror in tree.iterfind(".//{*}mirror"):
        covers = (mirror.findtext("{*}mirrorOf") or "").replace(" ", "").split(",")
        url = mirror.findtext("{*}url")
        if url and {"*", "central", "external:*"} & set(covers) and "!central" not in covers:
            found.append(url.strip())
    return found


def _ivy_jar(root: Path) -> Path:
    found = sorted((root / ".venv" / "lib").glob("python3*/site-packages/pyspark/jars/ivy-*.jar"))
    if not found:
        raise SetupFault("pyspark in .venv has no Ivy jar", "delete .venv, run `make setup` again")
    return found[-1]


def _check(root: Path, jar: Jar, place: Place) -> list[str]:
    *coordinates, expected = jar
    path = _path(root, jar, place)
    if not path.is_file():
        return [f"Ivy did not bring {':'.join(filter(None, coordinates))}"]
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found == expected:
        return []
    path.unlink()
    return [f"{path.name} has SHA-256 {found}, {place.lock} says {expected}; it was deleted"]


def _path(root: Path, jar: Jar, place: Place) -> Path:
    return Path(stamp.jar_path(str(root), jar, place.folder))
