"""The stages of a run as a drawing: boxes and arrows in SVG, laid out by hand because the stages are few and known.

Arrows show where the text goes; the manifests that later stages also read are left out.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT = 134, 62  # of a box
PITCH_X, PITCH_Y = 158, 76
LONGEST, NAME = 18, 16  # characters that fit a box, and of its name in bold


class Box(NamedTuple):
    """A stage: its name and up to two lines of figures, in column `x`, with its middle at `y` pixels."""

    x: int
    y: int
    lines: tuple[str, ...]


def draw(raw: Sequence[tuple[str, ...]], stages: Mapping[str, tuple[str, ...]]) -> Markup:
    """An SVG element. `raw`: name and figures of each data set; `stages`: figures of megachat, tokenizer, ... report."""
    middle = PITCH_Y * (len(raw) - 1) // 2
    sets = [Box(0, PITCH_Y * number, lines) for number, lines in enumerate(raw)]
    row = {
        name: Box(column, middle, (name, *stages[name]))
        for name, column in (("megachat", 1), ("tokens", 3), ("train", 4), ("archive", 5), ("report", 6))
    }
    tokenizer = Box(2, middle - PITCH_Y, ("tokenizer", *stages["tokenizer"]))
    chain = list(row.values())
    arrows = [(box, row["megachat"]) for box in sets] + list(itertools.pairwise(chain))
    arrows += [(row["megachat"], tokenizer), (tokenizer, row["tokens"])]
    width = 6 * PITCH_X + WIDTH + 2
    top = min(0, tokenizer.y) - HEIGHT // 2 - 1
    height = 2 * middle + HEIGHT // 2 + 2 - top
    parts = [*(_arrow(*ends) for ends in arrows), *(_box(box) for box in [*sets, tokenizer, *chain])]
    return Markup(
        '<svg class="stages" viewBox="-1 {} {} {}" width="{}" role="img" aria-label="Stages">{}</svg>'
    ).format(top, width, height, width, Markup("").join(parts))


def _box(box: Box) -> Markup:
    left, top = box.x * PITCH_X, box.y - HEIGHT // 2
    texts = [
        Markup('<text x="{}" y="{}"{}>{}</text>').format(
            left + WIDTH // 2,
            top + 20 + 17 * number,
            Markup(' class="name"') if number == 0 else "",
            _short(line, LONGEST if number else NAME),
        )
        for number, line in enumerate(box.lines)
    ]
    rect = Markup('<rect x="{}" y="{}" width="{}" height="{}" rx="6"/>').format(left, top, WIDTH, HEIGHT)
    return rect + Markup("").join(texts)


def _arrow(start: Box, end: Box) -> Markup:
    x1, x2 = start.x * PITCH_X + WIDTH, end.x * PITCH_X
    bend = PITCH_X - WIDTH  # beside the boxes, so that a long arrow passes them straight
    path = f"M{x1} {start.y} C{x1 + bend} {start.y} {x1} {end.y} {x1 + bend} {end.y} H{x2}"
    return Markup('<path d="{}"/><path class="head" d="M{} {}l-7 -4v8z"/>').format(path, x2, end.y)


def _short(text: str, most: int) -> Markup:
    return escape(text if len(text) <= most else text[: most - 1] + "…")
