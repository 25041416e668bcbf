"""Signatures of an Ed25519 key file, in the format of SSH signatures.

The file is a PEM file (PKCS#8) without a passphrase, as `openssl genpkey -algorithm ed25519` makes
it for a machine. Its public key is listed like an SSH key, and ssh-keygen verifies what it signs.

https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.sshsig
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from lakehouse_backfill.domain.identity.statement import NAMESPACE
from lakehouse_backfill.errors import ConfigError

_PEM_MARK = b"-----BEGIN PRIVATE KEY-----"
_MAGIC, _VERSION, _HASH, _LINE = b"SSHSIG", (1).to_bytes(4, "big"), b"sha512", 70


def is_key_file(key: Path) -> bool:
    """Return whether a file is a PEM private key without a passphrase; ssh-keygen reads others."""
    with key.open("rb") as file:
        return file.read(len(_PEM_MARK)) == _PEM_MARK


def sign(key: Path, message: bytes) -> str:
    """Return the armored signature of a message; raises ConfigError for another kind of key."""
    private = _load(key)
    public = _string(b"ssh-ed25519") + _string(private.public_key().public_bytes_raw())
    content = _string(NAMESPACE.encode()) + _string(b"") + _string(_HASH)
    signed = private.sign(_MAGIC + content + _string(hashlib.sha512(message).digest()))
    signature = _string(_string(b"ssh-ed25519") + _string(signed))
    blob = _MAGIC + _VERSION + _string(public) + content + signature
    text = base64.b64encode(blob).decode()
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join(["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""])


def public_line(key: Path) -> str:
    """Return the public key as a file of allowed signers lists it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = _load(key).public_key()
    return str(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


def _load(key: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise _bad_key_error(key) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise _bad_key_error(key)
    return private


def _bad_key_error(key: Path) -> ConfigError:
    return ConfigError(
        f"{key.name} holds no Ed25519 key", fix="openssl genpkey -algorithm ed25519 -out KEY"
    )


def _string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
