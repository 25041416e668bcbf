"""Identity tokens of CI jobs: each way in which one does not sign this act, now, by this job."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from joserfc import jwt

from lakehouse_backfill.adapters.signing import oidc
from lakehouse_backfill.domain.identity.statement import statement_to_sign
from tests.support.examples.issuers import ISSUER, SUBJECT, Issuer
from tests.support.examples.keys import Keyring

E4 = pytest.mark.req("E4")
AT = datetime(2026, 11, 25, 1, 0, tzinfo=timezone.utc)
NOW = int(AT.timestamp())
PAYLOAD, MESSAGE = statement_to_sign({"predicate": {"by": "bot"}})
NOT_OF_ISSUER = "the token is not signed by a key of its issuer"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(Keyring(tmp_path_factory.mktemp("ci")), PAYLOAD, MESSAGE, AT)


def test_a_token_for_this_statement_counts(issuer: Issuer) -> None:
    assert issuer.fault(issuer.token()) == ""
    assert issuer.fault(issuer.token(nbf=NOW)) == ""
    assert issuer.fault(issuer.token(exp=NOW + 3600)) == ""
    assert issuer.fault(issuer.token(aud=[oidc.audience_of(MESSAGE)])) == ""


@E4
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"iat": NOW - 900, "exp": NOW - 600}, "the token does not hold at 2026-11-25 01:00Z"),
        ({"iat": NOW + 600, "exp": NOW + 900}, "the token does not hold at 2026-11-25 01:00Z"),
        ({"nbf": NOW + 600}, "the token does not hold at 2026-11-25 01:00Z"),
        ({"exp": NOW + 3601}, "the token lasts 3601 s, and 3600 s are the most"),
        ({"exp": None}, "the token does not say how long it lasts"),
        ({"iat": None}, "the token does not say how long it lasts"),
        ({"iat": True}, "the token does not say how long it lasts"),
        ({"exp": "later"}, "the token does not say how long it lasts"),
        ({"exp": 10**400}, "the token does not say how long it lasts"),
        ({"nbf": "later"}, "the token does not say how long it lasts"),
        ({"aud": "lakehouse-backfill:sha256:00"}, "the token was made for another statement"),
        ({"aud": None}, "the token was made for another statement"),
        ({"aud": "https://other.example.com"}, "the token was made for another statement"),
        (
            {"aud": [oidc.audience_of(MESSAGE), "https://other.example.com"]},
            "the token was made for another statement",
        ),
        ({"iss": "https://evil.example.com"}, "the token is one of https://evil.example.com"),
        ({"iss": None}, "the token is one of None"),
        ({"iss": ISSUER + "/"}, f"the token is one of {ISSUER}/"),
        ({"sub": "repo:acme/lake:pull_request"}, "is not listed"),
        ({"sub": SUBJECT.upper()}, "is not listed"),
        ({"sub": SUBJECT + " "}, "is not listed"),
        ({"sub": None}, "the subject None is not listed"),
    ],
    ids=[
        "expired", "made in the future", "not valid yet", "over an hour", "no end", "no begin",
        "begin is no time", "end is no time", "end beyond time", "start is no time",
        "another statement", "no audience", "another service", "two audiences", "another issuer",
        "no issuer", "issuer with a slash", "another subject", "subject in capitals",
        "subject with a blank", "no subject",
    ],
)  # fmt: skip
def test_a_token_with_a_wrong_claim_signs_nothing(
    issuer: Issuer, changes: dict[str, Any], fault: str
) -> None:
    assert fault in issuer.fault(issuer.token(**changes))


@E4
def test_a_token_holds_for_its_name_and_time_alone(issuer: Issuer) -> None:
    token = issuer.token()
    assert "signs as bot, not as ana" in issuer.fault(token, by="ana")
    for minutes in (-2, 7):
        assert "does not hold at" in issuer.fault(token, at=AT + timedelta(minutes=minutes))


def part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def hmac_token(issuer: Issuer, alg: str, secret: bytes, **header: Any) -> str:
    """A token that is signed by a secret that everybody knows: the public key."""
    signed = f"{part({'alg': alg, 'kid': 'k1', **header})}.{part(issuer.claims())}"
    kind = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}[alg]
    mark = hmac.new(secret, signed.encode(), kind).digest()
    return f"{signed}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"


@E4
@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", None])
def test_a_token_without_an_algorithm_signs_nothing(issuer: Issuer, alg: str | None) -> None:
    for tail in ("", "AAAA", issuer.token().rpartition(".")[2]):
        token = f"{part({'alg': alg, 'kid': 'k1'})}.{part(issuer.claims())}.{tail}"
        assert NOT_OF_ISSUER in issuer.fault(token)
    token = f"{part({'kid': 'k1'})}.{part(issuer.claims())}."
    assert NOT_OF_ISSUER in issuer.fault(token)


@E4
@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512"])
def test_the_public_key_is_no_secret_that_signs(issuer: Issuer, alg: str) -> None:
    public = issuer.key.as_pem(private=False)
    for secret in (public, public.strip(), issuer.jwks.read_bytes(), b""):
        assert NOT_OF_ISSUER in issuer.fault(hmac_token(issuer, alg, secret))


@E4
def test_a_token_brings_no_key_of_its_own(issuer: Issuer) -> None:
    stranger = Issuer.new_key("k1")
    own = stranger.as_dict(private=False)
    for header in ({"jwk": own}, {"jku": "https://evil.example.com/jwks"}, {"x5c": ["AAAA"]}, {}):
        made = jwt.encode({"alg": "RS256", "kid": "k1"}, issuer.claims(), stranger)
        body, mark = made.split(".")[1:]
        forged = f"{part({'alg': 'RS256', 'kid': 'k1', **header})}.{body}.{mark}"
        assert NOT_OF_ISSUER in issuer.fault(forged)
    assert NOT_OF_ISSUER in issuer.fault(issuer.token(stranger))
    critical = hmac_token(issuer, "HS256", b"x", crit=["exp"], exp=1)
    assert NOT_OF_ISSUER in issuer.fault(critical)


@E4
def test_a_token_of_a_key_that_the_issuer_does_not_name_signs_nothing(issuer: Issuer) -> None:
    assert NOT_OF_ISSUER in issuer.fault(issuer.token(kid="k9"))
    assert NOT_OF_ISSUER in issuer.fault(issuer.token(Issuer.new_key("k9"), kid="k9"))
    # The right key under the name of another one.
    issuer.publish_keys(issuer.key, second := Issuer.new_key("k2"))
    try:
        assert issuer.fault(issuer.token(second, kid="k2")) == ""
        assert NOT_OF_ISSUER in issuer.fault(issuer.token(issuer.key, kid="k2"))
    finally:
        issuer.publish_keys(issuer.key)


@E4
def test_a_rotated_key_signs_while_it_is_kept_and_not_when_it_is_removed(tmp_path: Path) -> None:
    own = Issuer(Keyring(tmp_path), PAYLOAD, MESSAGE, AT)
    old, new = own.token(), Issuer.new_key("k2")
    own.publish_keys(new, own.key)
    assert own.fault(old) == ""
    assert own.fault(own.token(new, kid="k2")) == ""
    own.publish_keys(new)
    assert NOT_OF_ISSUER in own.fault(old)
    own.jwks.write_text("{")
    assert NOT_OF_ISSUER in own.fault(own.token(new, kid="k2"))


@E4
def test_a_process_that_runs_on_learns_the_new_keys_of_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Issuer(Keyring(tmp_path), PAYLOAD, MESSAGE, AT)
    new, answers = Issuer.new_key("k2"), [Issuer.public_keys(own.key)]
    fetched: list[str] = []

    def fetch(url: str, headers: dict[str, str]) -> str:
        fetched.append(url)
        return answers[-1]

    oidc._fetch_jwks.cache_clear()
    monkeypatch.setattr(oidc, "_fetch", fetch)
    own.listed = own.listed.model_copy(update={"jwks": "https://ci.example.com/jwks"})
    assert own.fault(own.token()) == own.fault(own.token()) == ""
    assert len(fetched) == 1
    answers.append(Issuer.public_keys(new))
    assert own.fault(own.token(new, kid="k2")) == ""
    assert NOT_OF_ISSUER in own.fault(own.token())
    assert set(fetched) == {"https://ci.example.com/jwks"}
    oidc._fetch_jwks.cache_clear()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CLAIMS = ("iss", "sub", "aud", "iat", "exp", "nbf", "jti")


@E4
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(CLAIMS[:6]), value=JSON)
@example("exp", float("inf"))
@example("iat", float("nan"))
@example("sub", [SUBJECT])
def test_no_claim_ends_in_a_traceback_and_none_but_the_right_one_signs(
    issuer: Issuer, name: str, value: Any
) -> None:
    claims = {**issuer.claims(), name: value}
    signed = f"{part({'alg': 'RS256', 'kid': 'k1'})}.{part(claims)}"
    mark = issuer.key.get_op_key("sign").sign(signed.encode(), PKCS1v15(), SHA256())
    token = f"{signed}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"
    fault = issuer.fault(token)
    if not fault:
        assert name in ("iat", "exp", "nbf")
        assert (0 if name == "nbf" else NOW - 3600) <= value <= NOW + 3660


@E4
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text() | st.lists(st.text(), max_size=4).map(".".join), header=JSON, body=JSON)
@example("." * 5000, {}, {})
@example("a.b.c", [[]], [])
def test_no_text_that_is_no_token_ends_in_a_traceback(
    issuer: Issuer, text: str, header: Any, body: Any
) -> None:
    mark = issuer.token().rpartition(".")[2]
    deep = base64.urlsafe_b64encode(b"[" * 20_000).rstrip(b"=").decode()
    for token in (text, f"{part(header)}.{part(body)}.{mark}", f"{deep}.{deep}.{mark}"):
        assert issuer.fault(token).startswith(NOT_OF_ISSUER)
