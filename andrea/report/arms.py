"""The firehose's part of the page: what each source was to the run, and how the bandit came to see it so."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea.checked import Checked
from andrea.coverage import Coverage
from andrea.experiment import Experiment
from andrea.report.curves import Points, Trace, thinned, trace
from andrea.report.history import Run

_MEAN = 50  # steps of a source that its first and its last loss are means of


def arm_rows(experiment: Experiment, root: Path, run: Run, tokens: Mapping[str, int]) -> list[dict[str, str]]:
    """One row a source. `tokens`: of its training text."""
    name, last = experiment.name, experiment.train.steps
    path = root / "runs" / name / "archive" / str(last) / f"{name}.state.json"
    bandit = experiment.firehose.policy == "bandit"
    arms = Checked.read(path, "the archived state").child("firehose").child("arms") if bandit else None
    return [
        _common(experiment, run, source, tokens[source])
        | (_bandit(experiment, source, arms.child(source)) if arms else {})
        for source in experiment.sources
    ]


def _common(experiment: Experiment, run: Run, source: str, tokens: int) -> dict[str, str]:
    losses = [r["loss"] for r in run.steps if r["source"] == source and r["loss"] is not None]
    pulls = run.pulls(source)
    first, last = losses[:_MEAN], losses[-_MEAN:]
    return {
        "source": source,
        "weight": f"{experiment.firehose.weights[source]:g}",
        "steps": f"{pulls:,}",
        "share": f"{pulls / len(run.steps):.1%}",
        "epochs": f"{epochs_of(experiment, pulls, tokens):.2f}",
        "first loss": f"{sum(first) / len(first):.3f}" if first else "",
        "last loss": f"{sum(last) / len(last):.3f}" if last else "",
    }


def _bandit(experiment: Experiment, source: str, arm: Checked) -> dict[str, str]:
    spec, polish = experiment.firehose.bandit, experiment.polish
    assert spec is not None, "the policy is bandit"
    limits = polish if polish and polish.at_step < experiment.train.steps else spec
    documents, seen = arm.count("documents"), arm.text("seen")
    if not 0 < documents <= 6 * len(seen):  # base64 keeps six bits a character
        raise arm.wrong("as many documents as `seen` has bits", documents, "documents")
    covered = Coverage([documents])
    covered.set_text(0, seen, source)
    return {
        "floor": f"{limits.floors[source]:g}",
        "cap": f"{limits.caps[source]:g}",
        "documents seen": f"{covered.shares()[0]:.1%}",
        "reward": f"{arm.number('reward'):.2f}",
    }


def epochs_of(experiment: Experiment, pulls: int, tokens: int) -> float:
    return pulls * experiment.train.batch_size * experiment.model.context / max(tokens, 1)


def epoch_traces(experiment: Experiment, run: Run, tokens: Mapping[str, int]) -> list[Trace]:
    """How often each source's text had been read by each step."""
    traces = []
    for source in experiment.sources:
        own = [record["step"] for record in run.steps if record["source"] == source]
        points: Points = [(step, epochs_of(experiment, n, tokens[source])) for n, step in enumerate(own, 1)]
        traces.append(trace(source, thinned(points), mode="lines"))
    return traces


def marks(experiment: Experiment) -> list[tuple[int, str]]:
    """Steps at which the recipe itself changes, for the charts."""
    bandit, polish, last = experiment.firehose.bandit, experiment.polish, experiment.train.steps
    found: list[tuple[int, Any]] = []
    if experiment.firehose.policy == "bandit" and bandit:
        found.append((bandit.curriculum_warmup_steps, "all sources"))
    if polish:
        found.append((polish.at_step, "polish"))
    return [(step, text) for step, text in found if 0 < step < last]
