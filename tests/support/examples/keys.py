"""Keys of people and machines, an allowed_signers file, and contexts that sign with them."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from lakehouse_backfill.adapters.signing import identity
from lakehouse_backfill.adapters.signing.identity import ProjectIdentity
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.profile import OidcIssuer, Profile

PROD = Profile(catalog={"name": "lake"}, environment="prod")


class Keyring:
    """A project's folder with an allowed_signers file, and a key of each person."""

    def __init__(self, folder: Path, *names: str) -> None:
        if shutil.which("ssh-keygen") is None:
            pytest.skip("OpenSSH's client is not installed: no signature can be verified")
        self.folder = folder
        self.signers = folder / "allowed_signers"
        self.keys = {name: self.add_pem_key(name) for name in names}
        self.list_keys()

    def add_pem_key(self, name: str) -> Path:
        """Make an Ed25519 key file of a person, which is not listed yet."""
        file = self.folder / f"{name}.pem"
        pem = Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        file.write_bytes(pem)
        file.chmod(0o600)
        return file

    def add_ssh_key(self, name: str, *options: str) -> Path:
        """Make an SSH key of a person by ssh-keygen, which is not listed yet."""
        file = self.folder / f"{name}.ssh"
        command = ["ssh-keygen", "-q", "-N", "", "-C", name, "-f", str(file), *options]
        subprocess.run(command, check=True)
        return file

    def list_keys(self, *lines: str, **options: str) -> None:
        """Write the file: each person's key, with `options` of some lines, and further lines."""
        own = [
            f"{name} {options.get(name, '')} {public_line(key)}".replace("  ", " ")
            for name, key in self.keys.items()
        ]
        self.signers.write_text("\n".join([*own, *lines, ""]))

    def identity(self, name: str | None, issuers: tuple[OidcIssuer, ...] = ()) -> ProjectIdentity:
        """What a process of that person signs with."""
        key = str(self.keys[name]) if name else None
        return ProjectIdentity(self.folder, self.signers, issuers, key)

    def acting(self, found: Context, name: str | None, **changes: Any) -> Context:
        """The context of a process of that person."""
        return dataclasses.replace(found, identity=self.identity(name), **changes)


def public_line(key: Path) -> str:
    """The public key of a key file, as allowed_signers lists it."""
    if key.suffix == ".pem":
        return identity.public_line(key)
    return " ".join(Path(f"{key}.pub").read_text().split()[:2])
