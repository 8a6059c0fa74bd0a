"""Working copies and the optimizer's chunks: every parameter once, nothing on top of anything."""

import numpy as np
import pytest

from andrea.engine.cuda.weights import chunk_table, copied_elements, copies, padded_vocabulary
from andrea.engine.layout import count, parameters
from andrea.experiment import Shape


def shape(tied: bool) -> Shape:
    return Shape(vocab_size=2305, d_model=384, n_heads=12, n_layers=2, context=64, tied_head=tied)


@pytest.mark.parametrize("tied", [True, False])
def test_copies_do_not_overlap(tied: bool) -> None:
    """Q, K and V are interleaved by rows; a wrong stride would overwrite a neighbour."""
    s, table = shape(tied), copies(shape(tied))
    used = np.zeros(copied_elements(s), np.int8)
    for p in parameters(s):
        if p.name in table:
            c = table[p.name]
            used[c.offset + np.arange(p.shape[0])[:, None] * c.stride + np.arange(p.shape[1])] += 1
    assert used.max() == 1
    padding = (padded_vocabulary(s) - s.vocab_size) * s.d_model
    assert int((used == 0).sum()) == padding
    assert not used[s.vocab_size * s.d_model :][:padding].any()
    assert ("wte" in table) == tied
    assert ("head" in table) == (not tied)


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_chunks_cover_every_parameter_once(tied: bool, low: bool) -> None:
    """With the right decay: gains and biases have none."""
    s = shape(tied)
    decay = np.full(count(s), -1)
    for at, size, decays, copy, *_ in chunk_table(s, low).tolist():
        assert (decay[at : at + size] == -1).all()
        assert size % 4 == 0
        assert at % 4 == 0
        assert low or copy == -1
        decay[at : at + size] = decays
    want = np.concatenate([np.full(p.size, int(p.decay)) for p in parameters(s)])
    assert np.array_equal(decay, want)
