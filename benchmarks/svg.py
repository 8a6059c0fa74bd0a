"""Line charts as small self-contained SVG files: no dependency, the same bytes every time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 680, 300, 56, 34, 150, 40
COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#b7950b", "#7d3c98", "#5d6d7e")


def chart(
    path: Path, title: str, x_name: str, y_name: str, x: Sequence[float], lines: Mapping[str, Sequence[float]]
) -> None:
    """Write one chart; every line has a value for each of `x`. The y axis begins at 0."""
    top = max(max(line) for line in lines.values()) * 1.05 or 1.0
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(px: float, py: float) -> str:
        return f"{LEFT + wide * (px - x[0]) / (x[-1] - x[0]):.1f},{TOP + high * (1 - py / top):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>',
        f'<text transform="translate(14 {TOP + high / 2}) rotate(-90)" text-anchor="middle">{escape(y_name)}</text>',
    ]
    for i in range(5):
        y, px = top * i / 4, x[0] + (x[-1] - x[0]) * i / 4
        left, right = place(x[0], y).split(","), place(x[-1], y).split(",")
        parts += [
            f'<path d="M{left[0]} {left[1]}H{right[0]}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{float(left[1]) + 4:.1f}" text-anchor="end">{y:.3g}</text>',
            f'<text x="{place(px, 0).split(",")[0]}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{px:,.0f}</text>',
        ]
    for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
        points = " ".join(place(px, py) for px, py in zip(x, line, strict=True))
        height = TOP + 14 + 18 * list(lines).index(name)
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>',
            f'<path d="M{WIDTH - RIGHT + 10} {height - 4}h18" stroke="{colour}" stroke-width="2.5"/>',
            f'<text x="{WIDTH - RIGHT + 33}" y="{height}">{escape(name)}</text>',
        ]
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")
