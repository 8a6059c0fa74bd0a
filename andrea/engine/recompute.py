"""Which activations all layers share when backward makes them again (train.recompute); gradient checkpointing.

A layer keeps its input and two numbers a row of each LayerNorm and of attention. The rest is made again from the input, by
the same kernels in the same order, right before the layer's backward: the same bits. The last layer's is still there.
"""


def shared(layers: int, *, doubled: bool) -> dict[str, str]:
    """Activation -> the one in whose memory it lies, for those that have none of their own.

    `doubled`: weight gradients run beside the rest. Those of W_Q, W_K, W_V and W_O may then still read their op's input, y
    or att, while the layer below is made again, so neighbours have two of these.
    """
    sets = 2 if doubled else 1
    places: dict[str, str] = {}
    for layer in range(layers):
        places |= {
            f"y.{2 * layer}": f"y.{2 * (layer % sets)}",
            f"qkv.{layer}": "qkv.0",
            f"att.{layer}": f"att.{layer % sets}",
            f"x.{2 * layer + 1}": "x.1",
            f"y.{2 * layer + 1}": "y.1",
            f"h.{layer}": "h.0",
        }
    return {name: place for name, place in places.items() if name != place}
