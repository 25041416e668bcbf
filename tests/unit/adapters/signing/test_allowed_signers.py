"""The file of allowed signers: one key is one person, on a line of their own."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.signing.ssh import read_signers
from lakehouse_backfill.domain.identity.statement import (
    PAYLOAD_TYPE,
    Envelope,
    Signature,
    statement_to_sign,
)
from lakehouse_backfill.errors import ConfigError
from tests.support.examples.keys import Keyring, public_line

E4 = pytest.mark.req("E4")
AT = datetime(2026, 11, 25, 1, 0, tzinfo=timezone.utc)
PAYLOAD, MESSAGE = statement_to_sign({"predicate": {"by": "ana"}})


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "ana", "bob")


def write(keys: Keyring, *lines: str) -> None:
    """Write lines, in which ANA and BOB stand for the keys."""
    text = "\n".join(lines)
    for name in ("ana", "bob"):
        text = text.replace(name.upper(), public_line(keys.keys[name]))
    keys.signers.write_text(text + "\n")


@E4
@pytest.mark.parametrize(
    ("lines", "problem", "fix"),
    [
        (
            ["# people", "ana ANA", "", "bob ANA"],
            "line 4: the key of bob is listed for ana on line 2 too",
            "remove line 2 or 4: a key is one person's",
        ),
        (
            ['ana valid-before="20260101" ANA', 'bob valid-after="20260101" ANA'],
            "line 2: the key of bob is listed for ana on line 1 too",
            "remove line 1 or 2",
        ),
        (["ana ANA", "Ana ANA"], "line 2: the key of Ana is listed for ana", "remove line"),
        (["ana ANA", "bob ANA= comment"], "line 2: the key of bob is listed", "remove line"),
        (["ana,bob ANA"], "line 1: 'ana,bob' names several people", "one line for each person"),
        (['"ana, bob" ANA'], "line 1: 'ana, bob' names several people", "one line for each"),
        (["* ANA"], "line 1: '*' names several people", "one line for each person"),
        (["an? ANA"], "line 1: 'an?' names several people", "one line for each person"),
        (["!bob ANA"], "line 1: '!bob' names several people", "one line for each person"),
        (["ana", "bob BOB"], "line 1: there is no key", 'NAME namespaces="lakehouse-backfill"'),
        (["ana namespaces=\"ssh-rsa AAAA\""], "line 1: there is no key", "ssh-… KEY"),
        (["ana cert-authority ANA"], "line 1: a certificate authority", "key of each person"),
        (["ana ssh-ed25519-cert-v01@openssh.com AAAA"], "line 1: a certificate", "key of each"),
    ],
    ids=[
        "two names", "two names at two times", "two spellings", "two encodings", "list",
        "quoted list", "pattern", "one letter", "negation", "no key", "key in an option",
        "authority", "certificate",
    ],
)  # fmt: skip
def test_a_list_in_which_a_key_is_not_one_person_is_refused(
    keys: Keyring, lines: list[str], problem: str, fix: str
) -> None:
    signed = keys.identity("ana").sign(MESSAGE, "ana", AT)
    write(keys, *lines)
    envelope = Envelope(payload_type=PAYLOAD_TYPE, payload=PAYLOAD, signature=signed)
    for act in (
        lambda: keys.identity("ana").sign(MESSAGE, "ana", AT),
        lambda: keys.identity(None).check(envelope, "ana", AT),
        lambda: keys.identity("ana").describe(is_required=True),
    ):
        with pytest.raises(ConfigError) as caught:
            act()
        assert caught.value.problem.startswith(f"allowed_signers, {problem}")
        assert caught.value.fix.startswith(f"in {keys.signers}: ")
        assert fix in caught.value.fix


@E4
def test_several_keys_of_one_person_and_one_key_at_two_times_are_listed(keys: Keyring) -> None:
    write(
        keys,
        '"ana maria" namespaces="lakehouse-backfill",valid-before="20260101" ANA laptop',
        "",
        '  # "bob" BOB',
        '"ana maria" valid-after="20270101" ANA',
        "ana BOB of ana, not of bob",
    )
    found = read_signers(keys.signers)
    assert [(one.line, one.name) for one in found] == [
        (1, "ana maria"),
        (4, "ana maria"),
        (5, "ana"),
    ]
    assert found[0].key == found[1].key == public_line(keys.keys["ana"]).split()[1]


@E4
def test_a_line_ends_where_ssh_keygen_ends_it(keys: Keyring) -> None:
    """A form feed or an odd line end begins no line there, so it hides none here."""
    write(keys, "# a comment\x0c bob ANA\r ana BOB\u2028 eve BOB", "ana ANA")
    assert [one.name for one in read_signers(keys.signers)] == ["ana"]


@E4
def test_names_and_comments_may_be_in_any_language(keys: Keyring) -> None:
    write(keys, "zoë ANA of Zoë, her läptop")
    assert [one.name for one in read_signers(keys.signers)] == ["zoë"]
    signed = keys.identity("ana").sign(MESSAGE, "zoë", AT)
    assert json.loads(signed.model_dump_json())["kind"] == "ssh"
    assert isinstance(signed, Signature)
