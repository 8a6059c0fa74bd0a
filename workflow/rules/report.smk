"""report: one page that shows the whole run and needs no network."""


rule report:
    input:
        model="results/{exp}/model.bin",
        resolved="results/{exp}/resolved.json",
        archive=files_of(paths.archive_manifest),
        megachat="data/{exp}/megachat/manifest.json",
        tokenizer="data/{exp}/tokenizer/report.json",
        tokens="data/{exp}/tokens/manifest.json",
    output:
        report(
            "results/{exp}/report.html",
            caption="../report/report.rst",
            category="Experiments",
            labels={"experiment": "{exp}"},
        ),
    log:
        "logs/{exp}/report.log",
    params:
        experiment=experiment_file,
        code=sources(stagecode.REPORT),
    shell:
        "python -m andrea report {params.experiment} 2>&1 | tee {log}"
