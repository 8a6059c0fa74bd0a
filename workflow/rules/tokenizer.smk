"""tokenizer: learned from the megachat. tokens: the megachat as token ids, one file a source and split."""


rule tokenizer:
    input:
        files_of(paths.megachat_files),
    output:
        tokenizer="data/{exp}/tokenizer/tokenizer.json",
        report="data/{exp}/tokenizer/report.json",
    log:
        "logs/{exp}/tokenizer.log",
    benchmark:
        "logs/{exp}/tokenizer.tsv"
    threads: workflow.cores
    params:
        experiment=experiment_file,
        folder=subpath(output.tokenizer, parent=True),
        config=section("tokenizer", "firehose.weights"),
        code=sources(stagecode.TOKENIZER),
    shell:
        "python -m andrea tokenizer {params.experiment} --out {params.folder} 2>&1 | tee {log}"


for _exp in EXPERIMENTS.values():

    rule:
        name:
            f"tokens_{paths.short_name(_exp.name)}"
        input:
            megachat=paths.megachat_files(_exp),
            tokenizer=f"data/{_exp.name}/tokenizer/tokenizer.json",
        output:
            paths.tokens_files(_exp),
        log:
            f"logs/{_exp.name}/tokens.log",
        benchmark:
            f"logs/{_exp.name}/tokens.tsv"
        threads: workflow.cores
        params:
            experiment=paths.experiment_file(_exp.name),
            folder=subpath(output[0], parent=True),
            code=sources(stagecode.TOKENS),
        shell:
            "python -m andrea tokens {params.experiment} --out {params.folder} --threads {threads} 2>&1 | tee {log}"
