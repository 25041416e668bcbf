"""Signatures of SSH keys, agents, key files and CI jobs; ssh-keygen itself is the oracle."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from joserfc.jwk import RSAKey

from lakehouse_backfill.adapters.signing import oidc
from lakehouse_backfill.domain.identity.statement import (
    PAYLOAD_TYPE,
    Envelope,
    Signature,
    statement_to_sign,
)
from lakehouse_backfill.errors import ConfigError, EnvironmentDown, NotAllowed
from tests.support.examples.issuers import ISSUER, SUBJECT, Issuer
from tests.support.examples.keys import Keyring, public_line

E4 = pytest.mark.req("E4")
AT = datetime(2026, 11, 25, 1, 0, tzinfo=timezone.utc)
STATEMENT = {"_type": "https://in-toto.io/Statement/v1", "subject": [], "predicate": {"by": "ana"}}
PAYLOAD, MESSAGE = statement_to_sign(STATEMENT)
PAGE = Path(__file__).parents[4] / "docs" / "security.md"


def envelope(signature: Signature) -> Envelope:
    return Envelope(payload_type=PAYLOAD_TYPE, payload=PAYLOAD, signature=signature)


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "ana", "bob")


def ssh_keygen_says(keys: Keyring, signature: Signature, by: str, message: bytes) -> bool:
    """Ask ssh-keygen itself, as somebody without this program does."""
    file = keys.folder / "found.sig"
    file.write_text(signature.sig)
    command = [
        "ssh-keygen", "-Y", "verify", "-f", str(keys.signers), "-I", by,
        "-n", "lakehouse-backfill", "-s", str(file),
    ]  # fmt: skip
    done = subprocess.run(command, input=message, capture_output=True, check=False)
    return done.returncode == 0


@E4
@pytest.mark.parametrize(
    "options",
    [None, ("-t", "ed25519"), ("-t", "ecdsa"), ("-t", "rsa", "-b", "2048")],
    ids=["Ed25519 key file", "ed25519", "ecdsa", "rsa"],
)
def test_what_a_key_signs_is_verified_here_and_by_ssh_keygen(
    keys: Keyring, options: tuple[str, ...] | None
) -> None:
    if options:
        keys.keys["ana"] = keys.add_ssh_key("ana", *options)
        keys.list_keys()
    signature = keys.identity("ana").sign(MESSAGE, "ana", AT)
    assert keys.identity(None).check(envelope(signature), "ana", AT).fault == ""
    assert ssh_keygen_says(keys, signature, "ana", MESSAGE)
    assert not ssh_keygen_says(keys, signature, "bob", MESSAGE)
    assert not ssh_keygen_says(keys, signature, "ana", MESSAGE + b" ")
    assert re.fullmatch(r"(ED25519|ECDSA|RSA) SHA256:\S+", signature.keyid)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ssh-agent of this test alone."""
    socket = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    for _ in range(100):
        if socket.exists():
            break
        time.sleep(0.02)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield socket
    process.terminate()
    process.wait()


@E4
@pytest.mark.usefixtures("agent")
def test_a_key_that_only_an_agent_holds_signs(keys: Keyring) -> None:
    private = keys.add_ssh_key("ana", "-t", "ed25519")
    subprocess.run(["ssh-add", "-q", str(private)], check=True, capture_output=True)
    keys.keys["ana"] = private
    keys.list_keys()
    private.unlink()
    keys.keys["ana"] = Path(f"{private}.pub")
    signature = keys.identity("ana").sign(MESSAGE, "ana", AT)
    assert ssh_keygen_says(keys, signature, "ana", MESSAGE)


@E4
def test_a_signature_for_another_namespace_or_statement_does_not_count(keys: Keyring) -> None:
    keys.keys["ana"] = keys.add_ssh_key("ana", "-t", "ed25519")
    keys.list_keys()
    command = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(keys.keys["ana"]), "-n", "git"]
    done = subprocess.run(command, input=MESSAGE, capture_output=True, check=True)
    foreign = Signature(kind="ssh", keyid="", sig=done.stdout.decode())
    found = keys.identity(None).check(envelope(foreign), "ana", AT)
    assert found.fault == "the signature is not one of this statement"
    mine = keys.identity("ana").sign(MESSAGE, "ana", AT)
    other = envelope(mine).model_copy(update={"payload": base64.b64encode(b"{}").decode()})
    assert keys.identity(None).check(other, "ana", AT).fault
    typed = envelope(mine).model_copy(update={"payload_type": "text/plain"})
    assert keys.identity(None).check(typed, "ana", AT).fault
    restricted = 'namespaces="git"'
    keys.list_keys(ana=restricted)
    assert "is not listed for ana" in keys.identity(None).check(envelope(mine), "ana", AT).fault


