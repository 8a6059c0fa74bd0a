"""The head and cross-entropy in nats. The head is wte itself when it is tied.

forward   logits = x head'      loss[n] = log(sum(exp(logits[n]))) - logits[n, target[n]]
backward  dlogits = (softmax(logits) - onehot(target)) * scale     dx = dlogits head     dhead += dlogits' x

One (N, V) buffer does for all: logits become exp(logits - largest), which backward makes into their gradient.
"""

import numpy as np

from andrea.engine.kernels import Array


def k_loss_fwd(losses: Array, total: Array, logits: Array, x: Array, head: Array, targets: Array) -> None:
    """Assign losses (N,), logits (N, V) = exp(logits - the row's largest) and total (N,) = their sums.

    From x (N, C), head (V, C) and targets (N,) int32.
    """
    np.matmul(x, head.T, out=logits)
    logits -= logits.max(axis=1, keepdims=True)
    losses[:] = -logits[np.arange(len(targets)), targets]
    np.exp(logits, out=logits)
    logits.sum(axis=1, out=total)
    losses += np.log(total)


def k_loss_bwd(
    dx: Array, dhead: Array, logits: Array, total: Array, x: Array, head: Array, targets: Array, scale: float
) -> None:
    """Assign dx (N, C) and logits (N, V), which becomes its own gradient; add into dhead (V, C)."""
    logits *= scale / total[:, None]
    logits[np.arange(len(targets)), targets] -= scale
    np.matmul(logits, head, out=dx)
    dhead += logits.T @ x
