"""archive: what the trainer set aside, with the model, the tokenizer and a hash of each file."""


rule archive:
    input:
        model="results/{exp}/model.bin",
        resolved="results/{exp}/resolved.json",
        tokenizer="results/{exp}/tokenizer.json",
        megachat="data/{exp}/megachat/manifest.json",
    output:
        "results/{exp}/archive/{step}/manifest.json",
    log:
        "logs/{exp}/archive-{step}.log",
    benchmark:
        "logs/{exp}/archive-{step}.tsv"
    params:
        experiment=experiment_file,
        code=sources(stagecode.ARCHIVE),
    shell:
        "python -m andrea archive {params.experiment} 2>&1 | tee {log}"
