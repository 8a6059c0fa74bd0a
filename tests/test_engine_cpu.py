"""The engine's interface: the same bits for any thread count, exact resume, the freeze, what it refuses."""

from collections.abc import Iterator

import numpy as np
import pytest
from compare import assert_close
from engine_cases import SHAPE, UNTIED, batches, engine, rates, start_weights

from andrea.engine import Choice, Engine, blas
from andrea.engine.layout import count, views
from andrea.engine.reference import KERNELS as TWINS
from andrea.errors import EngineError
from andrea.experiment import Shape

# wide enough that products are cut into blocks, and more than one group of rows to a partition
WIDE = Shape(vocab_size=97, d_model=64, n_heads=2, n_layers=1, context=128, tied_head=True)


def state(made: Engine) -> bytes:
    s = made.snapshot()
    return s.weights.tobytes() + s.m.tobytes() + s.v.tobytes()


@pytest.mark.parametrize("shape", [SHAPE, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize("partitions", [2, 3])
def test_threads_do_not_change_bits(shape: Shape, partitions: int) -> None:
    """Guards the partitions: work is cut by the experiment, so 1, 2 and 5 threads give the same bytes."""
    data = batches(3, 14, shape)
    results = []
    for threads in (1, 2, 5):
        made = engine(shape, threads, partitions=partitions, batch_size=14, microbatches=2)
        losses, norms = made.run(data, rates(3))
        results.append((losses.tobytes(), norms.tobytes(), state(made), made.evaluate(data[0]).tobytes()))
    assert results[0] == results[1] == results[2]


def test_a_snapshot_takes_the_memory_of_an_earlier_one() -> None:
    """Guards a copy that keeps old values, or takes new memory at every checkpoint."""
    made = engine()
    first = made.snapshot()
    made.run(batches(2), rates(2))
    again = made.snapshot(first)
    assert again.step == first.step + 2
    assert again.weights is first.weights and again.v is first.v
    assert again.weights.tobytes() + again.m.tobytes() + again.v.tobytes() == state(made)


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_resume_is_exact(stop: int) -> None:
    """Guards hidden state: load(snapshot()) into a new engine goes on to the same bytes, however runs are cut."""
    data, lrs = batches(9), rates(9)
    whole = engine()
    losses, norms = whole.run(data, lrs)
    first = engine()
    begun = first.run(data[:stop], lrs[:stop])
    s = first.snapshot()
    second = engine(threads=1)
    second.run(data[:2], lrs[:2])  # what was in the buffers before must not matter
    second.load(s.weights, s.m, s.v, s.step)
    ended = second.run(data[stop:], lrs[stop:])
    assert state(second) == state(whole)
    assert second.snapshot().step == 9
    assert np.array_equal(np.concatenate([begun[0], ended[0]]), losses)
    assert np.array_equal(np.concatenate([begun[1], ended[1]]), norms)


def test_evaluation_and_text_leave_training_alone() -> None:
    """Guards shared buffers: evaluate and generate between two runs change no bit of training."""
    data, lrs = batches(4), rates(4)
    plain, busy = engine(), engine()
    plain.run(data, lrs)
    for i in range(4):
        busy.run(data[i : i + 1], lrs[i : i + 1])
        busy.evaluate(batches(1, 5)[0])
        busy.generate([[1, 2]], 9, Choice(1.0, 3), seed=1, step=i)
    assert state(plain) == state(busy)


def test_one_row() -> None:
    """Guards fewer rows than partitions."""
    made = engine(batch_size=1, partitions=4, threads=4)
    losses, _ = made.run(batches(3, 1), rates(3))
    assert np.isfinite(losses).all()


def test_learns() -> None:
    """Guards everything at once: a batch that is seen again and again is learnt by heart."""
    made = engine(SHAPE, batch_size=2)
    data = np.repeat(batches(1, 2), 150, axis=0)
    losses, _ = made.run(data, np.full(150, 2e-2))
    assert losses[0] > 2.5
    assert losses[-1] < 0.1


def test_against_twins_over_steps() -> None:
    """Guards clipping, bias correction, decay and their order against the float64 twins over five updates."""
    low, exact = engine(), engine(kernels=TWINS, dtype="float64")
    for made in (low, exact):
        made.run(batches(5), rates(5))
    # AdamW's first steps are near the sign of the gradient, so a few weights feel float32 more
    assert_close(low.snapshot().weights, exact.snapshot().weights, atol=2e-5, rtol=1e-4, what="weights")


def test_norm_is_of_the_mean_gradient() -> None:
    """Guards the reported norm: before clipping, of the mean over microbatches."""
    _, one = engine(partitions=1).run(batches(1), rates(1))
    _, four = engine(microbatches=4, partitions=1).run(batches(1), rates(1))
    assert one[0] > 1.0  # so that clipping takes part
    assert four[0] == pytest.approx(one[0], rel=1e-5)


@pytest.mark.parametrize("microbatches", [1, 2, 4])
@pytest.mark.parametrize("clip", [0.5, 1e6])
def test_moments_hold_the_clipped_mean(microbatches: int, clip: float) -> None:
    """Guards the scale of what AdamW gets, which its own division hides: m and v after one update show it."""
    made = engine(microbatches=microbatches, clip=clip)
    _, gradient = made.gradient(batches(1)[0])
    norm = float(np.sqrt((gradient.astype(np.float64) ** 2).sum()))
    made.run(batches(1), rates(1))
    want = gradient * min(1.0, clip / norm)
    assert_close(made.snapshot().m, 0.1 * want, atol=1e-8, rtol=1e-5, what="m")
    assert_close(made.snapshot().v, 0.001 * want**2, atol=1e-10, rtol=1e-4, what="v")


def test_only_what_decays_decays() -> None:
    """Guards the decay groups in the update: with no gradient at all, matrices shrink and gains stay."""
    made = engine(weight_decay=0.5)
    weights = np.ones(count(SHAPE), np.float32)
    made.load(weights, np.zeros_like(weights), np.zeros_like(weights), 0)
    made._update.apply(0.0, 0.1, 1)
    for name, view in views(made.snapshot().weights, SHAPE).items():
        assert np.allclose(view, 0.95 if view.ndim == 2 else 1.0), name


def test_freeze_when_not_finite() -> None:
    """Guards the weights: from the first bad step on nothing is updated, and the losses say where it was."""
    made, calm = engine(), engine()
    data, lrs = batches(6), rates(6)
    lrs[2] = np.inf  # update 3 breaks the weights, step 4 sees it
    losses, norms = made.run(data, lrs)
    assert np.isfinite(losses[:3]).all()
    assert not (np.isfinite(losses[3:]) & np.isfinite(norms[3:])).any()
    assert made.snapshot().step == 3
    calm.run(data[:3], lrs[:3])
    assert state(made) == state(calm)


def test_freeze_keeps_the_last_good_state() -> None:
    """Guards the same when the state itself was good: one bad norm, and weights, m, v stay as they were before it."""
    made = engine()
    made.run(batches(2), rates(2))
    s = made.snapshot()
    broken = s.weights.copy()
    broken[5] = np.nan
    made.load(broken, s.m, s.v, s.step)
    before = state(made)
    losses, _ = made.run(batches(3), rates(3))
    assert not np.isfinite(losses).any()
    assert state(made) == before
    assert made.snapshot().step == 2
    made.load(s.weights, s.m, s.v, s.step)
    losses, _ = made.run(batches(3), rates(3))
    assert np.isfinite(losses).all()


def test_freeze_lasts_to_the_end_of_the_call() -> None:
    """Guards the freeze against good batches after a bad one: they report their losses and change nothing."""
    made, weights = engine(UNTIED), start_weights(UNTIED)
    views(weights, UNTIED)["wte"][7] = np.nan  # only rows with token 7 see it
    made.load(weights, np.zeros_like(weights), np.zeros_like(weights), 0)
    data = batches(4, shape=UNTIED)
    data[data == 7] = 8
    data[1, 2, 3] = 7
    losses, norms = made.run(data, rates(4))
    assert np.isfinite(losses).tolist() == [True, False, True, True]
    assert made.snapshot().step == 1
    s = made.snapshot()
    made.load(s.weights, s.m, s.v, s.step)
    again, norms_again = made.run(data[2:], np.zeros(2))
    assert again[0] == losses[2]
    assert norms_again[0] == norms[2]


def test_evaluate() -> None:
    """Guards sums over targets, and blocks that do not fill the last group."""
    made = engine()
    blocks = batches(1, 7)[0]
    nats = made.evaluate(blocks)
    assert nats.shape == (7,)
    assert nats.dtype == np.float64
    assert made.evaluate(blocks[:0]).shape == (0,)
    for i in range(7):
        assert made.evaluate(blocks[i : i + 1])[0] == pytest.approx(nats[i], rel=1e-6)
    loss, _ = made.run(blocks[None, :4], np.zeros(1))
    assert loss[0] == pytest.approx(nats[:4].mean() / SHAPE.context, rel=1e-6)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (batches(2, 3), "must be int32 of shape"),
        (batches(2)[..., :-1], "must be int32 of shape"),
        (batches(2).astype(np.int64), "must be int32"),
        (batches(2) + 1, "must lie in 0..18"),
        (batches(2) - 1, "must lie in 0..18"),
    ],
    ids=["rows", "length", "dtype", "high", "low"],
)
def test_bad_batches(bad: np.ndarray, words: str) -> None:
    """Guards memory: a token outside the vocabulary would read and write past the tables."""
    with pytest.raises(EngineError, match=words):
        engine().run(bad, rates(2))


