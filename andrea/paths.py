"""Where every stage of the DAG keeps its files, relative to the project: the names that rules and commands share."""

import re
from functools import cache
from pathlib import Path

from andrea.errors import ExperimentError
from andrea.experiment import SUFFIX, Experiment
from andrea.sources.catalogue import LOCAL, Dataset, entry, find_dataset, own_files
from andrea.sources.folder import KINDS

SPLITS = ("train", "heldout")
_ODD = re.compile("[{}\\n\\r\ud800-\udfff]")  # surrogates are how Python spells bytes that are no UTF-8
RawDataset = tuple[Dataset, str | None]  # a data set and, for the user's own text, its folder


def experiment_file(name: str) -> str:
    return f"experiments/{name}{SUFFIX}.json"


def short_name(name: str) -> str:
    """ANDREA-12M-FP32 -> 12m_fp32, as in the target train_12m_fp32."""
    return name.removeprefix("ANDREA-").lower().replace("-", "_")


def full_name(name: str) -> str:
    """The opposite, as people type it: tiny, ANDREA-12M, 12m_fp32."""
    stem = name.upper().replace("_", "-")
    return stem if stem.startswith("ANDREA-") else f"ANDREA-{stem}"


def raw_datasets(experiments: list[Experiment]) -> dict[str, RawDataset]:
    """Manifest -> data set, over all experiments; ExperimentError for a source that nobody knows."""
    found: dict[str, RawDataset] = {}
    for experiment in experiments:
        for source, spec in experiment.sources.items():
            known = entry(source, spec).dataset
            dataset = find_dataset(known) if spec.files is None else own_files(source, spec.files)
            found[f"data/raw/{dataset.name}/{dataset.revision}/manifest.json"] = dataset, spec.files
    return found


def clashes(experiments: list[Experiment]) -> dict[str, ExperimentError]:
    """Name of an experiment -> what is wrong, for all that would put the texts of two folders into one place."""
    readers: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        for source in (name for name, spec in experiment.sources.items() if spec.files is not None):
            readers.setdefault(source, []).append(experiment)
    found: dict[str, ExperimentError] = {}
    for source, sharers in readers.items():
        if len({e.sources[source].files for e in sharers}) > 1:
            mistake = ExperimentError(
                f'the source "{source}" must read one folder in all experiments: they share data/raw/{source}/{LOCAL}',
                got=", ".join(f"{e.sources[source].files} in {e.path.name}" for e in sharers),
                fix="give one of the sources another name",
            )
            found |= dict.fromkeys((e.name for e in sharers), mistake)
    return found


def raw_files(experiment: Experiment) -> list[str]:
    return sorted(raw_datasets([experiment]))


@cache
def own_texts(folder: str | None) -> list[str]:
    """The user's own text files, so that a new or an edited one is seen. A missing folder is explained by the pull.

    ExperimentError for names that Snakemake cannot keep: it takes braces for wildcards and knows no way to escape
    them, and writes names as UTF-8, one a line.
    """
    top = Path(folder) if folder else None
    found = [p for p in top.rglob("*") if p.suffix.lower() in KINDS and p.is_file()] if top else []
    visible = [p for p in found if top and not any(part.startswith(".") for part in p.relative_to(top).parts)]
    odd = [path for path in visible if _ODD.search(str(path))]
    if odd:
        must = "names of text files must be UTF-8, and have no braces and no line ends"
        raise ExperimentError(must, got=ascii(str(odd[0])), fix="rename the file")
    return sorted(map(str, visible))


def megachat_files(experiment: Experiment) -> list[str]:
    return _split_files(experiment, "megachat", "txt.zst")


def tokenizer_files(experiment: Experiment) -> list[str]:
    return [f"data/{experiment.name}/tokenizer/{file}" for file in ("tokenizer.json", "report.json")]


def tokens_files(experiment: Experiment) -> list[str]:
    return _split_files(experiment, "tokens", "btok")


def model_files(experiment: Experiment) -> list[str]:
    return [f"results/{experiment.name}/{file}" for file in ("model.bin", "resolved.json", "tokenizer.json")]


def archive_manifest(experiment: Experiment) -> str:
    """Of the last step; archives of earlier steps lie beside it."""
    return f"results/{experiment.name}/archive/{experiment.train.steps}/manifest.json"


def report_file(experiment: Experiment) -> str:
    return f"results/{experiment.name}/report.html"


def archived_steps(run: Path) -> list[int]:
    """Steps whose samples and state lie in archive/ of a run folder, in order."""
    return sorted(int(path.name) for path in (run / "archive").glob("*") if path.name.isdecimal())


def every_file(experiment: Experiment) -> list[str]:
    """The files of every stage: what the target of an experiment asks for."""
    return [
        *raw_files(experiment),
        *megachat_files(experiment),
        *tokenizer_files(experiment),
        *tokens_files(experiment),
        *model_files(experiment),
        archive_manifest(experiment),
        report_file(experiment),
    ]


def _split_files(experiment: Experiment, stage: str, suffix: str) -> list[str]:
    """The manifest first, then one file a source and split."""
    splits = [f"{source}.{split}.{suffix}" for source in experiment.sources for split in SPLITS]
    return [f"data/{experiment.name}/{stage}/{file}" for file in ["manifest.json", *splits]]
