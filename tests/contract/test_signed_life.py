"""A run in prod on a real lake, typed by people with keys; and all that others may try."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg.metadata import snapshot_summary
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.identity.statement import BOUND_PROPERTY
from lakehouse_backfill.domain.run import Event
from tests.chaos.lab import CONTRACT, PROFILES, TARGET, Ended, Lab
from tests.support.examples.keys import Keyring
from tests.support.lakes.verified import edit_rows

pytestmark = pytest.mark.req("E4")
ROLES = "roles: {approve: [ana], accept: [ana], publish: [ana]}"


class People:
    """The lab in prod, and who types: bob plans, ana decides, eve has a key and no role."""

    def __init__(self, root: Path) -> None:
        self.lab = Lab(root)
        self.lab.make()
        folder = self.lab.folder
        self.repository, self.saved = root / "anchor.git", root / "saved.git"
        subprocess.run(["git", "init", "--quiet", "--bare", str(self.repository)], check=True)
        profiles = PROFILES.replace("environment: dev", "environment: prod")
        anchor = f"    anchor: {{git: {self.repository}}}\n"
        (folder / "catalog" / "profiles.yaml").write_text(profiles + anchor)
        contract = CONTRACT.replace(ROLES, "roles: {approve: [ana], publish: [ana, bob]}")
        (folder / "catalog" / "contracts" / f"{TARGET}.yaml").write_text(contract)
        private = root / "keys"
        private.mkdir()
        self.keys = Keyring(private, "ana", "bob", "eve")
        self.list_keys()

    def list_keys(self, **options: str) -> None:
        self.keys.list_keys(**options)
        listed = self.lab.folder / "catalog" / "allowed_signers"
        listed.write_text(self.keys.signers.read_text())

    def types(self, who: str | None, *words: str, by: str | None = None) -> Ended:
        key = ("--sign-with", str(self.keys.keys[who])) if who else ()
        name = by or who
        return self.lab.do(*key, *words, *(("--by", name) if name else ()))

    def must(self, who: str | None, *words: str, by: str | None = None) -> Any:
        ended = self.types(who, *words, by=by)
        assert ended.code == 0, ended.said
        return ended.data

    def accepted(self) -> None:
        planned = self.must("bob", "plan", self.manifest)
        self.lab.run = planned["run_id"]
        self.must("ana", "approve", self.lab.run)
        for verb in ("stage", "validate"):
            self.must(None, verb, self.lab.run, by="bob")
        self.must("ana", "accept", self.lab.run)

    @property
    def manifest(self) -> str:
        name = self.lab.manifest("run.yaml", "2024-01-02", "2024-01-05")
        file = self.lab.folder / name
        file.write_text(file.read_text().replace("requested_by: ana", "requested_by: bob"))
        return name

    def refused(self, *words: str) -> str:
        """Type as bob what has to be refused: exit code 3, and the table stays as it is."""
        before = self.head()
        ended = self.types("bob", *words)
        assert ended.code == 3, ended.said
        assert self.head() == before
        return str(ended.error["problem"])

    def head(self) -> int | None:
        with self.lab.opened() as catalog:
            snapshot = catalog.load_table(TARGET).current_snapshot()
            return snapshot.snapshot_id if snapshot else None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> People:
    people = People(tmp_path_factory.mktemp("signed"))
    people.accepted()
    people.lab.save("accepted")
    shutil.copytree(people.repository, people.saved)
    return people


@pytest.fixture
def people(made: People) -> Iterator[People]:
    made.lab.restore("accepted")
    shutil.rmtree(made.repository)
    shutil.copytree(made.saved, made.repository)
    yield made
    made.list_keys()


def rewrite(lab: Lab, change: Any) -> None:
    """Rewrite the log with all its hashes, its seal and its states, as who has all rights may."""
    with lab.opened() as catalog:
        table = catalog.load_table("lakehouse_backfill.run_event")
        rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["seq"])
    previous, hashes = "", {}
    for row in rows:
        change(row)
        fields = {
            "product": row["data_product"], "detail": json.loads(row["detail"]),
            "previous": previous, "hash": "", "epoch": row["epoch"] or 0,
        }  # fmt: skip
        names = ("run_id", "seq", "at", "actor", "verb", "from_state", "to_state", "mode", "driver")
        event = Event(**{name: row[name] for name in names}, **fields)
        row["previous"], previous = previous, event_log.event_seal(event)
        hashes[row["seq"]] = row["hash"], previous
        row["hash"] = previous

    new = {row["seq"]: row for row in rows}
    edit_rows(lab, "run_event", lambda row: bool(row.update(new[row["seq"]]) or True))
    old_head, head = hashes[max(hashes)]
    with lab.opened() as catalog:
        table = catalog.load_table("lakehouse_backfill.run_event")
        texts = {
            name: text.replace(old_head, head)
            for name, text in table.properties.items()
            if old_head in text
        }
        with table.transaction() as transaction:
            transaction.set_properties(texts)


def test_a_staged_file_that_was_damaged_at_equal_size_is_not_published_in_prod(
    people: People,
) -> None:
    run = people.lab.run
    with people.lab.opened() as catalog:
        shadow = catalog.load_table(f"lakehouse_backfill_shadow.t__{run.replace('-', '_')}")
        place = next(iter(shadow.scan().plan_files())).file.file_path
    path = Path(place.removeprefix("file://"))
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert path.name in people.refused("publish", run)
    path.write_bytes(whole)
    people.must("bob", "publish", run)


def test_a_signed_run_is_published_verified_anchored_and_rolled_back(people: People) -> None:
    run = people.lab.run
    people.must("bob", "publish", run)
    checks = people.must(None, "verify", run)["checks"]
    signed = [one["ok"] for one in checks if one["name"].startswith("signature")]
    assert signed == [True, True, True, True]
    people.must("ana", "rollback", TARGET, "--reason", "trial")
    found = people.must(None, "audit", "verify", "--anchor")
    assert (found["intact"], found["signed"], found["unsigned"]) == (True, 5, 0)
    # Accepted, published, rolled back: three heads of the run, two of the product.
    assert found["anchored"] == 5
    with people.lab.opened() as catalog:
        table = catalog.load_table(TARGET)
        summaries = map(snapshot_summary, table.metadata.snapshots)
        # Both commits bind the table, whatever control tables a profile names.
        assert sum(BOUND_PROPERTY in one for one in summaries) == 2
        assert IcebergTables(catalog).marks(TARGET) == {f"prod:{catalog.name}:{TARGET}"}
    told = people.must(None, "status", run)["runs"][0]["approvals"]
    assert [one["signature"].startswith("signed by ED25519 SHA256:") for one in told] == [True] * 2


def test_publish_in_prod_without_a_key_or_as_somebody_else_is_exit_code_3(people: People) -> None:
    run = people.lab.run
    for who, by in ((None, "bob"), ("eve", "bob"), ("eve", "eve")):
        ended = people.types(who, "publish", run, by=by)
        assert ended.code == 3, ended.said
    assert people.must(None, "status", run)["runs"][0]["state"] == "accepted"


def test_plan_in_prod_without_a_key_is_exit_code_3_and_writes_nothing(people: People) -> None:
    before = people.must(None, "audit", "verify")["events"]
    other = people.lab.manifest("other.yaml", "2024-01-06", "2024-01-08")
    ended = people.types(None, "plan", other, by="bob")
    assert ended.code == 3, ended.said
    assert "'plan' has to be signed in prod" in ended.error["problem"]
    assert people.must(None, "audit", "verify")["events"] == before


def test_a_profile_of_dev_is_no_way_around_the_signatures_of_prod(people: People) -> None:
    run, profiles = people.lab.run, people.lab.folder / "catalog" / "profiles.yaml"
    whole = profiles.read_text()
    body = whole.split("  lab:\n")[1].replace("environment: prod", "environment: dev")
    profiles.write_text(f"{whole}  trial:\n{body}")
    dev = ("--profile", "trial")
    try:
        for words in (("publish", run), ("reject", run, "--reason", "x"), ("cancel", run)):
            assert "was planned in prod" in people.refused(*dev, *words)
        people.must("bob", "publish", run)
        assert "was planned in prod" in people.refused(*dev, "rollback", TARGET, "--reason", "x")
    finally:
        profiles.write_text(whole)


@pytest.mark.parametrize("how", ["unsigned", "wrongly signed", "revoked"])
def test_publish_of_an_approval_that_is_not_signed_well_is_exit_code_3(
    people: People, how: str
) -> None:
    run = people.lab.run
    if how == "revoked":
        people.list_keys(ana='valid-before="20250101"')
        assert "does not hold at" in people.refused("publish", run)
        return

    def forge(row: dict[str, Any]) -> None:
        if row["verb"] == "approve":
            detail = json.loads(row["detail"])
            if how == "unsigned":
                detail.pop("signature")
            detail["reason"] = "forged"
            row["detail"] = event_log.canonical_json(detail)

    rewrite(people.lab, forge)
    match = "not signed" if how == "unsigned" else "differs in detail.reason"
    problem = people.refused("publish", run)
    assert match in problem, problem


def test_a_history_that_was_rewritten_as_a_whole_is_found_by_the_anchor(people: People) -> None:
    def forge(row: dict[str, Any]) -> None:
        if row["verb"] == "plan":
            row["actor"] = "somebody"

    assert people.types(None, "audit", "verify", "--anchor").code == 0
    rewrite(people.lab, forge)
    ended = people.types(None, "audit", "verify", "--anchor")
    assert ended.code == 3
    assert "its history was rewritten" in ended.error["problem"]


@contextmanager
def anchor_down(people: People) -> Iterator[None]:
    hidden = people.repository.with_name("hidden")
    people.repository.rename(hidden)
    yield
    hidden.rename(people.repository)


def test_publish_and_rollback_wait_for_an_anchor_that_is_down(people: People) -> None:
    run, before = people.lab.run, people.head()
    with anchor_down(people):
        ended = people.types("bob", "publish", run)
    assert ended.code == 6, ended.said
    assert "nothing was published: the anchor could not be asked" in ended.error["state"]
    assert people.must(None, "status", run)["runs"][0]["state"] == "accepted"
    assert people.head() == before
    people.must("bob", "publish", run)
    before = people.head()
    with anchor_down(people):
        ended = people.types("ana", "rollback", TARGET, "--reason", "trial")
    assert ended.code == 6, ended.said
    assert "nothing was rolled back: the anchor could not be asked" in ended.error["state"]
    assert people.head() == before


def test_an_anchor_that_is_down_is_told_after_the_act_and_recover_repairs_it(
    people: People,
) -> None:
    run = people.lab.run
    with anchor_down(people):
        ended = people.types("ana", "reject", run, "--reason", "trial")
    assert ended.code == 6, ended.said
    assert "it is done, but its record was not kept" in ended.error["problem"]
    assert people.must(None, "status", run)["runs"][0]["state"] == "rejected"
    actions = people.must("bob", "recover", run)["actions"]
    assert {one["action"] for one in actions} == {"anchor the log"}
    assert people.must(None, "audit", "verify", "--anchor")["intact"]


def test_no_private_key_is_in_any_file_that_a_run_leaves_behind(people: People) -> None:
    run = people.lab.run
    people.must("bob", "publish", run)
    people.must(None, "evidence", run)
    people.types("eve", "publish", run, by="bob")
    secrets = [file.read_bytes().split(b"\n")[1][16:56] for file in people.keys.keys.values()]
    roots = (people.lab.folder, people.repository, people.lab.folder.parent / "said")
    files = [file for root in roots for file in root.rglob("*") if file.is_file()]
    assert len(files) > 20
    found = [file for file in files for secret in secrets if secret in file.read_bytes()]
    assert found == []


def test_the_page_and_the_log_describe_signatures_and_do_not_show_them(people: People) -> None:
    run = people.lab.run
    people.must("bob", "publish", run)
    events = people.must(None, "log", run)["events"]
    stored = [one["detail"]["signature"] for one in events if "signature" in one["detail"]]
    assert len(stored) == 3
    page = Path(people.must(None, "evidence", run)["report"]).read_text(encoding="utf-8")
    assert page.count("signed by ED25519 SHA256:") >= 3
    for envelope in stored:
        assert envelope["payload"][:60] not in page
        assert envelope["signatures"][0]["sig"][:60] not in page
