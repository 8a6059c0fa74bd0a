"""The parameter table: sizes, order, decay, and where weights start."""

import numpy as np
import pytest
from engine_cases import INIT, SHAPE, UNTIED

from andrea.engine.layout import count, decay_groups, initial_weights, parameters, views
from andrea.experiment import Shape

SMALL = Shape(2305, 384, 12, 6, 1024, tied_head=True)
LARGE = Shape(8449, 768, 12, 12, 1024, tied_head=True)


@pytest.mark.parametrize(
    ("shape", "tied", "untied"), [(SMALL, 11_905_152, 12_790_272), (LARGE, 92_248_320, 98_737_152)], ids=["12M", "120M"]
)
def test_counts(shape: Shape, tied: int, untied: int) -> None:
    """Guards the architecture: a bias, a missing LayerNorm or an untied head would change the published sizes."""
    assert count(shape) == tied
    free = Shape(shape.vocab_size, shape.d_model, shape.n_heads, shape.n_layers, shape.context, tied_head=False)
    assert count(free) == untied


def test_flat_order() -> None:
    """Guards the checkpoint format, which is this order."""
    names = [p.name for p in parameters(UNTIED)]
    layer = ["W_Q", "W_K", "W_V", "W_O", "W_1", "W_2", "LN1.gamma", "LN1.beta", "LN2.gamma", "LN2.beta"]
    assert names == [
        "wte",
        "wpe",
        *(f"0.{n}" for n in layer),
        *(f"1.{n}" for n in layer),
        "LN_f.gamma",
        "LN_f.beta",
        "head",
    ]
    ends = [p.offset + p.size for p in parameters(UNTIED)]
    assert [p.offset for p in parameters(UNTIED)] == [0, *ends[:-1]]
    assert ends[-1] == count(UNTIED)


@pytest.mark.parametrize("shape", [SHAPE, UNTIED, SMALL])
def test_decay_groups_cover_everything_once(shape: Shape) -> None:
    """Guards weight decay: a parameter in no group would never be updated, one in two would be updated twice."""
    seen = np.zeros(count(shape), np.int8)
    decays = np.zeros(count(shape), bool)
    for start, stop, decay in decay_groups(shape):
        seen[start:stop] += 1
        decays[start:stop] = decay
    assert (seen == 1).all()
    for name, view in views(decays, shape).items():
        assert view.all() if view.ndim == 2 else not view.any(), name


def test_initial_weights() -> None:
    """Guards the stated spreads, the residual scaling by 1 / sqrt(2 L), and gains of 1 and biases of 0."""
    shape = Shape(400, 96, 3, 2, 128, tied_head=False)
    found = views(initial_weights(shape, INIT, 1), shape)
    expected = {"wte": 0.3, "wpe": 0.2, "0.W_Q": 0.25, "0.W_1": 0.25, "1.W_O": 0.125, "1.W_2": 0.125, "head": 0.3}
    for name, std in expected.items():
        assert found[name].std() == pytest.approx(std, rel=0.05), name
        assert abs(found[name].mean()) < 0.05 * std, name
    assert (found["0.LN1.gamma"] == 1).all()
    assert (found["LN_f.beta"] == 0).all()


def test_initial_weights_do_not_depend_on_each_other() -> None:
    """Guards the stream a tensor: a larger vocabulary or another layer leaves every other tensor as it was."""
    small = views(initial_weights(SHAPE, INIT, 1), SHAPE)
    wider = Shape(25, 12, 3, 3, 7, tied_head=False)
    large = views(initial_weights(wider, INIT, 1), wider)
    for name, view in small.items():
        if name not in ("wte", *(f"{i}.{n}" for i in range(2) for n in ("W_O", "W_2"))):  # scaled by the layer count
            assert np.array_equal(view, large[name]), name
    assert np.array_equal(small["wte"], large["wte"][:19])
    assert not np.array_equal(small["0.W_Q"], small["0.W_K"])
    assert not np.array_equal(initial_weights(SHAPE, INIT, 1), initial_weights(SHAPE, INIT, 2))
