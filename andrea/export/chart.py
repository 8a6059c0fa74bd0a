"""The loss curve as an SVG file: the range of every stretch of steps in grey, the smoothed loss above it."""

from andrea.report.curves import Points, peaks, smoothed

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 320, 60, 16, 16, 44
RAW_POINTS = 600
TICKS = 5


def loss_chart(losses: Points) -> str:
    """SVG text of losses in nats per token, of which there is at least one; all are finite."""
    raw = [(x, y) for x, y in peaks(losses, RAW_POINTS) if y is not None]
    line = [(x, y) for x, y in smoothed(losses, len(losses)) if y is not None]
    last, low, high = losses[-1][0], min(y for _, y in raw), max(y for _, y in raw)
    span = high - low or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        right = LEFT + (WIDTH - LEFT - RIGHT) * x / last
        return right, TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / span

    def path(points: list[tuple[int, float]]) -> str:
        return " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for i in range(TICKS):
        step, value = last * i / (TICKS - 1), low + span * i / (TICKS - 1)
        (x, _), (_, y) = place(step, low), place(0, value)
        parts += [
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>',
            f'<text x="{x:.1f}" y="{HEIGHT - 24}" text-anchor="{"end" if i == TICKS - 1 else "middle"}">{step:,.0f}</text>',
        ]
    parts += [
        f'<polyline points="{path(raw)}" fill="none" stroke="#bbb" stroke-width="0.8"/>',
        f'<polyline points="{path(line)}" fill="none" stroke="#2471a3" stroke-width="2"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">step</text>',
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">nats per token</text>',
    ]
    return "\n".join([*parts, "</svg>", ""])
