"""Every op is a pair under fixed names, and every implementation has the same signatures."""

import dataclasses
import inspect

import pytest

from andrea.engine.kernels import Kernels
from andrea.engine.loops import KERNELS as LOOPS
from andrea.engine.reference import KERNELS as TWINS

NAMES = [field.name for field in dataclasses.fields(Kernels)]
PAIRED = ["embed", "layernorm", "attn_qkv", "attn", "attn_out", "mlp", "loss"]


def test_names() -> None:
    """Guards the list: a pair an op, the residual's irregular name, five kernels of the update."""
    pairs = [f"k_{op}_{way}" for op in PAIRED for way in ("fwd", "bwd")]
    update = ["k_grad_norm_partial", "k_grad_norm_final", "k_grad_scale", "k_adamw", "k_zero_grads"]
    assert sorted(NAMES) == sorted([*pairs, "k_residual_add", "k_residual_add_bwd", *update])


@pytest.mark.parametrize("op", PAIRED)
def test_twins_live_together(op: str) -> None:
    """Guards readability: a derivative is checked against its forward without changing files."""
    for kernels in (TWINS, LOOPS):
        files = {inspect.getsourcefile(inspect.unwrap(getattr(kernels, f"k_{op}_{way}"))) for way in ("fwd", "bwd")}
        assert len(files) == 1


@pytest.mark.parametrize("name", NAMES)
def test_same_signature(name: str) -> None:
    """Guards exchange of implementations: an engine calls by position."""
    twin, loop = inspect.signature(getattr(TWINS, name)), inspect.signature(getattr(LOOPS, name).py_func)
    assert list(twin.parameters) == list(loop.parameters)
    assert getattr(TWINS, name).__name__ == getattr(LOOPS, name).__name__ == name
