"""The curves of the report: peaks stay, means are means, ends are ends."""

import numpy as np

from andrea.report.curves import coherence_traces, peaks, share_traces, smoothed, thinned


def test_sources_and_coherence_have_their_curves() -> None:
    """Guards against a bandit that nobody can watch: shares are of all steps, scores are means of a round."""
    drawn = [{"step": n, "source": "ab"[n % 4 == 0]} for n in range(1, 401)]
    a, b = share_traces(drawn)
    assert (a["name"], b["name"]) == ("a", "b") and abs(np.mean(a["y"]) - 0.75) < 0.05
    assert all(abs(x + y - 1) < 1e-4 for x, y in zip(a["y"], b["y"], strict=True))
    assert share_traces(drawn[:3]) == []
    samples = [{"step": 5, "coherence": 90.0}, {"step": 5, "coherence": 70.0}, {"step": 6}]
    (trace,) = coherence_traces(samples)
    assert (trace["x"], trace["y"]) == ([5], [80.0])
    assert coherence_traces(samples[2:]) == []


def test_peaks_survive_thinning() -> None:
    """Guards against a loss spike that the reader never sees."""
    points: list[tuple[int, float | None]] = [(step, 1.0) for step in range(100_000)]
    points[77_777] = (77_777, 99.0)
    points[5] = (5, None)
    thin = peaks(points, 1000)
    assert (77_777, 99.0) in thin
    assert len(thin) <= 1000
    assert thin == sorted(thin)
    assert peaks(points[:900], 1000) == points[:900]


def test_smoothing_is_a_mean_and_starts_unbiased() -> None:
    """Guards against a smoothed line that begins at zero, and against gaps that pull it down."""
    flat: list[tuple[int, float | None]] = [(step, 4.0 if step % 7 else None) for step in range(1, 500)]
    line = smoothed(flat, 500)
    assert all(abs((value or 0) - 4.0) < 1e-9 for _, value in line)
    assert line[0][0] == 1
    falling: list[tuple[int, float | None]] = [(step, 7 - step / 100) for step in range(1, 500)]
    for (step, value), (same, mean) in zip(falling, smoothed(falling, 2000), strict=True):
        assert step == same and abs((mean or 0) - (value or 0)) < (1e-9 if step < 480 else 0.2)


def test_thinning_keeps_the_last_point() -> None:
    """Guards against a curve that seems to end before the run did."""
    points: list[tuple[int, float | None]] = [(step, float(step)) for step in range(12_345)]
    assert thinned(points, 100)[-1] == points[-1]
    assert len(thinned(points, 100)) == 100
