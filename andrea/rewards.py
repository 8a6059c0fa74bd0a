"""What a pull of an arm is worth: the original's reward, and one that pays for learning instead of noise.

Both read the losses of one arm, in nats per token, in the order of its pulls.

  fall      max(0, EMA - loss), the EMA from before this loss. Half of all pure noise lies below its own average, so
            noise of standard deviation s earns about 0.41 s a pull for ever (EMA alpha 0.1).
  learning  z = (slow - fast) / (s * gain(n)): the fall of a slow average against the fast one, over what pure noise
            of the arm's own size would make of that difference. z is 0 on average for any arm that does not
            learn, however loud it is; `threshold` keeps luck from paying, and the reward ends at 1.
"""

import math
from dataclasses import dataclass

from andrea.recipe import RewardSpec

QUIET = 1e-3  # nats; an arm whose losses vary less than this is judged as if they varied this much


@dataclass(slots=True)
class Signal:
    """What is remembered of one arm's losses."""

    losses: int = 0
    fast: float = 0.0  # nats; EMA, alpha = RewardSpec.alpha, from the first loss on
    slow: float = 0.0  # nats; plain mean until 1 / slow_alpha losses, EMA after
    gap2: float = 0.0  # nats^2; average of (loss - fast before)^2
    reward: float = 0.0  # mean reward

    def hear(self, loss: float, spec: RewardSpec, gains: "Gains") -> None:
        """Take in one finite loss."""
        self.losses += 1
        if self.losses == 1:
            self.fast = self.slow = loss
            return
        gap = loss - self.fast
        self.fast += spec.alpha * gap
        self.slow += max(spec.slow_alpha, 1 / self.losses) * (loss - self.slow)
        self.gap2 += max(spec.slow_alpha, 1 / (self.losses - 1)) * (gap * gap - self.gap2)
        if self.losses > spec.burn_in:
            reward = max(0.0, -gap) * spec.scale if spec.kind == "fall" else self._learning(spec, gains)
            self.reward += max(spec.forget, 1 / (self.losses - spec.burn_in)) * (reward - self.reward)

    def spread(self, spec: RewardSpec) -> float:
        """Standard deviation of the arm's losses around their trend, nats."""
        return math.sqrt(self.gap2 * (1 - spec.alpha / 2))

    def _learning(self, spec: RewardSpec, gains: "Gains") -> float:
        z = (self.slow - self.fast) / (max(self.spread(spec), QUIET) * gains[self.losses])
        return min(1.0, max(0.0, z - spec.threshold) * spec.scale)


class Gains:
    """gains[n]: standard deviation of (slow - fast) after n independent losses of standard deviation 1.

    Both averages are weighted sums of the losses; with a = alpha and b_n = max(slow_alpha, 1/n) the sums of their
    squared weights and of the product obey F' = (1-a)^2 F + a^2, S' = (1-b)^2 S + b^2, X' = (1-a)(1-b) X + ab, all 1
    at n = 1, and the variance is F + S - 2X.
    """

    def __init__(self, spec: RewardSpec) -> None:
        a, b = spec.alpha, spec.slow_alpha
        length = math.ceil(40 / min(a, b)) + 2  # by then (1-a)^n and (1-b)^n are below 1e-17
        ff = ss = fs = 1.0
        self._table = [0.0, 0.0]
        for n in range(2, length):
            b = max(spec.slow_alpha, 1 / n)
            ff, ss, fs = (1 - a) ** 2 * ff + a * a, (1 - b) ** 2 * ss + b * b, (1 - a) * (1 - b) * fs + a * b
            self._table.append(math.sqrt(ff + ss - 2 * fs))

    def __getitem__(self, n: int) -> float:
        return self._table[min(n, len(self._table) - 1)]
