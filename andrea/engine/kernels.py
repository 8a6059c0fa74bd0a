"""The ops that an engine is made of, one field a kernel, filled by a set of implementations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]  # float32 or float64: an op takes either, all of one type
Kernel = Callable[..., None]

LAYERNORM_EPS = 1e-5
ATTENTION_TILE = 32  # queries at a time
NORM_CHUNK = 65536  # floats in one partial sum of the gradient norm; fixed, so that the order of adding is too


@dataclass(frozen=True)
class Kernels:
    """One implementation of every op. Signatures and contracts stand in andrea.engine.reference."""

    k_embed_fwd: Kernel
    k_embed_bwd: Kernel
    k_layernorm_fwd: Kernel
    k_layernorm_bwd: Kernel
    k_attn_qkv_fwd: Kernel
    k_attn_qkv_bwd: Kernel
    k_attn_fwd: Kernel
    k_attn_bwd: Kernel
    k_attn_out_fwd: Kernel
    k_attn_out_bwd: Kernel
    k_mlp_fwd: Kernel
    k_mlp_bwd: Kernel
    k_residual_add: Kernel
    k_residual_add_bwd: Kernel
    k_loss_fwd: Kernel
    k_loss_bwd: Kernel
    k_grad_norm_partial: Kernel
    k_grad_norm_final: Callable[..., float]
    k_grad_scale: Kernel
    k_adamw: Kernel
    k_zero_grads: Kernel


def attention_work(length: int, d_head: int) -> int:
    """Floats of workspace that an attention op takes for rows of `length` tokens."""
    return 8 * length * d_head + ATTENTION_TILE * (d_head + 1 + max(length, 8 * ATTENTION_TILE))
