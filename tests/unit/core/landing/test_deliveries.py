"""What a delivered file is, by the ledger and the declared policy."""

from __future__ import annotations

from datetime import date, datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.landing.deliveries import (
    DeliveryVerdict,
    KnownDeliveries,
    check_landing_manifest,
    is_recorded,
    judge_delivery,
    without_repeated_content,
)
from lakehouse_backfill.domain.sources.declaration import DuplicatePolicy
from lakehouse_backfill.domain.sources.landings import (
    ExpectedFile,
    FileDelivery,
    FileStatus,
    FoundFile,
    LandingManifest,
)
from lakehouse_backfill.errors import Blocked

NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)
POLICIES: tuple[DuplicatePolicy, ...] = ("ignore", "reprocess", "correction", "reject")


def attempt(
    path: str = "a", content: str = "1", number: int = 1, status: FileStatus = "imported"
) -> FileDelivery:
    return FileDelivery(
        file_id=path, path=path, size_bytes=1, content_hash=content, attempt=number, status=status,
        first_seen_at=NOW, reason="because" if status == "rejected" else None,
    )  # fmt: skip


def found(path: str = "a", content: str = "1", day: date | None = None) -> FoundFile:
    return FoundFile(path, 1, content, business_date=day)


@pytest.mark.req("S4")
@pytest.mark.parametrize(
    ("file", "stays", "wanted"),
    [
        pytest.param(found("b", "2"), False, ["import"] * 4, id="new"),
        pytest.param(found(), True, ["skip"] * 4, id="the same file that stays"),
        pytest.param(
            found(), False, ["duplicate", "replace", "duplicate", "reject"], id="the same again"
        ),
        pytest.param(
            found(content="2"), True, ["duplicate", "replace", "correction", "reject"],
            id="other content",
        ),
        pytest.param(
            found("b"), False, ["duplicate", "duplicate", "duplicate", "reject"],
            id="a copy under another name",
        ),
        pytest.param(
            found("b", day=date(2026, 1, 1)), False, ["import"] * 4, id="a copy of another day"
        ),
    ],
)  # fmt: skip
def test_each_policy_says_what_a_duplicate_is(
    file: FoundFile, stays: bool, wanted: list[str]
) -> None:
    known = KnownDeliveries([attempt()])
    verdicts = [judge_delivery(file, known, policy, stays=stays) for policy in POLICIES]
    assert [one.action for one in verdicts] == wanted


@pytest.mark.req("S4")
def test_a_row_that_names_a_run_is_no_delivery() -> None:
    corrected = attempt(content="2", number=2, status="correction")
    # A run that was pinned before the correction is published after it.
    named = attempt().model_copy(update={"accepted_run_id": "bf-1"})
    known = KnownDeliveries([attempt(), corrected, named])
    assert known.landed("a") == corrected
    verdicts = [judge_delivery(found(content="2"), known, p, stays=True) for p in POLICIES]
    assert {one.action for one in verdicts} == {"skip"}


@pytest.mark.req("S4")
def test_content_that_was_replaced_is_not_in_the_table_any_more() -> None:
    replaced = KnownDeliveries([attempt(), attempt(content="2", number=2)])
    assert judge_delivery(found("b", "1"), replaced, "reprocess", stays=True).action == "import"
    kept = KnownDeliveries([attempt(), attempt(content="2", number=2, status="correction")])
    for content in ("1", "2"):
        verdict = judge_delivery(found("b", content), kept, "correction", stays=True)
        assert verdict.action == "duplicate"


@pytest.mark.req("S4")
def test_a_landing_manifest_lists_each_file_once_and_hashes_in_any_case() -> None:
    upper = ExpectedFile(path="a", sha256="AB12")
    check_landing_manifest(
        LandingManifest(id="m", files=(upper,)), {"a": found(content="ab12")}, KnownDeliveries([])
    )
    twice = LandingManifest(id="m", files=(upper, ExpectedFile(path="a", sha256="ab13")))
    with pytest.raises(Blocked, match="a is listed 2 times"):
        check_landing_manifest(twice, {"a": found(content="ab13")}, KnownDeliveries([]))


@pytest.mark.req("S4")
def test_a_file_that_was_rejected_is_read_again_as_the_next_attempt() -> None:
    known = KnownDeliveries([attempt(status="rejected")])
    verdict = judge_delivery(found(), known, "reject", stays=True)
    assert verdict == DeliveryVerdict("import", 2)
    assert is_recorded(found(), known, "rejected", "because")
    assert not is_recorded(found(content="2"), known, "rejected", "because")
    assert not is_recorded(found(), known, "rejected", "other")


def test_of_new_files_with_one_content_the_first_is_landed() -> None:
    new = DeliveryVerdict("import", 1)
    judged = without_repeated_content(
        [(found("a"), new), (found("b"), new), (found("c", "2"), new)], "ignore"
    )
    assert [(file.path, verdict.action) for file, verdict in judged] == [
        ("a", "import"), ("b", "duplicate"), ("c", "import"),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12")), max_size=12))
def test_no_history_of_deliveries_lands_a_content_twice_unless_it_replaces(
    history: list[tuple[str, str]],
) -> None:
    ledger: list[FileDelivery] = []
    live: dict[str, str] = {}  # path -> content whose rows the table holds
    for path, content in history:
        known = KnownDeliveries(ledger)
        verdict = judge_delivery(found(path, content), known, "reprocess", stays=False)
        if verdict.is_read:
            live[path] = content
        status: FileStatus = "imported" if verdict.is_read else "duplicate"
        ledger.append(attempt(path, content, verdict.attempt, status))
    numbers = [(one.file_id, one.attempt) for one in ledger]
    assert len(set(numbers)) == len(numbers)
    newest = {path: content for path, content in history if path in live}
    assert all(
        live[path] == content or content in live.values() for path, content in newest.items()
    )


MANIFEST = LandingManifest(
    id="day 1", files=(ExpectedFile(path="a", sha256="1"), ExpectedFile(path="b", size_bytes=1))
)


@pytest.mark.req("S4")
@pytest.mark.parametrize(
    ("files", "known", "problem"),
    [
        pytest.param([found("a"), found("b", "2")], [], "", id="complete"),
        pytest.param([found("a")], [], "1 missing: b", id="missing"),
        pytest.param([found("a")], [attempt("b", "2")], "", id="landed before"),
        pytest.param(
            [found("a"), found("b", "2"), found("c", "3")], [], "1 not listed: c", id="extra"
        ),
        pytest.param(
            [found("a"), found("b", "2"), found("c", "3")], [attempt("c", "3")], "",
            id="extra, landed before",
        ),
        pytest.param([found("a", "9"), found("b", "2")], [], "another SHA-256", id="other content"),
        pytest.param([found("b", "2")], [attempt("a", "9")], "1 missing: a", id="other one landed"),
    ],
)  # fmt: skip
def test_missing_and_extra_files_of_a_landing_manifest_block(
    files: list[FoundFile], known: list[FileDelivery], problem: str
) -> None:
    there = {file.path: file for file in files}
    if not problem:
        check_landing_manifest(MANIFEST, there, KnownDeliveries(known))
        return
    with pytest.raises(Blocked, match=problem):
        check_landing_manifest(MANIFEST, there, KnownDeliveries(known))
