"""The one gate between Python and the kernels: every launch is checked against the kernel's own signature.

A signature is read from the .cu file, where each array may carry its dimension letters in a comment:
`const float* gamma /* C */`. A letter has one value within a call, also where it is a scalar argument. CUDA itself checks
nothing: a wrong type is read as noise, and a Python float would be passed as a double.
"""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from andrea.engine.cuda.nvrtc import source_text
from andrea.engine.cuda.tensor import Tensor

ACT_NAMES = ("float32", "bfloat16", "float16")  # by the value of -DACT
_ARRAYS = {"float": "float32", "int": "int32", "e4m3_t": "float8_e4m3"}
_SCALARS: Mapping[str, Any] = {"float": np.float32, "int": np.int32, "long long": np.int64}
_KERNEL = re.compile(
    r'extern "C" __global__ void\s+(?:CLUSTERED\s+|__launch_bounds__\([^)]*\)\s*)?(\w+)\((.*?)\)\s*\{', re.DOTALL
)
_ARGUMENT = re.compile(r"(?:const\s+)?(long long|\w+)\s*(\*?)\s*(?:__restrict__\s+)?(\w+)\s*(?:/\*([\w\s]*)\*/)?\s*$")


class KernelArgumentError(ValueError):
    """A launch with a wrong argument: a defect of ours, named by kernel and argument."""


@dataclass(frozen=True)
class Argument:
    """One parameter. `kind` is the C type; dims are letters, empty for structs and arrays without a stated shape."""

    name: str
    kind: str
    array: bool
    dims: tuple[str, ...]


@cache
def signatures(file: str) -> dict[str, tuple[Argument, ...]]:
    """Every kernel of kernels/`file` with its parameters, as the source declares them."""
    found = {}
    for name, text in _KERNEL.findall(source_text(file)):
        found[name] = tuple(_argument(name, part.strip()) for part in text.split(","))
    return found


def bind(kernel: str, signature: tuple[Argument, ...], values: tuple[Any, ...], act: str) -> tuple[Any, ...]:
    """Launch arguments of exact width for `values`, or an error that names kernel, argument, expected, got and fix."""
    if len(values) != len(signature):
        names = ", ".join(argument.name for argument in signature)
        raise KernelArgumentError(f"{kernel}: takes {len(signature)} arguments ({names}), got {len(values)}")
    pairs = list(zip(signature, values, strict=True))
    scalars = {a.name: _scalar(f"{kernel}: {a.name}", a, value) for a, value in pairs if not a.array}
    letters = {name: int(value) for name, value in scalars.items() if len(name) == 1}
    bound = []
    for argument, value in pairs:
        where = f"{kernel}: {argument.name}"
        bound.append(_address(where, argument, value, act, letters) if argument.array else scalars[argument.name])
    return tuple(bound)


def _argument(kernel: str, text: str) -> Argument:
    match = _ARGUMENT.match(" ".join(text.split()))
    assert match, f"{kernel}: the gate cannot read the parameter `{text}`"
    kind, star, name, dims = match.groups()
    return Argument(name, kind, bool(star), tuple((dims or "").split()))


def _scalar(where: str, argument: Argument, value: Any) -> Any:
    kind = _SCALARS[argument.kind]
    try:
        exact = float(value) if argument.kind == "float" else operator.index(value)
        return kind(exact)
    except (TypeError, ValueError, OverflowError) as cause:
        raise KernelArgumentError(
            f"{where} must fit {argument.kind}, got {value!r}; pass a number of that type"
        ) from cause


def _address(where: str, argument: Argument, value: Any, act: str, letters: dict[str, int]) -> Any:
    if not isinstance(value, Tensor):
        raise KernelArgumentError(
            f"{where} must be a device tensor, got {type(value).__name__}; take it from the arena"
        )
    expected = act if argument.kind == "act_t" else _ARRAYS.get(argument.kind)
    if expected is not None and value.dtype != expected:
        raise KernelArgumentError(f"{where} must be {expected}, got {value.dtype}; pass a tensor of that type")
    alignment = 4 if argument.kind == "int" else 16  # float and act_t arrays may be read in packs
    if value.address % alignment:
        raise KernelArgumentError(
            f"{where} must start at a multiple of {alignment} bytes, got {value.address:#x}; align it"
        )
    _check_dims(where, argument.dims, value.shape, letters)
    return np.uint64(value.address)


def _check_dims(where: str, dims: tuple[str, ...], shape: tuple[int, ...], letters: dict[str, int]) -> None:
    if dims and len(dims) != len(shape):
        raise KernelArgumentError(f"{where} must be ({', '.join(dims)}), got shape {shape}; reshape it")
    for letter, size in zip(dims, shape, strict=False):
        if letters.setdefault(letter, size) != size:
            raise KernelArgumentError(
                f"{where} has {letter}={size}, but another argument says {letter}={letters[letter]}"
            )
