"""SSH signatures, made and verified by `ssh-keygen -Y`; no private key is read here.

The same program is the check of last resort: what it says here is what it says to anybody.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from lakehouse_backfill.domain.identity.statement import NAMESPACE
from lakehouse_backfill.errors import ConfigError, EnvironmentDown, NotAllowed
from lakehouse_backfill.ports.system import CheckedSignature

#: A person may have to type a passphrase, or to touch a security key.
_SIGN_TIMEOUT_S = 180
_CHECK_TIMEOUT_S = 30
_VALIDITY_WORDS = ("expired", "not yet valid")


def sign(key: Path, message: bytes) -> str:
    """Return the armored signature of a message; raises NotAllowed when ssh-keygen makes none.

    `key` is a private key, or a public one whose private key an ssh-agent holds.
    """
    arguments = ("-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE)
    done = _run(arguments, message, _SIGN_TIMEOUT_S)
    if done.returncode or not done.stdout:
        raise NotAllowed(
            f"ssh-keygen made no signature with {key.name}: {_last_line(done.stderr)}",
            state="nothing was decided or published",
            fix=f"ssh-keygen -y -f {key} shows whether the key can be used",
        )
    return done.stdout.decode("ascii")


def check(signers: Path, armored: str, message: bytes, by: str, at: datetime) -> CheckedSignature:
    """Check a signature against the allowed signers of the project, as of a time.

    A line counts when it names `by` and the key, allows the namespace, and is valid at that time.
    """
    if "\0" in by or any("\ud800" <= letter <= "\udfff" for letter in by):
        # ssh-keygen gets the name as an argument.
        return CheckedSignature("", "the name of who signed is none")
    moment = at.astimezone(timezone.utc).strftime("%Y%m%d%H%M%S")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "signature")
        file.write_text(armored, encoding="ascii")
        asked = ("-s", str(file), "-O", f"verify-time={moment}")
        listed = ("-f", str(signers))
        done = _run(("-Y", "verify", *listed, "-I", by, "-n", NAMESPACE, *asked), message)
        if done.returncode == 0:
            return CheckedSignature(_key_of(done.stdout))
        alone = _run(("-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(file)), message)
        if alone.returncode:
            return CheckedSignature("", "the signature is not one of this statement")
        key = _key_of(alone.stdout)
        named = _run(("-Y", "find-principals", *listed, *asked), b"").stdout
    owners = named.decode("utf-8", "replace").splitlines()
    if owners and by not in owners:
        return CheckedSignature(key, f"the key {key} is that of {', '.join(owners)}, not of {by}")
    why = _validity_problem(done.stderr)
    if why:
        return CheckedSignature(key, f"the key {key} does not hold at {at:%Y-%m-%d %H:%M}Z: {why}")
    return CheckedSignature(key, f"the key {key} is not listed for {by} in {signers.name}")


#: What stands for several people in the list of names of a line.
_PATTERNS = frozenset(",*?!")
_NAME = re.compile(r'^(?:"([^"]*)"|(\S+))\s*(.*)$')
_KEY = re.compile(r"(?:^|\s)((?:sk-)?(?:ssh|ecdsa)-\S+)\s+([A-Za-z0-9+/]+=*)(?=\s|$)")


class ListedKey(NamedTuple):
    """One line of a file of allowed signers."""

    line: int
    name: str
    key: str


def read_signers(signers: Path) -> tuple[ListedKey, ...]:
    """Read the file of allowed signers, in which each key is that of one person.

    Raises ConfigError, which names the line, for a list or pattern of names, for a certificate
    authority, and for a key that is listed under two names: four eyes are two keys.
    """
    found: dict[bytes, ListedKey] = {}
    listed = []
    # As ssh-keygen reads it: bytes, lines that end with a line feed.
    for number, text in enumerate(signers.read_bytes().decode("latin-1").split("\n"), start=1):
        if not text.strip() or text.lstrip(" \t").startswith("#"):
            continue
        one = _read_line(signers, number, text.strip())
        listed.append(one)
        content = base64.b64decode(one.key + "=" * (-len(one.key) % 4))
        other = found.setdefault(content, one)
        if other.name != one.name:
            raise _line_error(
                signers, number, f"the key of {one.name} is listed for {other.name} on line "
                f"{other.line} too", f"remove line {other.line} or {number}: a key is one person's",
            )  # fmt: skip
    return tuple(listed)


def _read_line(signers: Path, number: int, text: str) -> ListedKey:
    quoted, bare, rest = _NAME.findall(text)[0]
    name = quoted or bare
    plain = re.sub(r'"[^"]*"', '""', rest)
    found = _KEY.search(plain)
    if _PATTERNS & set(name) or '"' in name:
        what, fix = f"{name!r} names several people", "write one line for each person"
    elif found is None:
        what, fix = "there is no key", 'write: NAME namespaces="lakehouse-backfill" ssh-… KEY'
    elif "cert-authority" in plain[: found.start()].lower() or "-cert-" in found[1]:
        what, fix = "a certificate authority names people itself", "list the key of each person"
    else:
        return ListedKey(number, name.encode("latin-1").decode("utf-8", "replace"), found[2])
    raise _line_error(signers, number, what, fix)


def _line_error(signers: Path, number: int, what: str, fix: str) -> ConfigError:
    return ConfigError(
        f"{signers.name}, line {number}: {what}",
        state="nothing was registered, decided or published",
        fix=f"in {signers}: {fix}",
    )


def _validity_problem(errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").splitlines()
    found = [line for line in lines if any(word in line for word in _VALIDITY_WORDS)]
    return found[0].partition(": ")[2] if found else ""


def _key_of(output: bytes) -> str:
    """Return type and fingerprint of the key from `Good … signature … with TYPE key SHA256:…`."""
    kind, _, fingerprint = output.decode("utf-8", "replace").strip().rpartition(" key ")
    return f"{kind.rpartition(' ')[2]} {fingerprint}"


def _run(
    arguments: tuple[str, ...], message: bytes, timeout_s: int = _CHECK_TIMEOUT_S
) -> subprocess.CompletedProcess[bytes]:
    # Times of the file are read as UTC on every machine.
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    try:
        # A fixed program without a shell; names are arguments of options, never options.
        return subprocess.run(  # noqa: S603
            ["ssh-keygen", *arguments],  # noqa: S607 (whichever OpenSSH is installed)
            input=message, capture_output=True, timeout=timeout_s, env=environment, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise EnvironmentDown(
            "ssh-keygen is not installed, so no signature can be made or verified",
            fix="install OpenSSH's client, 8.9 or later",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentDown(
            f"ssh-keygen did not end within {timeout_s} s", fix="give the same command again"
        ) from error


def _last_line(errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
