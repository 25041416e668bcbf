"""Sign with the key that this process was given, and check signatures of all who are listed.

The key is an SSH key, or a PEM file (PKCS#8, Ed25519) without a passphrase, as `openssl genpkey
-algorithm ed25519` makes it for a machine. Signatures have the format of SSH signatures: the public
key of a PEM file is listed like an SSH key, and ssh-keygen verifies what it signs.

https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.sshsig
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lakehouse_backfill.adapters.signing import oidc, ssh
from lakehouse_backfill.domain.identity.statement import (
    NAMESPACE,
    PAYLOAD_TYPE,
    Envelope,
    Signature,
)
from lakehouse_backfill.domain.profile import OidcIssuer
from lakehouse_backfill.errors import ConfigError, NotAllowed
from lakehouse_backfill.ports.system import CheckedSignature, Identity

#: In place of a key: the identity token of a CI job.
OIDC_KEY = "oidc"


@dataclass(frozen=True)
class ProjectIdentity(Identity):
    """`ports.identity.Identity` of a project.

    `signers` is the file of allowed signers, `key` what this process signs with, if anything.
    """

    project: Path
    signers: Path
    issuers: tuple[OidcIssuer, ...]
    key: str | None

    def has_signer(self) -> bool:
        """Return whether this process was given something to sign with."""
        return bool(self.key)

    def sign(self, message: bytes, by: str, at: datetime) -> Signature:
        """Sign as `by`; raises NotAllowed unless what signs is listed for `by` at that time."""
        found = self._make_signature(message)
        checked = self._check(found, message, by, at)
        if checked.fault:
            raise NotAllowed(
                f"{by} cannot be the one who signs: {checked.fault}",
                state="nothing was decided or published",
                fix=f"--by the name that the key is listed for in {self.signers.name}, or "
                "--sign-with another key",
            )
        return found.model_copy(update={"keyid": checked.key}) if found.kind == "ssh" else found

    def check(self, envelope: Envelope, by: str, at: datetime) -> CheckedSignature:
        """Return whether the envelope is signed by a key that is listed for `by` at that time."""
        if envelope.payload_type != PAYLOAD_TYPE:
            return CheckedSignature("", "what was signed is no in-toto statement")
        return self._check(envelope.signature, envelope.signed_bytes, by, at)

    def describe(self, *, is_required: bool) -> str:
        """Describe who is listed, and whether the key of this process is; signs nothing.

        Raises ConfigError when signatures are required and nobody is listed, and when the key is
        not.
        """
        lines = ssh.read_signers(self.signers) if self.signers.is_file() else ()
        if is_required and not lines and not self.issuers:
            raise ConfigError(
                f"signatures are required, and {self.signers.name} lists nobody",
                fix=f"write names and public keys into {self.signers}: docs/security.md",
            )
        required = "required" if is_required else "optional"
        listed = f"{required}; {len(lines)} keys and {len(self.issuers)} issuers are listed"
        key = self.key
        if not key:
            return f"{listed}; no key was given, with --sign-with"
        if key == OIDC_KEY:
            return f"{listed}; this process signs as a CI job"
        public = _public_key(Path(key).expanduser())
        owners = [line.name for line in lines if line.key == public]
        if not owners:
            raise ConfigError(
                f"{key} is not listed in {self.signers.name}",
                fix=f'add a line: NAME namespaces="lakehouse-backfill" ssh-… {public}',
            )
        return f"{listed}; {Path(key).name} is the key of {', '.join(owners)}"

    def _check(
        self, signature: Signature, message: bytes, by: str, at: datetime
    ) -> CheckedSignature:
        if signature.kind == "oidc":
            return oidc.check(self.issuers, self.project, signature, message, by, at)
        if not self.signers.is_file():
            raise ConfigError(
                f"{self.signers} does not exist, so nobody is known who may sign",
                fix="list names and public keys there: docs/security.md",
            )
        ssh.read_signers(self.signers)
        return ssh.check(self.signers, signature.sig, message, by, at)

    def _make_signature(self, message: bytes) -> Signature:
        key = self.key
        if not key:
            raise NotAllowed("nothing was given to sign with", fix="add --sign-with KEY")
        if key == OIDC_KEY:
            return oidc.sign(self.issuers, message)
        file = Path(key).expanduser().absolute()
        if not file.is_file():
            raise ConfigError(f"there is no key file {file}", fix="--sign-with KEY")
        make = sign if is_key_file(file) else ssh.sign
        return Signature(kind="ssh", keyid="", sig=make(file, message))


def _public_key(key: Path) -> str:
    """Return the public key in base64: of an Ed25519 key file, or of the .pub file beside it."""
    if key.is_file() and is_key_file(key):
        return public_line(key).split()[1]
    file = key if key.suffix == ".pub" else Path(f"{key}.pub")
    try:
        return file.read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError) as error:
        raise ConfigError(
            f"{file} holds no public key", fix=f"ssh-keygen -y -f {key} > {file}"
        ) from error


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
