"""An envelope that was edited in any way is a fault with a text: never a traceback, never good."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.core.approval import signatures
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs import signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.identity import statement
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.domain.serialization import canonical_json
from tests.support.examples.keys import Keyring
from tests.support.fakes.context import PRODUCT
from tests.support.fakes.signed import accepted, prod_world

E4 = pytest.mark.req("E4")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
BASE64 = st.binary(max_size=80).map(lambda data: base64.b64encode(data).decode())
DEEP = base64.b64encode(b"[" * 100_000).decode()
QUICK = settings(
    max_examples=60, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


class Signed(NamedTuple):
    """A published run of prod: its lake, its approval and the row of its publication."""

    found: Context
    events: tuple[Event, ...]
    manifest_hash: str
    approval: Event
    row: Publication

    def verdict(self, stored: Any) -> signatures.SignatureVerdict:
        """What is found of the approval with another envelope."""
        detail = {**self.approval.detail, statement.SIGNATURE: stored}
        event = self.approval.model_copy(update={"detail": detail})
        return signatures.check_event(self.found, self.events, event, self.manifest_hash)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    keys = Keyring(tmp_path_factory.mktemp("keys"), "ana", "bob")
    found = prod_world(keys)
    run_id = accepted(keys, found)
    publish(keys.acting(found, "bob"), run_id, "bob")
    events = found.runs.events(run_id)
    approval = next(event for event in events if event.verb == "approve")
    row = found.versions.history(PRODUCT)[0]
    return Signed(found, events, found.runs.plan(run_id).manifest_hash, approval, row)


def is_named(verdict: signatures.SignatureVerdict) -> bool:
    """Whether a verdict is a fault, or that there is no signature; and is a text for people."""
    return not verdict.is_signed and str(verdict).startswith(verdict.what)


@E4
@QUICK
@given(stored=JSON)
@example({"signatures": []})
@example({"signatures": [{"sig": 3}], "payload": 1, "payloadType": None})
def test_what_is_no_envelope_is_a_fault(signed: Signed, stored: Any) -> None:
    assert is_named(signed.verdict(stored))
    text = json.dumps(stored)
    assert isinstance(signatures.describe_stored(stored), str)
    assert isinstance(signatures.describe_stored(text), str)
    row = signed.row.model_copy(update={"signature": text})
    assert is_named(signatures.check_publication(signed.found, row))
    assert signers.signed_environment(row) == "prod"


@E4
@QUICK
@given(text=st.text(min_size=1))
@example("[" * 100_000)
@example('{"a":' * 50_000)
def test_a_text_that_is_no_envelope_is_a_fault(signed: Signed, text: str) -> None:
    row = signed.row.model_copy(update={"signature": text})
    assert is_named(signatures.check_publication(signed.found, row))
    assert signers.signed_environment(row) == "prod"
    assert "signature" in signatures.describe_stored(text)


FIELDS = st.sampled_from(["payloadType", "payload", "signatures", "kind", "keyid", "sig", "extra"])


@E4
@QUICK
@given(field=FIELDS, value=JSON | BASE64)
@example("payload", DEEP)
@example("sig", DEEP)
@example("kind", "oidc")
@example("payload", base64.b64encode(b'{"predicate": {"table": 3}}').decode())
@example("payload", base64.b64encode(b'{"predicateType": [], "predicate": []}').decode())
def test_an_envelope_with_another_field_is_a_fault(signed: Signed, field: str, value: Any) -> None:
    whole = signed.approval.detail[statement.SIGNATURE]
    inner = whole["signatures"][0]
    if field in ("kind", "keyid", "sig"):
        assume(inner[field] != value)
        stored = {**whole, "signatures": [{**inner, field: value}]}
    else:
        assume(whole.get(field) != value)
        stored = {**whole, field: value}
    verdict = signed.verdict(stored)
    # The name of a key and a field that nobody reads are not part of what is signed.
    if field == "keyid" and isinstance(value, str):
        assert verdict.is_signed
    elif field != "extra":
        assert is_named(verdict)


#: The letter of an SSH signature, in base64, with the last bits of its version.
_VERSION_AT = 13


def same_bytes(one: str, other: str) -> bool:
    """Whether two texts are the same in base64: the last letter has bits that nobody reads."""
    try:
        return base64.b64decode(one, validate=True) == base64.b64decode(other, validate=True)
    except ValueError:
        return False


@E4
@QUICK
@given(at=st.integers(min_value=0, max_value=399), letter=st.sampled_from("AZaz09+/= \n\0é"))
@example(399, "Z")
def test_one_letter_of_payload_or_signature_is_a_fault(
    signed: Signed, at: int, letter: str
) -> None:
    whole = signed.approval.detail[statement.SIGNATURE]
    payload = whole["payload"]
    place = at * len(payload) // 400
    changed = payload[:place] + letter + payload[place + 1 :]
    assume(changed != payload and not same_bytes(changed, payload))
    assert is_named(signed.verdict({**whole, "payload": changed}))
    armored = base64.b64decode(whole["signatures"][0]["sig"]).decode()
    lines = armored.splitlines()
    body = "".join(lines[1:-1])
    place = at * len(body) // 400
    changed = body[:place] + letter + body[place + 1 :]
    assume(letter not in "\n =" and body[place] not in ("=", letter))
    # The number of the format's version, which is not signed: ssh-keygen takes 0 for 1.
    assume(place != _VERSION_AT)
    assume(not same_bytes(changed, body))
    text = "\n".join([lines[0], changed, lines[-1], ""])
    sig = base64.b64encode(text.encode()).decode()
    inner = {**whole["signatures"][0], "sig": sig}
    assert is_named(signed.verdict({**whole, "signatures": [inner]}))


@E4
@QUICK
@given(name=st.text())
@example("ana\0")
@example("-O")
@example("\ud800")
def test_no_name_of_an_actor_ends_in_a_traceback(signed: Signed, name: str) -> None:
    assume(name != "ana")
    forged = signed.approval.model_copy(update={"actor": name})
    found = signatures.check_event(signed.found, signed.events, forged, signed.manifest_hash)
    assert is_named(found)
    envelope = statement.Envelope.from_json(signed.approval.detail[statement.SIGNATURE])
    assert signed.found.identity.check(envelope, name, signed.approval.at).fault
    row = signed.row.model_copy(update={"by": name})
    assert is_named(signatures.check_publication(signed.found, row))


def test_the_envelopes_of_these_tests_are_good_before_they_are_edited(signed: Signed) -> None:
    whole = signed.approval.detail[statement.SIGNATURE]
    assert signed.verdict(whole).is_signed
    assert signed.verdict(json.loads(canonical_json(whole))).is_signed
    assert signatures.check_publication(signed.found, signed.row).is_signed
