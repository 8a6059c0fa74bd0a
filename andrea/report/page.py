"""The page itself: key figures, charts, tables, put into template.html with plotly.js inlined once."""

import json
from importlib.resources import files as resource
from pathlib import Path
from typing import Any

import jinja2

from andrea.engine.layout import count
from andrea.experiment import Experiment
from andrea.files import to_json
from andrea.report import arms, curves, facts
from andrea.report.history import Run, by_step, read_run

_PARTS = ("template.html", "style.css", "charts.js")
_BEFORE = [("stages", "Stages"), ("evaluation", "Final evaluation")]
_AFTER = [("samples", "Samples"), ("firehose", "Firehose"), ("data", "Data")]
_TOKENIZER = (
    "What it was learned from; how many bytes a token stands for (mix: as training weighs the sources); the share of its segments "
    "that each source uses; and overlap, the share that a small sample of the same mix, of the head or of one source also gives."
)
_LAST = 100  # steps that the final training loss is a mean of


def render(experiment: Experiment, root: Path) -> str:
    """The HTML text."""
    run = read_run(experiment, root)
    tokens = facts.train_tokens(experiment, root)
    charts = [chart for chart in _charts(experiment, run, tokens) if chart["traces"]]
    times = facts.stage_times(experiment, root, run)
    tables = _tables(experiment, root, run, times)
    texts = {name: (resource(__package__) / name).read_text(encoding="utf-8") for name in _PARTS}
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(texts["template.html"]).render(
        name=experiment.name,
        description=experiment.description,
        figures=_figures(experiment, run, times),
        contents=[
            *_BEFORE,
            *((c["id"], c["title"]) for c in charts),
            *_AFTER,
            *((id_, title) for id_, title, _, _ in tables),
            ("log", "Log"),
            ("experiment", "Experiment"),
        ],
        stages=facts.drawing(experiment, root, times),
        charts=charts,
        samples=by_step(run.samples),
        arms=arms.arm_rows(experiment, root, run, tokens),
        policy=experiment.firehose.policy,
        log=facts.log_text(experiment, root),
        data=facts.data_rows(experiment, root),
        evaluation=facts.evaluation_rows(experiment, root),
        tables=tables,
        resolved=to_json(experiment.to_json()).decode(),
        style=texts["style.css"],
        script=texts["charts.js"],
        plotly=_plotly(),
        charts_json=_script_json(charts),
    )


def _charts(experiment: Experiment, run: Run, tokens: dict[str, int]) -> list[dict[str, Any]]:
    """id, title, text, unit, log axis at first, traces; whole: the axis begins at 0."""
    rate = curves.line_traces(run.steps, "lr", "learning rate")
    norm = curves.line_traces(run.steps, "norm", "gradient norm")
    rows = [
        (
            "loss",
            "Training loss",
            "Mean cross-entropy of each step's batch.",
            "nats per token",
            True,
            curves.loss_traces(run.steps),
        ),
        (
            "shares",
            "Sources",
            "What part of the steps drew from each source, as a running mean.",
            "share of steps",
            False,
            curves.share_traces(run.steps),
        ),
        (
            "reward",
            "Rewards",
            "How fast the bandit saw each source's loss fall beyond its noise, as a mean over its pulls.",
            "mean reward",
            False,
            arms.reward_traces(experiment, run),
        ),
        (
            "epochs",
            "Epochs",
            "How often the steps so far have read each source's training text.",
            "epochs",
            False,
            arms.epoch_traces(experiment, run, tokens),
        ),
        (
            "norm",
            "Gradient norm",
            f"Global L2 norm before it is clipped to {experiment.train.clip:g}.",
            "L2 norm",
            True,
            norm,
        ),
        ("rate", "Learning rate", "Linear warm-up, then a cosine.", "learning rate", False, rate),
        *(
            (key, f"Validation, {unit}", text, unit, False, curves.validation_traces(run.validations, key))
            for key, unit, text in (
                ("bits_per_byte", "bits per byte", "Held-out text of each source; comparable between tokenizers."),
                ("nats_per_token", "nats per token", "Held-out text of each source; comparable with the loss."),
            )
        ),
        (
            "coherence",
            "Coherence of the samples",
            "0 to 100, of everything that was written, also past the reply. Low when the model repeats itself or makes up words; sense is not asked for.",
            "score of 100",
            False,
            curves.coherence_traces(run.samples),
        ),
    ]
    charts = [dict(zip(("id", "title", "text", "unit", "log", "traces"), row, strict=True)) for row in rows]
    marks, whole = arms.marks(experiment), ("share of steps", "score of 100", "epochs", "mean reward")
    sources = list(experiment.sources)
    return [chart | {"whole": chart["unit"] in whole, "marks": marks, "sources": sources} for chart in charts]


def _figures(experiment: Experiment, run: Run, times: dict[str, str]) -> list[tuple[str, str]]:
    t = experiment.train
    last = [record["loss"] for record in run.steps[-_LAST:] if record["loss"] is not None]
    tokens = t.steps * t.batch_size * experiment.model.context
    figures = [
        ("parameters", f"{count(experiment.shape):,}"),
        ("vocabulary", f"{experiment.vocab_size:,}"),
        ("steps", f"{t.steps:,}"),
        ("tokens seen", f"{tokens / 1e6:,.1f} M"),
        (f"loss, last {len(last)} steps", f"{sum(last) / max(len(last), 1):.3f}"),
    ]
    if run.validations:
        results = run.validations[-1]["validation"].values()
        mean = sum(result["bits_per_byte"] for result in results) / max(len(results), 1)
        figures.append(("validation, bits per byte", f"{mean:.3f}"))
    return [*figures, ("engine", f"{t.engine}, {t.precision}"), ("time of the steps", times["train"])]


def _tables(
    experiment: Experiment, root: Path, run: Run, times: dict[str, str]
) -> list[tuple[str, str, str, facts.Rows]]:
    """(id, title, text, rows)"""
    return [
        ("files", "Data files", "sha256 of what the model was made from.", facts.file_rows(experiment, root)),
        ("tokenizer", "Tokenizer", _TOKENIZER, facts.tokenizer_rows(experiment, root)),
        ("timings", "Timings", "Of each stage when it last ran.", facts.timing_rows(experiment, times, run)),
        ("versions", "Versions", "What can change the bits of a run.", facts.version_rows(experiment, root)),
        ("hashes", "Hashes", "sha256 of every archived file.", facts.hash_rows(experiment, root)),
    ]


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _script_json(value: Any) -> str:
    """JSON that can stand inside a script element: no text in it can end the element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
