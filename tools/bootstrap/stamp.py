"""Tells whether the set-up is done: what it was made from, written last. Python 2.7 syntax."""

import hashlib
import json
import os

SCRIPTS = (
    "tools/setup.py",
    "tools/bootstrap/install.py",
    "tools/bootstrap/jars.py",
    "tools/bootstrap/packages.py",
    "tools/bootstrap/stamp.py",
    "lakehouse_backfill/adapters/spark/session/java.py",
)
# Each step is redone when one of its files changes; the root counts, as a moved clone is broken.
STEPS = {
    "packages": ("requirements.lock",) + SCRIPTS,
    "project": ("requirements.lock", "pyproject.toml") + SCRIPTS,
    "java": ("requirements.lock",) + SCRIPTS,
    "jars": ("tools/jars.lock",) + SCRIPTS,
}


def path(root):
    return os.path.join(root, ".tools", "stamp.json")


def wanted(root):
    """Give a digest for each step, of the files it depends on."""
    return dict((step, _digest(root, names)) for step, names in STEPS.items())


def read(root):
    """Give the digests of the finished set-up; empty when there is none, or it was cut off."""
    try:
        with open(path(root)) as file:
            return json.load(file)
    except (IOError, OSError, ValueError):
        return {}


def write(root):
    """Write the stamp whole: a reader sees the old one or the new one."""
    temporary = path(root) + ".new"
    with open(temporary, "w") as file:
        json.dump(wanted(root), file, indent=1, sort_keys=True)
    os.rename(temporary, path(root))


def remove(root):
    if os.path.exists(path(root)):
        os.remove(path(root))


def is_current(root):
    """Tell without network, in milliseconds, whether there is nothing to do."""
    return read(root) == wanted(root) and is_whole(root)


def is_whole(root):
    """Tell whether what the set-up made is still there (the machine's Java may be gone)."""
    return os.access(python(root), os.X_OK) and _has_java(root) and _has_jars(root)


def python(root):
    return os.path.join(root, ".venv", "bin", "python")


def jars(root, lock="tools/jars.lock"):
    """Read a lock of jars: (group, artifact, version, classifier or "", sha256) of each line."""
    found = []
    with open(os.path.join(root, *lock.split("/"))) as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                coordinates, sha256 = line.split()
                group, artifact, version = coordinates.split(":")[:3]
                classifier = "".join(coordinates.split(":")[3:])
                found.append((group, artifact, version, classifier, sha256))
    return found


def jar_path(root, jar, folder=".tools/jars"):
    classifier = "-" + jar[3] if jar[3] else ""
    name = "{0}-{1}{2}.jar".format(jar[1], jar[2], classifier)
    return os.path.join(root, *(folder.split("/") + [name]))


def _has_java(root):
    try:
        with open(os.path.join(root, ".tools", "java_home")) as file:
            home = file.read().strip()
    except (IOError, OSError):
        return False
    return os.access(os.path.join(home, "bin", "java"), os.X_OK)


def _has_jars(root):
    return all(os.path.isfile(jar_path(root, jar)) for jar in jars(root))


def _digest(root, names):
    digest = hashlib.sha256(root.encode("utf-8") if str is not bytes else root)
    for name in names:
        with open(os.path.join(root, *name.split("/")), "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()
