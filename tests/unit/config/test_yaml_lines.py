"""YAML is read as it looks, with lines; what could surprise or harm is refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.config.yaml_lines import load_yaml, parse_yaml
from lakehouse_backfill.errors import ConfigError

pytestmark = pytest.mark.req("M2")


def fault(text: str) -> tuple[int, str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "a.yaml")
    found = caught.value.faults[0]
    return found.line, found.field, found.problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NO", "NO"),
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("010", "010"),
        ("1:30", "1:30"),
        ("0x1f", "0x1f"),
        ("-7", -7),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".inf", ".inf"),
        ("~", None),
        ("", None),
        ("'2013-02-15'", "2013-02-15"),
        ("2013-02-15", date(2013, 2, 15)),
        ("2013-02", "2013-02"),
        ("2013-02-15 06:00:00", datetime(2013, 2, 15, 6)),  # noqa: DTZ001 (no zone was written)
        ("2013-02-15T06:00:00Z", datetime(2013, 2, 15, 6, tzinfo=timezone.utc)),
        (
            "2013-02-15T06:00:00.5+01:00",
            datetime(2013, 2, 15, 6, 0, 0, 500_000, timezone(timedelta(hours=1))),
        ),
        ("2013-02-15T06:00:00+0100", "2013-02-15T06:00:00+0100"),
        ("2013-02-15 6:00:00 -5", datetime(2013, 2, 15, 6, tzinfo=timezone(timedelta(hours=-5)))),
        ("{a: [1, b]}", {"a": [1, "b"]}),
    ],
)
def test_a_plain_value_means_what_it_looks_like(text: str, value: object) -> None:
    document = parse_yaml(f"v: {text}", "a.yaml")
    assert document.data == {"v": value}
    assert type(document.data["v"]) is type(value)


def test_every_field_and_item_has_its_line() -> None:
    document = parse_yaml("a:\n  b: 1\n  on:\n    - x\n    - {y: 2}\n", "a.yaml")
    assert document.lines == {
        (): 1,
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "on"): 3,
        ("a", "on", 0): 4,
        ("a", "on", 1): 5,
        ("a", "on", 1, "y"): 5,
    }
    assert document.line(("a", "on", 1, "absent", 3)) == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", (3, "a", "is written twice, first on line 1")),
        ("a:\n  b: 1\n  b: 2\n", (3, "a.b", "is written twice, first on line 2")),
        ("a: 1\nb: &x [1]\n", (2, "(file)", "sets the anchor &x")),
        ("a: !!python/object/apply:os.system [ls]", (1, "(file)", "uses the tag tag:yaml.org,2")),
        ("a: !!binary aGk=", (1, "(file)", "uses the tag tag:yaml.org,2002:binary")),
        ("a: 1\n---\nb: 2\n", (2, "(file)", "holds more than one document")),
        ("a: 2013-13-01", (1, "a", "is no timestamp: month must be in 1..12")),
        ("? [a, b]\n: 1\n", (1, "(file)", "has a field name that is no text")),
        ("- a\n- b\n", (1, "(file)", "does not start with a field")),
        ("", (1, "(file)", "is empty")),
        ("# only words\n", (1, "(file)", "is empty")),
        ("a: 1\n\tb: 2\n", (2, "(file)", "is not YAML: ")),
        ("a: 1\nb: [1,\n", (3, "(file)", "is not YAML: ")),
        ("a: \x07", (1, "(file)", "is not YAML: ")),
    ],
)
def test_what_could_surprise_is_refused_with_its_line(text, expected) -> None:
    line, field, problem = fault(text)
    assert (line, field) == expected[:2]
    assert problem.startswith(expected[2])


def test_a_bomb_of_aliases_is_refused_before_it_is_built() -> None:
    rows = ["a0: &a0 [x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)
    ]
    assert fault("\n".join(rows)) == (1, "(file)", "sets the anchor &a0")


@pytest.mark.parametrize("depth", [41, 900, 20_000])
def test_deep_nesting_is_refused_before_it_is_built(depth: int) -> None:
    assert fault("a: " + "[" * depth + "]" * depth)[2] == "is nested deeper than 40 levels"


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_faults(text: str) -> None:
    try:
        parse_yaml(text, "a.yaml")
    except ConfigError as error:
        assert error.faults  # noqa: PT017 (most texts are refused, some are read)


@pytest.mark.parametrize("name", ["january.yml", "", "zz"])
def test_a_file_that_is_not_there_is_answered_with_those_that_are(
    tmp_path: Path, name: str
) -> None:
    for file in ("january.yaml", "march.yaml"):
        (tmp_path / file).touch()
    shown = f"jobs/{name}".rstrip("/")
    with pytest.raises(ConfigError, match="cannot be read") as missing:
        load_yaml(tmp_path / name, shown)
    near = "jobs/january.yaml" if name.startswith("january") else "jobs/january.yaml, jobs/march"
    assert missing.value.fix.startswith(f"check the path; in this folder: {near}")
