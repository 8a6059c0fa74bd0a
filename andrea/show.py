"""`andrea show`: the resolved experiment with its size, memory and an estimate of time, before anything runs."""

from collections.abc import Iterator

from andrea.cards import CARDS
from andrea.engine.arena import plan_memory
from andrea.engine.layout import count
from andrea.estimate import CPU_MACHINE, cpu_seconds, cuda_seconds, fits
from andrea.experiment import Experiment
from andrea.files import to_json
from andrea.progress import short_time


def show(experiment: Experiment) -> str:
    """The text of `andrea show EXPERIMENT`."""
    e, t = experiment, experiment.train
    plan = plan_memory(e)
    tokens = t.steps * t.batch_size * e.model.context
    lines = [
        to_json(e.to_json()).decode(),
        f"parameters   {count(e.shape):,}  (vocabulary {e.vocab_size:,})",
        f"training     {t.steps:,} steps of {t.batch_size} x {e.model.context} tokens = {tokens / 1e6:,.1f} M tokens",
        f"memory       {plan.total / 2**20:,.0f} MiB on the {t.engine} engine in {t.precision}:",
        *(f"  {size / 2**20:10,.1f} MiB  {part}" for part, size in plan.parts),
        *_times(e, plan.total),
    ]
    return "\n".join(lines)


def _times(e: Experiment, nbytes: int) -> Iterator[str]:
    cpu = short_time(cpu_seconds(e))
    if e.train.engine == "cpu":
        yield f"time         about {cpu} on {CPU_MACHINE} (estimate of the steps alone)"
        return
    yield f"time         of the steps alone in {e.train.precision}, by arithmetic from figures of one H200 (docs/SPEED.md):"
    for card in CARDS:
        seconds = cuda_seconds(e, card)
        told = f"about {short_time(seconds)}, {e.train.steps / seconds:.3g} steps/s"
        yield f"  {card.name:>10}  {told if fits(nbytes, card) else f'too small: {card.memory:.0f} GiB'}"
    yield f'             about {cpu} with "engine": "cpu" on {CPU_MACHINE}'
