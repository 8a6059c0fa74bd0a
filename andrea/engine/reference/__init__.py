"""NumPy twins of every op, for float32 and float64 alike: the oracle that every other engine is tested against.

Plain on purpose. Letters: B batch, T context, C width, H heads, D head width, V vocabulary, N = B * T rows.
Outputs come first. A gradient has its tensor's name with a d in front. What a function assigns and what it adds
to is said in its first line; parameter gradients are always added to. No op allocates what could be a (T, T) matrix.
"""

from andrea.engine.kernels import Kernels
from andrea.engine.reference.attention import k_attn_bwd, k_attn_fwd
from andrea.engine.reference.embed import k_embed_bwd, k_embed_fwd
from andrea.engine.reference.layernorm import k_layernorm_bwd, k_layernorm_fwd
from andrea.engine.reference.loss import k_loss_bwd, k_loss_fwd
from andrea.engine.reference.matrix import (
    k_attn_out_bwd,
    k_attn_out_fwd,
    k_attn_qkv_bwd,
    k_attn_qkv_fwd,
    k_mlp_bwd,
    k_mlp_fwd,
    k_residual_add,
    k_residual_add_bwd,
)
from andrea.engine.reference.optimizer import (
    k_adamw,
    k_grad_norm_final,
    k_grad_norm_partial,
    k_grad_scale,
    k_zero_grads,
)

KERNELS = Kernels(
    k_embed_fwd=k_embed_fwd,
    k_embed_bwd=k_embed_bwd,
    k_layernorm_fwd=k_layernorm_fwd,
    k_layernorm_bwd=k_layernorm_bwd,
    k_attn_qkv_fwd=k_attn_qkv_fwd,
    k_attn_qkv_bwd=k_attn_qkv_bwd,
    k_attn_fwd=k_attn_fwd,
    k_attn_bwd=k_attn_bwd,
    k_attn_out_fwd=k_attn_out_fwd,
    k_attn_out_bwd=k_attn_out_bwd,
    k_mlp_fwd=k_mlp_fwd,
    k_mlp_bwd=k_mlp_bwd,
    k_residual_add=k_residual_add,
    k_residual_add_bwd=k_residual_add_bwd,
    k_loss_fwd=k_loss_fwd,
    k_loss_bwd=k_loss_bwd,
    k_grad_norm_partial=k_grad_norm_partial,
    k_grad_norm_final=k_grad_norm_final,
    k_grad_scale=k_grad_scale,
    k_adamw=k_adamw,
    k_zero_grads=k_zero_grads,
)
