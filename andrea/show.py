"""`andrea show`: the resolved experiment with its size, memory and an estimate of time, before anything runs."""

from andrea.engine.arena import plan_memory
from andrea.engine.layout import count
from andrea.estimate import rate, training_seconds
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
        f"time         about {short_time(training_seconds(e, t.engine))} on {rate(e, t.engine).machine} (estimate of the steps alone)",
    ]
    if t.engine != "cpu":
        lines.append(f'             about {short_time(training_seconds(e, "cpu"))} with "engine": "cpu"')
    return "\n".join(lines)
