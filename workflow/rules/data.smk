"""raw: every data set once, shared by all experiments. megachat: the sources of one experiment, filtered and split."""

for _manifest, (_dataset, _folder) in RAW.items():

    rule:
        name:
            raw_name(_dataset)
        input:
            paths.own_texts(_folder),
        output:
            _manifest,
        log:
            f"logs/raw/{_dataset.name}-{_dataset.revision}.log",
        benchmark:
            f"logs/raw/{_dataset.name}-{_dataset.revision}.tsv"
        params:
            command=pull_command(_dataset, _folder),
            folder=subpath(output[0], parent=True),
            entry=canonical(dataclasses.asdict(_dataset)),
            code=sources(stagecode.PULL[_dataset.kind]),
        shell:
            "{params.command} --out {params.folder} 2>&1 | tee {log}"


for _exp in EXPERIMENTS.values():

    rule:
        name:
            f"megachat_{paths.short_name(_exp.name)}"
        input:
            paths.raw_files(_exp),
        output:
            paths.megachat_files(_exp),
        log:
            f"logs/{_exp.name}/megachat.log",
        benchmark:
            f"logs/{_exp.name}/megachat.tsv"
        threads: all_cores
        params:
            experiment=paths.experiment_file(_exp.name),
            folder=subpath(output[0], parent=True),
            config=sections(_exp, "sources", "megachat"),
            code=sources(stagecode.MEGACHAT),
        shell:
            "python scripts/prep-megachat.py --experiment {params.experiment} --out {params.folder} 2>&1 | tee {log}"