@E4
@pytest.mark.parametrize(
    "name",
    ["-Y", "--help", "ana,bob", "*", "eve\nana", "$(touch x)", "ana bob", 'a"b', "!ana"],
)
def test_a_hostile_name_is_neither_an_option_nor_a_pattern_nor_a_line(
    keys: Keyring, name: str
) -> None:
    before = sorted(file.name for file in keys.folder.iterdir())
    with pytest.raises(NotAllowed):
        keys.identity("ana").sign(MESSAGE, name, AT)
    assert sorted(file.name for file in keys.folder.iterdir()) == before


@E4
def test_a_name_with_a_blank_is_listed_in_quotes(keys: Keyring) -> None:
    keys.list_keys(f'"ana maria" {public_line(keys.keys["bob"])}')
    keys.list_keys(f'"ana maria" {public_line(keys.add_pem_key("am"))}')
    keys.keys["am"] = keys.folder / "am.pem"
    signature = keys.identity("am").sign(MESSAGE, "ana maria", AT)
    assert ssh_keygen_says(keys, signature, "ana maria", MESSAGE)


@E4
def test_the_text_of_a_key_is_in_no_error_and_no_signature(keys: Keyring) -> None:
    private = keys.keys["ana"].read_text().splitlines()[1]
    signature = keys.identity("ana").sign(MESSAGE, "ana", AT)
    texts = [signature.model_dump_json()]
    broken = keys.folder / "broken.pem"
    broken.write_text(f"-----BEGIN PRIVATE KEY-----\n{private[:-4]}\n-----END PRIVATE KEY-----\n")
    keys.keys["broken"] = broken
    for act in (
        lambda: keys.identity("ana").sign(MESSAGE, "bob", AT),
        lambda: keys.identity("broken").sign(MESSAGE, "ana", AT),
    ):
        with pytest.raises((NotAllowed, ConfigError)) as caught:
            act()
        texts.append(str(caught.value))
    assert not [text for text in texts if private[10:40] in text]


def test_a_key_or_a_list_that_is_missing_or_no_key_is_named(keys: Keyring) -> None:
    keys.keys["none"] = keys.folder / "none"
    with pytest.raises(ConfigError, match="there is no key file"):
        keys.identity("none").sign(MESSAGE, "ana", AT)
    text = keys.folder / "text"
    text.write_text("no key")
    keys.keys["text"] = text
    with pytest.raises(NotAllowed, match="ssh-keygen made no signature"):
        keys.identity("text").sign(MESSAGE, "ana", AT)
    keys.signers.unlink()
    with pytest.raises(ConfigError, match="allowed_signers does not exist"):
        keys.identity("ana").sign(MESSAGE, "ana", AT)


def test_without_ssh_keygen_the_error_says_what_to_install(
    keys: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentDown, match="ssh-keygen is not installed"):
        keys.identity("ana").sign(MESSAGE, "ana", AT)


