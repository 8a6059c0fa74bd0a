"""How launches cut their work into blocks of threads: what several files must agree on, and what depends on a row's length."""

WARP = 32
BLOCK = 256
LN_ROWS = 4  # rows of a LayerNorm's block forward, and its warps
LOSS_THREADS = 512  # of k_loss_fused, at most


def norm_defines(width: int, pack: int) -> dict[str, int | str]:
    """Compile options of layernorm.cu: a row of `width` lies in the registers of a warp, or of several."""
    return {"LN_PACKS": -(-width // (WARP * pack))}


def loss_launch(stride: int, pack: int) -> tuple[int, dict[str, int | str]]:
    """Threads of k_loss_fused and its compile options: a row of `stride` logits lies in the registers of a block."""
    packs = -(-stride // pack)
    held = max(2, -(-packs // LOSS_THREADS))
    threads = -(-packs // (held * WARP)) * WARP
    return threads, {"LOSS_PACKS": held, "LOSS_THREADS": threads}
