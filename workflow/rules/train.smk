"""train: days of work that may be stopped at any moment and goes on where it was.

The run folder runs/<EXP> is in no output and no log, because Snakemake deletes those when a job fails or starts;
the trainer checks by its own fingerprint whether a checkpoint there belongs to this experiment. `exec` makes the
trainer Snakemake's direct child, so that signals reach it; a pipe to `tee` would break at Ctrl-C before it has saved.
Nobody is asked anything here, hours after the start: the question comes before the first stage, in start_run.
Engine code is not among the params: an edit of it does not throw away a model (the report shows the difference).
"""


rule train:
    input:
        tokens=files_of(paths.tokens_files),
        tokenizer="data/{exp}/tokenizer/tokenizer.json",
    output:
        model="results/{exp}/model.bin",
        resolved="results/{exp}/resolved.json",
        tokenizer="results/{exp}/tokenizer.json",
    log:
        "logs/{exp}/train.log",
    threads: all_cores
    resources:
        gpu=wants_gpu,
    params:
        experiment=experiment_file,
        run="runs/{exp}",
        config=section("model", "train", "firehose", "polish", "validation", "samples", "checkpoints"),
    shell:
        "ln -sfn ../../{params.run}/train.log {log}; "
        "exec python -m andrea train {params.experiment} --threads {threads} </dev/null"
