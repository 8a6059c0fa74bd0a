"""Helpers of all rules: which experiments there are, what of them a stage reads, and which code stands behind it."""

import dataclasses
import re
import shlex
import sys
import time
from pathlib import Path

ROOT = Path(workflow.basedir)  # the project
sys.path.insert(0, str(ROOT))

from andrea import consent, hooks, paths, stagecode
from andrea.errors import AndreaError
from andrea.experiment import canonical
from andrea.sourcehash import source_hash

STARTED = time.time()
hooks.use_this_python(ROOT)


def explained(function):
    """Show a user's mistake as Snakemake's own short error."""

    def call(*args):
        try:
            return function(*args)
        except AndreaError as mistake:
            raise WorkflowError(str(mistake)) from None

    return call


explained(hooks.require_project)(ROOT)
_loaded, BROKEN = explained(hooks.load_experiments)(ROOT)
EXPERIMENTS = {experiment.name: experiment for experiment in _loaded}
RAW = paths.raw_datasets(_loaded)

for _target in sorted(BROKEN.keys() & set(sys.argv)):  # asked later, by refused(), Snakemake adds a traceback
    raise WorkflowError(str(BROKEN[_target]))


wildcard_constraints:
    exp="|".join(map(re.escape, EXPERIMENTS)) or "none",
    step=r"\d+",


def experiment_file(wildcards):
    return paths.experiment_file(wildcards.exp)


def refused(mistake):
    """Input function of a target that cannot be made."""

    def refuse(wildcards):
        raise WorkflowError(str(mistake))

    return refuse


def files_of(stage):
    """Input function: the files of one stage, by a function of andrea.paths."""
    return lambda wildcards: stage(EXPERIMENTS[wildcards.exp])


def sections(experiment, *parts):
    """Canonical JSON of the named parts ("train", "firehose.weights"): only a real change of them reruns a rule."""
    values = {}
    for part in parts:
        head, _, field = part.partition(".")
        value = experiment.section(head)
        values[part] = value[field] if field else value
    return canonical(values)


def section(*parts):
    return lambda wildcards: sections(EXPERIMENTS[wildcards.exp], *parts)


def sources(patterns):
    """Hash of the code behind a shell command, which Snakemake does not see."""
    return explained(source_hash)(ROOT, patterns)


def raw_name(dataset):
    """Unique also when a user's own source is named like a data set of the catalogue."""
    own = "own_" if dataset.kind == "files" else ""
    return f"raw_{own}{dataset.name}".replace("-", "_")


def pull_command(dataset, folder):
    """What a person would type, without --out."""
    if dataset.name == "hermes3":
        return "python scripts/pull-hermes3.py"
    own = f" --files {shlex.quote(folder)}" if folder else ""
    return f"python -m andrea pull {dataset.name}{own}"


def all_cores(wildcards):
    """A function, because `--unlock` and `--summary` have no number of cores."""
    return workflow.cores


def wants_gpu(wildcards):
    return int(EXPERIMENTS[wildcards.exp].train.engine == "cuda")


def to_train():
    """Names of the experiments that this run trains."""
    return [job.wildcards.exp for job in workflow.dag.needrun_jobs() if job.rule.name == "train"]


def keep_tokens(names):
    """The experiments of `names` whose token files this run does not remake."""
    remade = {job.rule.name for job in workflow.dag.needrun_jobs()}
    return [EXPERIMENTS[name] for name in names if f"tokens_{paths.short_name(name)}" not in remade]


def start_run():
    """Show that this run is alive, find what cannot work before the first download, pass SIGTERM on to the trainer."""
    hooks.hold_guard(Path())
    names = to_train()
    experiments = [EXPERIMENTS[name] for name in names]
    explained(hooks.require_engines)(experiments)
    explained(hooks.require_steps)(Path(), keep_tokens(names))
    for line in consent.outlooks(experiments, Path()):
        print(line, file=sys.stderr)
    explained(consent.ask)(experiments, Path())
    hooks.forward_sigterm(Path())


def explain_stop():
    for line in hooks.stopped(Path(), to_train(), since=STARTED):
        print(line, file=sys.stderr)
