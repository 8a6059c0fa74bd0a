"""The head and cross-entropy in nats. The head is wte itself when it is tied.

forward   logits = x head'      loss[n] = log(sum(exp(logits[n]))) - logits[n, target[n]]
backward  dlogits = (softmax(logits) - onehot(target)) * scale     dx = dlogits head     dhead += dlogits' x

Probabilities are not stored: backward makes them in place of the logits, from the saved log-sum-exp.
"""

import numpy as np

from andrea.engine.kernels import Array


def k_loss_fwd(losses: Array, lse: Array, logits: Array, x: Array, head: Array, targets: Array) -> None:
    """Assign losses (N,), lse (N,) and logits (N, V) from x (N, C), head (V, C) and targets (N,) int32."""
    np.matmul(x, head.T, out=logits)
    top = logits.max(axis=1, keepdims=True)
    lse[:] = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    losses[:] = lse - logits[np.arange(len(targets)), targets]


def k_loss_bwd(
    dx: Array, dhead: Array, logits: Array, lse: Array, x: Array, head: Array, targets: Array, scale: float
) -> None:
    """Assign dx (N, C) and logits (N, V), which becomes its own gradient; add into dhead (V, C)."""
    np.exp(logits - lse[:, None], out=logits)
    logits[np.arange(len(targets)), targets] -= 1
    logits *= scale
    np.matmul(logits, head, out=dx)
    dhead += logits.T @ x
