"""The gate: a wrong argument is an error with a name; CUDA itself would read noise."""

import numpy as np
import pytest

from andrea.engine.cuda.gate import KernelArgumentError, bind, signatures
from andrea.engine.cuda.tensor import Tensor, from_device_type, to_device_type

FORWARD = signatures("layernorm.cu")["k_layernorm_fwd"]
NAMES = [argument.name for argument in FORWARD]
N, C = 5, 64


def arguments(**changes: object) -> tuple[object, ...]:
    def tensor(dtype: str, *shape: int) -> Tensor:
        return Tensor(4096, shape, dtype)

    good: dict[str, object] = {
        "y": tensor("bfloat16", N, C), "mean": tensor("float32", N), "rstd": tensor("float32", N),
        "x": tensor("bfloat16", N, C), "gamma": tensor("float32", C), "beta": tensor("float32", C),
        "N": N, "C": C, "eps": 1e-5,
    }  # fmt: skip
    return tuple({**good, **changes}[name] for name in NAMES)


def test_good_arguments_get_their_exact_width() -> None:
    """A Python float would travel as a double, an int as 64 bits."""
    bound = bind("k", FORWARD, arguments(), "bfloat16")
    assert [type(value) for value in bound] == [np.uint64] * 6 + [np.int32, np.int32, np.float32]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("gamma", Tensor(4096, (C + 1,), "float32"), "gamma has C=65, but another argument says C=64"),
        ("mean", Tensor(4096, (N, 1), "float32"), r"mean must be \(N\), got shape \(5, 1\)"),
        ("x", Tensor(4096, (N, C), "float16"), "x must be bfloat16, got float16"),
        ("beta", Tensor(4096, (C,), "int32"), "beta must be float32, got int32"),
        ("x", Tensor(4100, (N, C), "bfloat16"), "x must start at a multiple of 16 bytes"),
        ("x", np.zeros((N, C)), "x must be a device tensor, got ndarray"),
        ("N", 2.5, "N must fit int, got 2.5"),
        ("N", 2**40, "N must fit int"),
        ("eps", "small", "eps must fit float, got 'small'"),
    ],
)
def test_a_wrong_argument_is_named(name: str, value: object, words: str) -> None:
    """Kernel, argument, expected, got: enough to mend it without a debugger."""
    with pytest.raises(KernelArgumentError, match=words):
        bind("k_layernorm_fwd", FORWARD, arguments(**{name: value}), "bfloat16")


def test_a_missing_argument_is_counted() -> None:
    with pytest.raises(KernelArgumentError, match=r"takes 9 arguments .*, got 8"):
        bind("k_layernorm_fwd", FORWARD, arguments()[:-1], "bfloat16")


def test_sixteen_bits_round_to_nearest_even() -> None:
    """The card's own rounding; NaN stays NaN instead of becoming infinity."""
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -3.14159, 1e-40, np.inf, np.nan, 3.4e38], np.float32)
    got = from_device_type(to_device_type(values, "bfloat16"), "bfloat16")
    assert got[0] == 1.0
    assert got[1] == 1.0
    assert got[2] == 1 + 2**-6
    assert got[3] == -3.140625
    assert np.isinf(got[5])
    assert np.isnan(got[6])
    assert np.isinf(got[7])
    assert np.array_equal(
        from_device_type(to_device_type(values[:4], "float16"), "float16"), values[:4].astype(np.float16)
    )


def test_a_part_outside_is_refused() -> None:
    with pytest.raises(AssertionError, match="of a tensor of 10"):
        Tensor(4096, (10,), "float32").part(8, 3)
