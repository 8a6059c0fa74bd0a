"""The ops as compiled float32 loops around BLAS products; signatures and contracts are the reference's."""

from numba.core.event import register

from andrea.engine.kernels import Kernels
from andrea.engine.loops.cache import own_cache
from andrea.engine.patience import Patience

register("numba:compiler_lock", Patience())
with own_cache():
    from andrea.engine.loops import attention, embed, layernorm, loss, matrix, optimizer

KERNELS = Kernels(
    k_embed_fwd=embed.k_embed_fwd,
    k_embed_bwd=embed.k_embed_bwd,
    k_layernorm_fwd=layernorm.k_layernorm_fwd,
    k_layernorm_bwd=layernorm.k_layernorm_bwd,
    k_attn_qkv_fwd=matrix.k_attn_qkv_fwd,
    k_attn_qkv_bwd=matrix.k_attn_qkv_bwd,
    k_attn_fwd=attention.k_attn_fwd,
    k_attn_bwd=attention.k_attn_bwd,
    k_attn_out_fwd=matrix.k_attn_out_fwd,
    k_attn_out_bwd=matrix.k_attn_out_bwd,
    k_mlp_fwd=matrix.k_mlp_fwd,
    k_mlp_bwd=matrix.k_mlp_bwd,
    k_residual_add=matrix.k_residual_add,
    k_residual_add_bwd=matrix.k_residual_add_bwd,
    k_loss_fwd=loss.k_loss_fwd,
    k_loss_bwd=loss.k_loss_bwd,
    k_grad_norm_partial=optimizer.k_grad_norm_partial,
    k_grad_norm_final=optimizer.k_grad_norm_final,
    k_grad_scale=optimizer.k_grad_scale,
    k_adamw=optimizer.k_adamw,
    k_zero_grads=optimizer.k_zero_grads,
)
