"""What a pull of an arm is worth: the original's reward, and one that pays for learning instead of noise.

Both read the losses of one arm, in nats per token, in the order of its pulls.

  fall      max(0, EMA - loss), the EMA from before this loss. Half of all pure noise lies below its own average, so
            noise of standard deviation s earns about 0.41 s a pull for ever (EMA alpha 0.1).
  learning  how fast the loss falls, in nats a pull: the difference of a slow and a fast average, less what the arm's
            own noise may have made of it, over the difference of their lags. Noise alone earns next to nothing.
"""

import math
from dataclasses import dataclass

from andrea.recipe import RewardSpec


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
            reward = spec.scale * (max(0.0, -gap) if spec.kind == "fall" else self._progress(spec, gains))
            self.reward += max(spec.forget, 1 / (self.losses - spec.burn_in)) * (reward - self.reward)

    def spread(self, spec: RewardSpec) -> float:
        """Standard deviation of the arm's losses around their trend, nats."""
        return math.sqrt(self.gap2 * (1 - spec.alpha / 2))

    def _progress(self, spec: RewardSpec, gains: "Gains") -> float:
        """Nats a pull, as far as they are more than `threshold` standard deviations of noise.

        0 as long as the slow average does not lag half a time constant of the fast one behind it: at first it is the
        quicker of the two, because the EMA starts from a single loss.
        """
        lag = gains.lag(self.losses)
        if lag < 0.5 / spec.alpha:
            return 0.0
        noise = spec.threshold * self.spread(spec) * gains.noise(self.losses)
        return max(0.0, self.slow - self.fast - noise) / lag


class Gains:
    """What n losses make of (slow - fast): `noise` out of independent losses, `lag` out of a steady fall.

    Both averages are weighted sums of the losses. With a = alpha and b = max(slow_alpha, 1/n), the sums of their squared
    weights and of the product obey F' = (1-a)^2 F + a^2, S' = (1-b)^2 S + b^2, X' = (1-a)(1-b) X + ab, all 1 at n = 1;
    their lags behind the newest loss, in pulls, obey L' = (1-a)(L + 1), 0 at n = 1.
    """

    def __init__(self, spec: RewardSpec) -> None:
        a, b = spec.alpha, spec.slow_alpha
        length = math.ceil(40 / b) + 2  # by then (1-a)^n and (1-b)^n are below 1e-17
        ff = ss = fs = 1.0
        fast_lag = slow_lag = 0.0
        self._noise, self._lag = [0.0, 0.0], [1.0, 1.0]
        for n in range(2, length):
            b = max(spec.slow_alpha, 1 / n)
            ff, ss, fs = (1 - a) ** 2 * ff + a * a, (1 - b) ** 2 * ss + b * b, (1 - a) * (1 - b) * fs + a * b
            fast_lag, slow_lag = (1 - a) * (fast_lag + 1), (1 - b) * (slow_lag + 1)
            self._noise.append(math.sqrt(max(0.0, ff + ss - 2 * fs)))
            self._lag.append(slow_lag - fast_lag)

    def noise(self, n: int) -> float:
        """Standard deviation of slow - fast for losses of standard deviation 1."""
        return self._noise[min(n, len(self._noise) - 1)]

    def lag(self, n: int) -> float:
        """slow - fast for losses that fall by 1 a pull."""
        return self._lag[min(n, len(self._lag) - 1)]
