"""The charts of the page: what each shows, and the curves in it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from andrea.experiment import Experiment
from andrea.report import arms, curves
from andrea.report.history import Run


class Chart(NamedTuple):
    """`log`: its values begin on a logarithmic axis; `whole`: the axis begins at 0."""

    id: str
    title: str
    unit: str
    text: str
    log: bool = False
    whole: bool = False


_HELD_OUT = "Held-out text of each source; comparable "
CHARTS = (
    Chart("loss", "Training loss", "nats per token", "Mean cross-entropy of each step's batch.", log=True),
    Chart(
        "shares",
        "Sources",
        "share of steps",
        "What part of the steps drew from each source, as a running mean.",
        whole=True,
    ),
    Chart(
        "reward",
        "Rewards",
        "mean reward",
        "How fast the bandit saw each source's loss fall beyond its noise, as a mean over its pulls.",
        whole=True,
    ),
    Chart("coverage", "Coverage", "share of documents", "What part of each source's documents was drawn.", whole=True),
    Chart(
        "epochs", "Epochs", "epochs", "How often the steps so far have read each source's training text.", whole=True
    ),
    Chart("norm", "Gradient norm", "L2 norm", "Global L2 norm before it is clipped to {clip:g}.", log=True),
    Chart("rate", "Learning rate", "learning rate", "Linear warm-up, then a cosine."),
    Chart("bits_per_byte", "Validation, bits per byte", "bits per byte", f"{_HELD_OUT}between tokenizers."),
    Chart("nats_per_token", "Validation, nats per token", "nats per token", f"{_HELD_OUT}with the loss."),
    Chart(
        "coherence",
        "Coherence of the samples",
        "score of 100",
        "0 to 100, of everything that was written, also past the reply. Low when the model repeats itself or makes up "
        "words; sense is not asked for.",
        whole=True,
    ),
)


def charts_of(experiment: Experiment, run: Run, tokens: Mapping[str, int]) -> list[dict[str, Any]]:
    """The charts that have curves, as charts.js takes them. `tokens`: of each source's training text."""
    traces = _traces(experiment, run, tokens)
    common = {"marks": arms.marks(experiment), "sources": list(experiment.sources)}
    return [
        chart._asdict() | common | {"text": chart.text.format(clip=experiment.train.clip), "traces": traces[chart.id]}
        for chart in CHARTS
        if traces[chart.id]
    ]


def _traces(experiment: Experiment, run: Run, tokens: Mapping[str, int]) -> dict[str, list[curves.Trace]]:
    """Id of a chart -> its curves."""
    learned = {key: curves.table_traces(run.steps, "firehose", key, "lines") for key in ("reward", "coverage")}
    rates = {
        key: curves.table_traces(run.validations, "validation", key, "lines+markers")
        for key in ("bits_per_byte", "nats_per_token")
    }
    return {
        **learned,
        **rates,
        "loss": curves.loss_traces(run.steps),
        "shares": curves.share_traces(run.steps),
        "epochs": arms.epoch_traces(experiment, run, tokens),
        "norm": curves.line_traces(run.steps, "norm", "gradient norm"),
        "rate": curves.line_traces(run.steps, "lr", "learning rate"),
        "coherence": curves.coherence_traces(run.samples),
    }
