"""How launches cut their work into blocks of threads: what several files must agree on, and what depends on a row's length."""

WARP = 32
BLOCK = 256
LN_BLOCKS = 528  # of a LayerNorm forward, at most: four for each multiprocessor of an H200
LN_BLOCKS_FP8 = 396  # three fit
LN_HELD = 24  # elements of a LayerNorm's row that a lane holds, where that is enough
LOSS_HELD = 40  # logits that a thread of k_loss_fused holds, where that is enough
LOSS_THREADS = 512  # of its block, at most
EMBED_ROWS, EMBED_TEAM, EMBED_BLOCK = 4, 16, 128  # as in embed.cu; threads of a block forward


def norm_defines(width: int, pack: int) -> dict[str, int | str]:
    """Compile options of layernorm.cu: a row of `width` lies in the registers of half a warp, of a warp or of several."""
    packs, least = up(width, pack), 16 if pack == 8 else 32  # half a warp holds too many registers in float32
    lanes = next((lanes for lanes in (least, 32, 64) if packs * pack <= lanes * LN_HELD), 128)
    return {"LN_LANES": lanes, "LN_PACKS": up(packs, lanes), "LN_WHOLE": int(packs % lanes == 0)}


def norm_grid(rows: int, width: int, pack: int, most: int = LN_BLOCKS) -> tuple[int, ...]:
    """Blocks of a LayerNorm forward: each has BLOCK / LN_LANES rows at a time."""
    return (min(most, up(rows * int(norm_defines(width, pack)["LN_LANES"]), BLOCK)),)


def loss_launch(stride: int, pack: int) -> tuple[int, dict[str, int | str]]:
    """Threads of k_loss_fused and its compile options: a row of `stride` logits lies in the registers of a block."""
    packs = up(stride, pack)
    threads = min(LOSS_THREADS, up(packs * pack, LOSS_HELD * WARP) * WARP)
    return threads, {"LOSS_PACKS": up(packs, threads), "LOSS_THREADS": threads}


def embed_grids(
    rows: int, context: int, width: int, vocabulary: int, pack: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Grids of k_embed_fwd and k_embed_bwd for `rows` rows of the batch."""
    teams = BLOCK // EMBED_TEAM
    forward = up(context * width, EMBED_BLOCK * pack), up(rows, EMBED_ROWS)
    return forward, (up(vocabulary, teams) + up(context, teams), up(width, EMBED_TEAM * pack))


def up(count: int, each: int) -> int:
    """How many of `each` hold `count`."""
    return -(-count // each)
