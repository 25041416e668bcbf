"""Looks at the machine and names every fault at once, each with its fix. Python 2.7 syntax."""

import glob
import os
import platform
import re
import subprocess
import sys

OLDEST, NEWEST = (3, 10), (3, 14)
DISK_GB, MEMORY_GB = 3, 4
OLDEST_GLIBC = (2, 28)
OLDEST_PIP = (22, 3)  # The first with `--python`.
# Java splits its class path at colons, Spark its list of jars at commas.
BAD_IN_PATH = ":,"
TRIES = tuple("python3.%d" % minor for minor in (13, 12, 11, 10, 14)) + ("python3", "python")
PLACES = (
    "/opt/homebrew/bin",
    "/usr/local/bin",
    "/usr/bin",
    "~/.pyenv/versions/*/bin",
    "~/.local/bin",
    "/Library/Frameworks/Python.framework/Versions/*/bin",
)
ASK = (
    "import sys; print('%d.%d' % sys.version_info[:2]);"
    "print(getattr(sys, '_base_executable', '') or sys.executable)"
)


def fitting_python(root):
    """Find a Python that can run the product: this one, on PATH, in the usual places, or uv's.

    Version managers put launchers on PATH that fail when run, so each candidate is really asked.
    """
    seen = set()
    for candidate in _python_candidates():
        if candidate and candidate not in seen:
            seen.add(candidate)
            found = _ask_python(candidate, root)
            if found:
                return found
    return None


def is_this(python):
    return os.path.realpath(python) == os.path.realpath(sys.executable)


def faults(root, python):
    """List (problem, fix) of everything that would stop the set-up."""
    return (
        _python_faults(python) + _system() + _folder(root) + _programs() + _disk(root) + _memory()
    )


def report(found):
    lines = ["set-up: %d fault(s) on this machine, nothing was changed" % len(found)]
    for problem, fix in found:
        lines.append("  fault: %s" % problem)
        lines.append("    fix: %s" % fix)
    return "\n".join(lines)


def good_news(root, python):
    """Say what the set-up would use on this machine, which has no fault."""
    from bootstrap import install  # Newer syntax: only a fitting Python comes here.

    return "\n".join(["set-up: this machine is fit"] + install.choices(root, python))


def uv():
    """Find a uv that runs; None when there is none."""
    for candidate in [which("uv")] + glob.glob(os.path.expanduser("~/.local/bin/uv")):
        if candidate and output([candidate, "--version"]) is not None:
            return candidate
    return None


def has_ensurepip(python):
    return output([python, "-c", "import ensurepip, venv; ensurepip.version()"]) is not None


def outside_pip(python):
    """Find a Python whose pip can install into another one; None when there is none."""
    for candidate in [python, which("python3")]:
        text = output([candidate, "-m", "pip", "--version"]) if candidate else None
        numbers = re.match(r"pip (\d+)\.(\d+)", text or "")
        if numbers and tuple(int(number) for number in numbers.groups()) >= OLDEST_PIP:
            return candidate
    return None


def which(name):
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def output(command):
    """Give what a command prints; None when it fails or is not there."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        text = process.communicate()[0]
    except (IOError, OSError):
        return None
    return text.decode("utf-8", "replace").strip() if process.returncode == 0 else None


def _python_candidates():
    yield sys.executable
    for name in TRIES:
        yield which(name)
    for place in PLACES:
        for folder in sorted(glob.glob(os.path.expanduser(place)), reverse=True):
            for name in TRIES:
                path = os.path.join(folder, name)
                if os.path.exists(path):
                    yield path
    if uv():
        yield output([uv(), "python", "find", "--no-project", ">=3.10,<3.15"])


def _ask_python(candidate, root):
    """Give the path of a fitting Python; of its base when it is a virtual environment's."""
    answer = output([candidate, "-c", ASK])
    if not answer or len(answer.splitlines()) != 2:
        return None
    version, path = answer.splitlines()
    numbers = tuple(int(number) for number in version.split("."))
    if not OLDEST <= numbers <= NEWEST or not os.path.exists(path):
        return None
    inside = os.path.join(os.path.realpath(root), ".venv") + os.sep
    return None if os.path.abspath(path).startswith(inside) else path


def _python_faults(python):
    if not python:
        have = "%d.%d" % sys.version_info[:2]
        return [
            (
                "no Python 3.10 to 3.14 found (this one is %s)" % have,
                "install one: `apt install python3 python3-venv`, `dnf install python3.12`, "
                "`brew install python@3.13` or `uv python install 3.13`",
            )
        ]
    if uv() or has_ensurepip(python) or outside_pip(python):
        return []
    return [
        (
            "%s cannot install packages: no uv, no ensurepip, no pip 22.3 or newer" % python,
            "`apt install python3-venv`, or `apt install python3-pip`, or install uv",
        )
    ]


def _system():
    system = platform.system()
    if system not in ("Linux", "Darwin"):
        return [("%s is not supported" % system, "use Linux, macOS, or WSL on Windows")]
    if system == "Darwin":
        return []
    name, version = platform.libc_ver()
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if name == "glibc" and numbers >= OLDEST_GLIBC:
        return []
    have = ("%s %s" % (name, version)).strip() or "another C library"
    fix = "use a distribution with glibc 2.28 or newer, such as Debian 10, Ubuntu 20.04 or RHEL 8"
    return [("packages need glibc 2.28 or newer, this machine has %s" % have, fix)]


def _folder(root):
    found = []
    bad = [character for character in BAD_IN_PATH if character in root]
    if bad:
        problem = "the path %s contains %s, at which Java or Spark splits lists" % (root, bad[0])
        found.append((problem, "move the clone to a path without colon and comma"))
    if not os.access(root, os.W_OK):
        found.append(("%s cannot be written" % root, "clone into a folder that you own"))
    return found


def _programs():
    fixes = {
        "make": "`apt install make`, `dnf install make` or `xcode-select --install`",
        "bash": "`apt install bash` or `apk add bash`: Spark's launcher is written in it",
    }
    missing = [name for name in sorted(fixes) if not which(name)]
    return [("%s is not on PATH" % name, fixes[name]) for name in missing]


def _disk(root):
    numbers = os.statvfs(root)
    free = numbers.f_bavail * numbers.f_frsize / 1e9
    needed = 1 if os.path.isdir(os.path.join(root, ".venv")) else DISK_GB
    if free >= needed:
        return []
    problem = "%.1f GB of disk are free at %s, %d are needed" % (free, root, needed)
    return [(problem, "free some, or move the clone to a larger disk")]


def _memory():
    total = _memory_bytes()
    # Machines sold as 4 GB show a little less.
    if total is None or total >= (MEMORY_GB - 0.5) * 1e9:
        return []
    problem = "%.1f GB of memory, %d are needed for Spark" % (total / 1e9, MEMORY_GB)
    return [(problem, "use a larger machine, or raise the limit of the container or VM")]


def _memory_bytes():
    """Give the memory of the machine, or of the container when that is less."""
    found = []
    for name, pattern, unit in (
        ("/proc/meminfo", r"MemTotal:\s+(\d+) kB", 1024),
        ("/sys/fs/cgroup/memory.max", r"^(\d+)$", 1),
    ):
        try:
            with open(name) as file:
                match = re.search(pattern, file.read(), re.MULTILINE)
        except (IOError, OSError):
            continue
        if match:
            found.append(int(match.group(1)) * unit)
    if not found and platform.system() == "Darwin":
        text = output(["sysctl", "-n", "hw.memsize"])
        found = [int(text)] if text and text.isdigit() else []
    return min(found) if found else None