def test_batches_are_taken_one_by_one_to_the_end() -> None:
    """What a trainer does after the last batch it does while the card computes; it must be done, and before any result."""
    made, seen = engine(), []

    def draw() -> Iterator[np.ndarray]:
        for batch in batches(2):
            seen.append("batch")
            yield batch
        seen.append("end")

    assert len(made.run(draw(), rates(2))[0]) == 2
    assert seen == ["batch", "batch", "end"]


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_batches_as_rates(count: int) -> None:
    """A plan and its rates that went apart would train on at rates of other steps."""
    with pytest.raises(EngineError, match="a batch for each learning rate"):
        engine().run(batches(count), rates(2))


def test_bad_state() -> None:
    """Guards load() against another model's vectors."""
    flat = start_weights(SHAPE)
    with pytest.raises(EngineError, match="flat vector of"):
        engine().load(flat, flat, flat[:-1], 0)


def test_snapshot_is_a_copy() -> None:
    """Guards the background writer: training goes on while it writes."""
    made = engine()
    s = made.snapshot()
    kept = s.weights.copy()
    made.run(batches(1), rates(1))
    assert np.array_equal(s.weights, kept)
    assert s.weights.dtype == s.m.dtype == s.v.dtype == np.float32


def test_describe() -> None:
    """Guards the line at the start: one line that names engine, precision, threads and library."""
    line = engine().describe()
    assert "\n" not in line
    for word in ("cpu", "fp32", "2 threads", "2 partitions", blas.versions()["blas"]):
        assert word in line
