"""An issuer of identity tokens of CI jobs, and the tokens that it makes."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from lakehouse_backfill.adapters.signing import oidc
from lakehouse_backfill.domain.identity.statement import PAYLOAD_TYPE, Envelope, Signature
from lakehouse_backfill.domain.profile import OidcIssuer
from tests.support.examples.keys import Keyring

ISSUER = "https://ci.example.com"
SUBJECT = "repo:acme/lake:environment:prod"


class Issuer:
    """An issuer with its keys in the project; its tokens sign `payload`, sent as `message`."""

    def __init__(self, keys: Keyring, payload: str, message: bytes, at: datetime) -> None:
        self.keys, self.payload, self.message, self.at = keys, payload, message, at
        self.key = self.new_key("k1")
        self.jwks = keys.folder / "jwks.json"
        self.publish_keys(self.key)
        script = "import os, sys; print(os.environ['TOKEN_OF_' + sys.argv[1][-8:]])"
        self.listed = OidcIssuer(
            issuer=ISSUER, jwks="jwks.json", subjects={SUBJECT: "bot"},
            token_command=(sys.executable, "-c", script, "{audience}"),
        )  # fmt: skip

    @staticmethod
    def new_key(kid: str) -> RSAKey:
        return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})

    def publish_keys(self, *keys: RSAKey) -> None:
        """Write the public keys into the project, as the issuer publishes them."""
        self.jwks.write_text(self.public_keys(*keys))

    @staticmethod
    def public_keys(*keys: RSAKey) -> str:
        return json.dumps(KeySet(list(keys)).as_dict(private=False))

    def claims(self, **changes: Any) -> dict[str, Any]:
        """The claims of a token for the message; a change to None leaves one out."""
        now = int(self.at.timestamp())
        claims = {
            "iss": ISSUER, "sub": SUBJECT, "aud": oidc.audience_of(self.message),
            "iat": now, "exp": now + 300,
        }  # fmt: skip
        return {name: each for name, each in {**claims, **changes}.items() if each is not None}

    def token(self, key: RSAKey | None = None, kid: str = "k1", **changes: Any) -> str:
        header = {"alg": "RS256", "kid": kid}
        return jwt.encode(header, self.claims(**changes), key or self.key)

    def fault(self, token: str, by: str = "bot", at: datetime | None = None) -> str:
        """What is wrong with a token, as the project sees it."""
        signature = Signature(kind="oidc", keyid=ISSUER, sig=token)
        envelope = Envelope(payload_type=PAYLOAD_TYPE, payload=self.payload, signature=signature)
        return self.keys.identity(None, (self.listed,)).check(envelope, by, at or self.at).fault
