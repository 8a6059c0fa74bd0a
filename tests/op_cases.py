"""One form for the tests of every op: inputs by name, a forward, a backward, and what each gives.

A case is built for a dtype and a set of kernels, so that the same lines serve the twin in float64 (against central
differences), the twin in float32 (to measure what float32 costs) and the compiled loops.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from compare import assert_close, assert_gradient, assert_measured, numeric_gradient

from andrea.engine.kernels import Kernels
from andrea.engine.loops import KERNELS as LOOPS
from andrea.engine.reference import KERNELS as TWINS

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """inputs: float64 arrays. forward(kernels, inputs) -> outputs by name; backward(kernels, inputs, upstream) ->
    gradients by name of the input, float buffers that start as zeros. added: gradients that backward adds to.
    """

    inputs: Arrays
    forward: Callable[[Kernels, Arrays], dict[str, Any]]
    backward: Callable[[Kernels, Arrays, Arrays, dict[str, Any]], None]
    differentiable: tuple[str, ...]
    added: tuple[str, ...]
    upstream_of: tuple[str, ...]

    def upstream(self) -> Arrays:
        """A random gradient for each output that has one."""
        out = self.forward(TWINS, self.inputs)
        rng = np.random.default_rng(99)
        return {name: rng.standard_normal(out[name].shape) for name in self.upstream_of}

    def gradients(self, kernels: Kernels, dtype: str, times: int = 1) -> dict[str, Any]:
        """Gradients after `times` backwards into one set of buffers."""
        inputs, upstream = self.cast(dtype), {n: a.astype(dtype) for n, a in self.upstream().items()}
        gradients = {name: np.zeros_like(inputs[name]) for name in self.differentiable}
        for _ in range(times):
            self.backward(kernels, inputs, upstream, gradients)
        return gradients

    def cast(self, dtype: str) -> Arrays:
        """The inputs in a dtype; integer ones stay."""
        return {n: a.astype(dtype) if a.dtype.kind == "f" else a.copy() for n, a in self.inputs.items()}


def check_differences(case: Case) -> None:
    """The twin's backward against central differences of its forward, in float64."""
    upstream, gradients = case.upstream(), case.gradients(TWINS, "float64")
    inputs = case.cast("float64")

    def loss() -> float:
        out = case.forward(TWINS, inputs)
        return float(sum((out[name] * upstream[name]).sum() for name in case.upstream_of))

    for name in case.differentiable:
        assert_gradient(gradients[name], numeric_gradient(loss, inputs[name]), what=f"d{name}")


def check_loops(case: Case, factor: float = 2.0) -> None:
    """The loops' forward and backward are as near to float64 as the twin's float32 is."""
    exact, low, got = (
        case.forward(k, case.cast(t)) for k, t in ((TWINS, "float64"), (TWINS, "float32"), (LOOPS, "float32"))
    )
    for name in exact:
        assert_measured(got[name], low[name], exact[name], what=name, factor=factor)
    exact, low, got = (case.gradients(k, t) for k, t in ((TWINS, "float64"), (TWINS, "float32"), (LOOPS, "float32")))
    for name in exact:
        assert_measured(got[name], low[name], exact[name], what=f"d{name}", factor=factor)


def check_adding(case: Case) -> None:
    """Backward twice: twice the parameters' gradients, the others unchanged."""
    for kernels, dtype, rtol in ((TWINS, "float64", 1e-12), (LOOPS, "float32", 1e-6)):
        once, twice = case.gradients(kernels, dtype), case.gradients(kernels, dtype, times=2)
        for name in case.differentiable:
            want = 2 * once[name] if name in case.added else once[name]
            largest = float(np.abs(want).max())
            assert_close(twice[name], want, atol=rtol * largest, rtol=rtol, what=f"d{name} after two backwards")


def check_repeat(case: Case) -> None:
    """The same bits twice."""
    for first, second in (
        (case.forward(LOOPS, case.cast("float32")), case.forward(LOOPS, case.cast("float32"))),
        (case.gradients(LOOPS, "float32"), case.gradients(LOOPS, "float32")),
    ):
        for name in first:
            assert np.array_equal(first[name], second[name]), f"{name} differs between two runs"


def check_torch(got: dict[str, Any], want: dict[str, Any]) -> None:
    """Twin gradients in float64 against PyTorch's autograd in float64."""
    for name, tensor in want.items():
        value = tensor.detach().numpy()
        assert_close(got[name], value, atol=1e-10 * float(np.abs(value).max()), rtol=1e-10, what=f"d{name}")