@E4
def test_the_script_of_the_page_gives_what_ssh_keygen_verifies(keys: Keyring) -> None:
    """Break-glass: the steps of docs/security.md, run as they are written."""
    signature = keys.identity("ana").sign(MESSAGE, "ana", AT)
    event = {
        "seq": 2, "verb": "approve",
        "detail": {"signature": envelope(signature).to_json()},
    }  # fmt: skip
    (keys.folder / "log.json").write_text(json.dumps({"data": {"events": [event]}}))
    text = PAGE.read_text(encoding="utf-8")
    program = text.split("python3 - <<'END'\n")[1].split("END\n")[0]
    subprocess.run([sys.executable, "-c", program], cwd=keys.folder, check=True)
    command = text.split("END\n")[1].split("```")[0]
    (keys.folder / "catalog").mkdir()
    keys.signers.rename(keys.folder / "catalog" / "allowed_signers")
    done = subprocess.run(
        ["sh", "-c", command], cwd=keys.folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith('Good "lakehouse-backfill" signature for ana with ED25519 key')
    assert b'"by":"ana"' in (keys.folder / "2-approve.signed").read_bytes()


@pytest.fixture
def issuer(keys: Keyring) -> Issuer:
    return Issuer(keys, PAYLOAD, MESSAGE, AT)


@E4
def test_a_ci_job_signs_with_a_token_for_this_statement(
    keys: Keyring, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TOKEN_OF_{oidc.audience_of(MESSAGE)[-8:]}", issuer.token())
    keys.keys["ci"] = Path("oidc")
    identity = keys.identity("ci", (issuer.listed,))
    signature = identity.sign(MESSAGE, "bot", AT)
    found = identity.check(envelope(signature), "bot", AT)
    assert (found.key, found.fault) == (f"OIDC {ISSUER} {SUBJECT}", "")
    with pytest.raises(NotAllowed, match="signs as bot, not as ana"):
        identity.sign(MESSAGE, "ana", AT)


@E4
def test_a_token_that_is_not_for_this_act_does_not_sign_it(issuer: Issuer) -> None:
    assert issuer.fault(issuer.token()) == ""
    stranger = RSAKey.generate_key(2048, {"kid": "k1"})
    now = int(AT.timestamp())
    cases = {
        "made for another statement": issuer.token(aud="lakehouse-backfill:sha256:00"),
        "another statement": issuer.token(aud=[oidc.audience_of(MESSAGE), "https://other"]),
        "not signed by a key of its issuer": issuer.token(stranger),
        "the token is one of https://evil": issuer.token(iss="https://evil"),
        "is not listed": issuer.token(sub="repo:acme/lake:pull_request"),
        "does not hold at": issuer.token(iat=now - 900, exp=now - 600),
        "s are the most": issuer.token(exp=now + 7200),
        "does not say how long": issuer.token(exp=None),
    }
    for match, token in cases.items():
        assert match in issuer.fault(token), match
    head, body, _ = issuer.token().split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    for broken in (f"{none}.{body}.", f"{head}.{body}.", "x", "", "a.b.c"):
        assert "not signed by a key of its issuer" in issuer.fault(broken)
    assert "signs as bot, not as ana" in issuer.fault(issuer.token(), by="ana")
    assert "does not hold at" in issuer.fault(issuer.token(), at=AT + timedelta(days=1))


@E4
def test_a_token_of_another_issuer_or_of_keys_outside_the_project_is_refused(
    keys: Keyring, issuer: Issuer
) -> None:
    token = Signature(kind="oidc", keyid="https://evil", sig=issuer.token())
    identity = keys.identity(None, (issuer.listed,))
    assert "is not listed" in identity.check(envelope(token), "bot", AT).fault
    outside = issuer.listed.model_copy(update={"jwks": "../jwks.json"})
    mine = Signature(kind="oidc", keyid=ISSUER, sig=issuer.token())
    with pytest.raises(ConfigError, match="no file inside the project"):
        keys.identity(None, (outside,)).check(envelope(mine), "bot", AT)


@E4
def test_a_token_is_in_no_error(keys: Keyring, issuer: Issuer) -> None:
    script = "import sys; print('s3cret-token'); sys.exit('s3cret-token')"
    failing = issuer.listed.model_copy(update={"token_command": (sys.executable, "-c", script)})
    keys.keys["ci"] = Path("oidc")
    with pytest.raises(EnvironmentDown) as caught:
        keys.identity("ci", (failing,)).sign(MESSAGE, "bot", AT)
    assert "s3cret" not in str(caught.value)
    bare = issuer.listed.model_copy(update={"token_command": ()})
    for name in ("ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"):
        assert name not in os.environ
    with pytest.raises(NotAllowed, match="no job of GitHub Actions"):
        keys.identity("ci", (bare,)).sign(MESSAGE, "bot", AT)
    with pytest.raises(ConfigError, match="names 0 issuers"):
        keys.identity("ci").sign(MESSAGE, "bot", AT)


def test_doctor_says_whose_key_it_is_and_what_line_to_add(keys: Keyring) -> None:
    found = keys.identity("ana").describe(is_required=True)
    assert found == "required; 2 keys and 0 issuers are listed; ana.pem is the key of ana"
    assert "no key was given" in keys.identity(None).describe(is_required=False)
    keys.keys["eve"] = keys.add_ssh_key("eve", "-t", "ed25519")
    with pytest.raises(ConfigError, match=r"is not listed") as caught:
        keys.identity("eve").describe(is_required=True)
    assert caught.value.fix.endswith(public_line(keys.keys["eve"]).split()[1])
    Path(f"{keys.keys['eve']}.pub").unlink()
    with pytest.raises(ConfigError, match="holds no public key"):
        keys.identity("eve").describe(is_required=True)
    keys.signers.unlink()
    with pytest.raises(ConfigError, match="lists nobody"):
        keys.identity(None).describe(is_required=True)
