"""The colours of the evidence page: readable in both modes, apart for colour-blind readers."""

from __future__ import annotations

import itertools
import re
from importlib.resources import files
from typing import Any

import pytest

from lakehouse_backfill.report.page import render_page

STYLE_SHEET = (files("lakehouse_backfill.report") / "templates/page.css").read_text("utf-8")
_VALUES = re.findall(r"--([a-z0-9]+):(#[0-9a-f]{6});", STYLE_SHEET)
#: name -> (light, dark): the style sheet sets each of them twice, in this order.
COLOURS = {name: [value for other, value in _VALUES if other == name] for name, _ in _VALUES}
SIDES = pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
TEXTS = ("ink", "soft", "accent", "good", "bad", "warn")
#: Machado, Oliveira, Fernandes 2009, severity 1.0; rows give linear red, green, blue.
VISIONS = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip
#: CIE 1976 distance: 2.3 is just noticeable; a large patch beside another needs about four times.
APART, CLEARLY_APART = 10, 25


def linear(colour: str) -> tuple[float, ...]:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def seen(colour: str, vision: str) -> tuple[float, float, float]:
    """Give the CIELAB place of a colour as a reader with this vision sees it."""
    rgb = [
        min(
            1.0,
            max(0.0, sum(part * value for part, value in zip(row, linear(colour), strict=True))),
        )
        for row in VISIONS[vision]
    ]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(part * value for part, value in zip(row, rgb, strict=True)) for row in to_xyz]
    x, y, z = (
        ratio ** (1 / 3) if ratio > 0.008856 else 7.787 * ratio + 16 / 116
        for ratio in (xyz[0] / 0.9505, xyz[1], xyz[2] / 1.089)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(first: str, second: str, side: int, vision: str) -> float:
    places = [seen(COLOURS[name][side], vision) for name in (first, second)]
    return sum((a - b) ** 2 for a, b in zip(*places, strict=True)) ** 0.5


@SIDES
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("ground", ["paper", "card"])
@pytest.mark.req("O4")
def test_texts_have_a_contrast_of_at_least_four_and_a_half(name, ground, side) -> None:
    assert contrast(COLOURS[name][side], COLOURS[ground][side]) >= 4.5


@pytest.mark.req("O4")
def test_no_text_has_a_colour_that_is_not_among_those_checked() -> None:
    named = re.findall(r"(?<![-\w])color:([^;}]+)", STYLE_SHEET)
    assert {value.strip() for value in named} == {f"var(--{name})" for name in TEXTS}


@SIDES
@pytest.mark.parametrize("name", ["old", "new", "h4", "h5"])
def test_shapes_stand_out_from_their_ground(name: str, side: int) -> None:
    assert contrast(COLOURS[name][side], COLOURS["paper"][side]) >= 3


@SIDES
@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.req("O4")
def test_old_and_new_stay_apart_for_colour_blind_readers(vision: str, side: int) -> None:
    assert distance("old", "new", side, vision) >= CLEARLY_APART


@SIDES
@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("pair", list(itertools.pairwise(("cell", "h1", "h2", "h3", "h4", "h5"))))
@pytest.mark.req("O4")
def test_steps_of_the_heat_map_stay_apart_for_colour_blind_readers(pair, vision, side) -> None:
    assert distance(*pair, side, vision) >= APART


@SIDES
def test_the_heat_map_is_a_ramp_of_lightness_alone(side: int) -> None:
    steps = [luminance(COLOURS[f"h{step}"][side]) for step in range(1, 6)]
    assert steps == sorted(steps, reverse=side == 0)


@pytest.mark.req("O4")
def test_every_coloured_word_has_a_sign_beside_it(document: dict[str, Any]) -> None:
    page = render_page(document)
    said = re.findall(r'class="(?:mark|verdict)?\s?(good|bad|warn)">(.)', page)
    assert {tone: {sign for found, sign in said if found == tone} for tone, _ in said} == {
        "good": {"✓"}, "bad": {"✗"}, "warn": {"!"},
    }  # fmt: skip


def test_the_style_sheet_names_only_known_colours() -> None:
    assert {len(pair) for pair in COLOURS.values()} == {2}
    assert set(re.findall(r"var\(--([a-z0-9]+)\)", STYLE_SHEET)) <= set(COLOURS)
