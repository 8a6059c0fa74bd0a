"""The page itself: key figures, charts, tables, put into template.html with plotly.js inlined once."""

import json
from importlib.resources import files as resource
from pathlib import Path
from typing import Any

import jinja2

from andrea.engine.layout import count
from andrea.experiment import Experiment
from andrea.files import to_json
from andrea.report import arms, facts
from andrea.report.charts import charts_of
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
    charts = charts_of(experiment, run, tokens)
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
