"""Identity tokens of CI jobs (OpenID Connect), each made for one statement.

The audience of a token is the SHA-256 of the statement. So a token signs one statement, and is of
no use to whoever reads it later: no service takes a token for another audience, and it ends within
an hour. It is stored whole, since its issuer's signature is over all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from lakehouse_backfill.domain.identity.statement import Signature
from lakehouse_backfill.domain.profile import OidcIssuer
from lakehouse_backfill.errors import ConfigError, EnvironmentDown, NotAllowed
from lakehouse_backfill.ports.system import CheckedSignature

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
#: Seconds by which clocks may differ, and for which a token may last.
_LEEWAY_S, _MAX_LIFE_S = 60, 3600
_END_OF_TIME_S = 1 << 40
_TIMEOUT_S, _MAX_BYTES = 30, 1_000_000
#: What GitHub Actions gives to a job with `permissions: id-token: write`.
_GITHUB = ("ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN")


def audience_of(message: bytes) -> str:
    """Return the audience of a token that signs a message, and nothing else."""
    return f"lakehouse-backfill:sha256:{hashlib.sha256(message).hexdigest()}"


def sign(issuers: tuple[OidcIssuer, ...], message: bytes) -> Signature:
    """Fetch a token for the message from the job's issuer."""
    if len(issuers) != 1:
        raise ConfigError(
            f"the profile names {len(issuers)} issuers under oidc, and a job signs with one",
            fix="name the issuer of this CI system: docs/security.md",
        )
    audience = audience_of(message)
    command = issuers[0].token_command
    token = _token_of_command(command, audience) if command else _token_of_github(audience)
    return Signature(kind="oidc", keyid=issuers[0].issuer, sig=token)


def check(
    issuers: tuple[OidcIssuer, ...], project: Path, signature: Signature, message: bytes,
    by: str, at: datetime,
) -> CheckedSignature:  # fmt: skip
    """Check a token: its issuer's signature, audience, time and subject; `by` is its name."""
    issuer = next((one for one in issuers if one.issuer == signature.keyid), None)
    if issuer is None:
        return CheckedSignature(signature.keyid, f"the issuer {signature.keyid} is not listed")
    key = f"OIDC {issuer.issuer}"
    claims = _read_claims(issuer, project, signature.sig)
    if isinstance(claims, str):
        return CheckedSignature(key, f"the token is not signed by a key of its issuer ({claims})")
    subject = str(claims.get("sub"))
    return CheckedSignature(f"{key} {subject}", _claims_fault(issuer, claims, message, by, at))


def _seconds(value: Any) -> int | None:
    """Return a time of a token in seconds; None for what is no time."""
    is_time = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_time and 0 <= value < _END_OF_TIME_S else None


def _read_claims(issuer: OidcIssuer, project: Path, token: str) -> dict[str, Any] | str:
    """Return the claims of a token that a key of its issuer signed; else the kind of the fault.

    An issuer may have changed its keys since they were fetched: they are fetched once more then.
    """
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    # What an edited token raises where it is taken apart, besides the library's own errors.
    broken = (JoseError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
    fault = ""
    for text in _load_jwks(issuer, project):
        try:
            found = KeySet.import_key_set(json.loads(text))
            return dict(jwt.decode(token, found, algorithms=_ALGORITHMS).claims)
        except broken as error:
            fault = type(error).__name__
    return fault


def _claims_fault(
    issuer: OidcIssuer, claims: dict[str, Any], message: bytes, by: str, at: datetime
) -> str:
    subject, name = claims.get("sub"), issuer.subjects.get(str(claims.get("sub")))
    begins, ends = _seconds(claims.get("iat")), _seconds(claims.get("exp"))
    starts = _seconds(claims.get("nbf", begins))
    if claims.get("iss") != issuer.issuer:
        return f"the token is one of {claims.get('iss')}"
    if claims.get("aud") not in (audience_of(message), [audience_of(message)]):
        return "the token was made for another statement"
    if name is None:
        return f"the subject {subject} is not listed"
    if name != by:
        return f"the subject {subject} signs as {name}, not as {by}"
    if begins is None or ends is None or starts is None:
        return "the token does not say how long it lasts"
    if ends - begins > _MAX_LIFE_S:
        return f"the token lasts {ends - begins} s, and {_MAX_LIFE_S} s are the most"
    if not max(begins, starts) - _LEEWAY_S <= at.timestamp() <= ends + _LEEWAY_S:
        return f"the token does not hold at {at:%Y-%m-%d %H:%M}Z"
    return ""


def _load_jwks(issuer: OidcIssuer, project: Path) -> Iterator[str]:
    """Yield the issuer's keys; those of an address twice, the second time as they are now."""
    if urlsplit(issuer.jwks).scheme == "https":
        yield _fetch_jwks(issuer.jwks)
        _fetch_jwks.cache_clear()
        yield _fetch_jwks(issuer.jwks)
        return
    file = (project / issuer.jwks).resolve()
    if not file.is_relative_to(project.resolve()) or not file.is_file():
        raise ConfigError(
            f"{issuer.jwks} is no file inside the project",
            fix="keep the issuer's public keys in the project, or give an https address",
        )
    yield file.read_text(encoding="utf-8", errors="replace")


@cache
def _fetch_jwks(url: str) -> str:
    return _fetch(url, {})


def _token_of_command(command: tuple[str, ...], audience: str) -> str:
    words = [word.replace("{audience}", audience) for word in command]
    try:
        # The command is part of the profile.
        done = subprocess.run(  # noqa: S603
            words, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise _no_token_error(f"{words[0]}: {type(error).__name__}") from error
    if done.returncode:
        # What it printed may hold a part of the token.
        raise _no_token_error(f"{words[0]} ended with {done.returncode}")
    return done.stdout.decode("ascii", "replace").strip()


def _token_of_github(audience: str) -> str:
    url, bearer = (os.environ.get(name, "") for name in _GITHUB)
    if not url or not bearer:
        raise NotAllowed(
            "no identity token: this is no job of GitHub Actions with `id-token: write`",
            fix="write oidc.token_command in the profile for another CI system",
        )
    text = _fetch(f"{url}&audience={quote(audience)}", {"Authorization": f"bearer {bearer}"})
    return str(json.loads(text)["value"])


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would carry the job's credential elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""
        return


def _fetch(url: str, headers: dict[str, str]) -> str:
    if urlsplit(url).scheme != "https":
        raise ConfigError(f"{urlsplit(url).netloc}: only https addresses are asked")
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 (https, see above)
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
            return str(answer.read(_MAX_BYTES).decode())
    except OSError as error:
        raise _no_token_error(f"{urlsplit(url).netloc}: {type(error).__name__}") from error


def _no_token_error(why: str) -> EnvironmentDown:
    return EnvironmentDown(f"the issuer gave no answer: {why}", fix="give the same command again")
