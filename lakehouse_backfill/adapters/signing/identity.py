"""Signs with the key that this process was given, and checks signatures of all who are listed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lakehouse_backfill.adapters.signing import ed25519, oidc, ssh
from lakehouse_backfill.domain.contract import OidcIssuer
from lakehouse_backfill.domain.identity.statement import PAYLOAD_TYPE, Envelope, Signature
from lakehouse_backfill.errors import ConfigError, NotAllowed
from lakehouse_backfill.ports.identity import CheckedSignature, Identity

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
        make = ed25519.sign if ed25519.is_key_file(file) else ssh.sign
        return Signature(kind="ssh", keyid="", sig=make(file, message))


def _public_key(key: Path) -> str:
    """Return the public key in base64: of an Ed25519 key file, or of the .pub file beside it."""
    if key.is_file() and ed25519.is_key_file(key):
        return ed25519.public_line(key).split()[1]
    file = key if key.suffix == ".pub" else Path(f"{key}.pub")
    try:
        return file.read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError) as error:
        raise ConfigError(
            f"{file} holds no public key", fix=f"ssh-keygen -y -f {key} > {file}"
        ) from error
