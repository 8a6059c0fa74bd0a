"""ANDREA: raw conversations -> megachat -> tokenizer -> tokens -> train -> archive -> report, one target an experiment."""

from snakemake.utils import min_version

min_version("9.20")


# Documents an image with a fitting Python; without `--sdm apptainer` it has no effect.
container: "docker://python:3.12-slim"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/tokenizer.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/archive.smk"
include: "workflow/rules/report.smk"


# train_<name> asks for every stage's file, not just for the last: a retraining that failed after a finished run has
# deleted the model but not the report, and Snakemake would find nothing to do.
for _exp in EXPERIMENTS.values():

    rule:
        name:
            f"train_{paths.short_name(_exp.name)}"
        default_target: _exp.name == "ANDREA-TINY"
        input:
            paths.every_file(_exp),


# A broken experiment must not stand in the way of the others: its mistake is told to who asks for it.
for _target, _mistake in BROKEN.items():

    rule:
        name:
            _target
        default_target: _target == "train_tiny"
        input:
            refused(_mistake),


onstart:
    start_run()


onerror:
    explain_stop()
