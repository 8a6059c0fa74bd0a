"""The DAG as people use it: what a target lists, and which edit reruns what."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from micro_project import STEPS, Micro, write_chats

ALL = {"raw_own_texts", "raw_synthetic_chat", "megachat", "tokenizer", "tokens", "train", "archive", "report"}
FROM_TRAIN = {"train", "archive", "report"}
FROM_TOKENIZER = FROM_TRAIN | {"tokenizer", "tokens"}
FROM_MEGACHAT = FROM_TOKENIZER | {"megachat"}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Micro:
    """A project in which nothing has run."""
    return Micro.create(tmp_path_factory.mktemp("fresh") / "project")


@pytest.fixture
def restored(finished: Micro) -> Iterator[Micro]:
    """The finished project for one dry run: edited texts get their old content back."""
    before = {path: path.read_bytes() for path in code_of(finished)}
    yield finished
    for path in code_of(finished):
        if path not in before:
            path.unlink()
    for path, data in before.items():
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)


def code_of(micro: Micro) -> list[Path]:
    folders = [micro.folder / name for name in ("experiments", "andrea", "scripts", "workflow", "texts")]
    return [
        path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]


def test_target_lists_every_stage(fresh: Micro) -> None:
    """Guards against a stage that dropped out of the DAG, and against targets that are named otherwise."""
    assert fresh.planned() == ALL
    assert fresh.planned("train_12m_fp32") >= {"raw_hermes3", "raw_chitchat", "train", "archive", "report"}
    assert fresh.planned("train_120m") >= {"raw_hermes3", "tokenizer"}
    assert fresh.planned("train_tiny") >= {"raw_chitchat", "raw_synthetic_chat"}


def test_missing_gpu_is_found_before_the_first_download(fresh: Micro) -> None:
    """Guards against gigabytes and hours spent before the trainer says that there is no GPU."""
    done = fresh.snakemake("--cores", "1", "train_12m")
    assert done.returncode == 1
    assert '"engine": "cpu"' in done.stdout
    assert "days on" in done.stdout
    assert not (fresh.folder / "data").exists()
    assert "lock" not in str(list((fresh.folder / ".snakemake" / "locks").glob("*")))


def test_another_working_folder_is_refused(fresh: Micro, tmp_path: Path) -> None:
    """Guards against a run that pulls its data there, and then does not find its own scripts."""
    done = fresh.snakemake("--cores", "1", "--directory", str(tmp_path), "train_micro")
    assert done.returncode == 1
    assert "project's own folder" in done.stdout
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda text: text.replace('"lr"', '"lrr"'), 'did you mean "lr"?'),
        (lambda text: text[:-20], "must be JSON"),
        (lambda text: text.replace('"n_heads": 2', '"n_heads": 3'), "must be a multiple of"),
        (lambda text: text.replace('"synthetic-chat"', '"synthetic-chatt"'), 'did you mean "synthetic-chat"?'),
    ],
)
def test_wrong_experiment_is_one_screen(fresh: Micro, change: Callable[[str], str], part: str) -> None:
    """Guards against a traceback of pages where a key is misspelt."""
    before = fresh.path.read_text()
    fresh.path.write_text(change(before))
    done = fresh.snakemake("-n", "train_micro")
    fresh.path.write_text(before)
    assert done.returncode == 1
    assert part in done.stdout
    assert "ANDREA-MICRO-TRAIN.json" in done.stdout or "synthetic-chatt" in done.stdout
    assert len(done.stdout.splitlines()) < 25
    assert "most recent call" not in done.stdout


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda text: text[:20], "must be JSON"),
        (lambda text: text.replace('"synthetic-chat"', '"x-chat"').replace("MICRO", "BROKEN"), "in the catalogue"),
    ],
)
def test_a_broken_experiment_stops_only_itself(fresh: Micro, change: Callable[[str], str], part: str) -> None:
    """Guards against a half-written file of one experiment that blocks the training of all others."""
    broken = fresh.path.with_name("ANDREA-BROKEN-TRAIN.json")
    broken.write_text(change(fresh.path.read_text()))
    try:
        done = fresh.snakemake("-n", "train_micro")
        assert done.returncode == 0
        (line,) = [line for line in done.stdout.splitlines() if "train_broken" in line]
        assert line.startswith("passed over: ") and line.endswith(" (train_broken says more)")
        asked = fresh.snakemake("-n", "train_broken")
        assert asked.returncode == 1 and part in asked.stdout and "Traceback" not in asked.stdout
    finally:
        broken.unlink()


def test_two_folders_under_one_source_name(fresh: Micro) -> None:
    """An experiment would train on the texts of another one, as both are pulled to one place; all others go on."""
    other = fresh.path.with_name("ANDREA-OTHER-TRAIN.json")
    value = json.loads(fresh.path.read_text())
    value["name"] = "ANDREA-OTHER"
    value["sources"]["texts"]["files"] = "elsewhere"
    other.write_text(json.dumps(value))
    try:
        done = fresh.snakemake("-n", "train_micro")
        assert fresh.planned("train_tiny") >= {"raw_chitchat", "train"}
    finally:
        other.unlink()
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert "texts in ANDREA-MICRO-TRAIN.json, elsewhere in ANDREA-OTHER-TRAIN.json" in done.stdout


def test_everything_is_made_and_then_rests(finished: Micro) -> None:
    """Guards against a stage whose output another name expects, and against a DAG that never comes to rest."""
    results = {path.relative_to(finished.results).as_posix() for path in finished.results.rglob("*") if path.is_file()}
    assert {"model.bin", "resolved.json", "tokenizer.json", "report.html"} <= results
    assert f"archive/{STEPS}/manifest.json" in results
    assert not [name for name in results if "loss" in name]
    assert finished.planned() == set()


def test_snakemakes_own_report_holds_ours(finished: Micro, tmp_path: Path) -> None:
    """Guards against a caption that does not render, and a page that no category lists."""
    done = finished.snakemake("--report", str(tmp_path / "report.html"), "train_micro")
    assert done.returncode == 0, done.stdout
    text = (tmp_path / "report.html").read_text()
    for part in ("How ANDREA-MICRO was grown", '"Experiments"', "grows small chat language models"):
        assert part in text


def in_experiment(section: str, **values: Any) -> Callable[[Micro], None]:
    def change(micro: Micro) -> None:
        micro.edit(lambda value: value[section].update(values))

    return change


def filtered(micro: Micro) -> None:
    micro.edit(lambda value: value["sources"]["texts"].update(exclude_words=["hill"]))


def described(micro: Micro) -> None:
    micro.edit(lambda value: value.update(description="Other words."))


def reordered(micro: Micro) -> None:
    value = json.loads(micro.path.read_text())
    micro.path.write_text(json.dumps(value, sort_keys=True, indent=7))


def commented(file: str) -> Callable[[Micro], None]:
    def change(micro: Micro) -> None:
        path = micro.folder / file
        path.write_text(f"# a better comment\n{path.read_text()}\n\n\n# and one more\n")

    return change


def edited(file: str, line: str = "\nA_NEW_CONSTANT = 1\n") -> Callable[[Micro], None]:
    def change(micro: Micro) -> None:
        path = micro.folder / file
        path.write_text(path.read_text() + line)

    return change


def another_text(micro: Micro) -> None:
    write_chats(micro.folder / "texts" / "more, with a 'name'.jsonl", 77)


def edited_text(micro: Micro) -> None:
    write_chats(micro.folder / "texts" / "chats0.jsonl", 78)


@pytest.mark.parametrize(
    ("change", "reruns"),
    [
        pytest.param(in_experiment("train", lr=0.004), FROM_TRAIN, id="train.lr"),
        pytest.param(in_experiment("train", steps=STEPS + 2), FROM_TRAIN, id="train.steps"),
        pytest.param(in_experiment("tokenizer", segments=60), FROM_TOKENIZER, id="tokenizer.segments"),
        pytest.param(in_experiment("megachat", heldout_fraction=0.1), FROM_MEGACHAT, id="megachat"),
        pytest.param(filtered, FROM_MEGACHAT, id="filter of a source"),
        pytest.param(edited("andrea/prepare.py"), FROM_MEGACHAT, id="code of megachat"),
        pytest.param(edited("andrea/tokenizer/harris.py"), FROM_TOKENIZER, id="code of the tokenizer"),
        pytest.param(edited("andrea/tokens.py"), FROM_TOKENIZER - {"tokenizer"}, id="code of tokens"),
        pytest.param(edited("andrea/sources/folder.py"), FROM_MEGACHAT | {"raw_own_texts"}, id="code of a pull"),
        pytest.param(edited("andrea/archive.py"), {"archive", "report"}, id="code of the archive"),
        pytest.param(edited("andrea/report/template.html", "<p>new</p>"), {"report"}, id="template"),
        pytest.param(another_text, FROM_MEGACHAT | {"raw_own_texts"}, id="another text"),
        pytest.param(edited_text, FROM_MEGACHAT | {"raw_own_texts"}, id="edited text"),
    ],
)
def test_an_edit_reruns_its_stage_and_what_follows(
    restored: Micro, change: Callable[[Micro], None], reruns: set[str]
) -> None:
    """Guards against stale models, and against days of work that are thrown away for nothing."""
    change(restored)
    assert restored.planned() == reruns


def test_harmless_edits_rerun_nothing(restored: Micro) -> None:
    """Guards against lost days: words, layout and the trainer's code, all at once."""
    described(restored)
    reordered(restored)
    for file in ("andrea/engine/cpu.py", "andrea/proxy.py", "andrea/training/loop.py"):
        edited(file)(restored)
    for file in ("andrea/prepare.py", "andrea/tokenizer/harris.py", "andrea/tokens.py", "andrea/archive.py"):
        commented(file)(restored)
    for rule in sorted((restored.folder / "workflow" / "rules").glob("*.smk")):
        commented(f"workflow/rules/{rule.name}")(restored)
    assert restored.planned() == set()


def test_deleted_files_are_made_again(finished: Micro, tmp_path: Path) -> None:
    """Guards against a DAG that is content with the report alone."""
    micro = finished.copy(tmp_path / "project")
    (micro.folder / "data" / "ANDREA-MICRO" / "tokens" / "texts.heldout.btok").unlink()
    assert micro.planned() == FROM_TOKENIZER - {"tokenizer"}


def test_failed_retraining_is_not_forgotten(finished: Micro, tmp_path: Path) -> None:
    """Guards against "Nothing to be done" with an old report, after an edit whose training failed."""
    micro = finished.copy(tmp_path / "project")
    proxy = micro.folder / "andrea" / "proxy.py"
    working = proxy.read_text()
    in_experiment("train", lr=0.004)(micro)
    proxy.write_text('raise SystemExit("no luck today")\n')
    failed = micro.snakemake("--cores", "1", "train_micro")
    assert failed.returncode == 1
    assert "no luck today" in failed.stdout
    assert not (micro.results / "model.bin").exists()
    assert (micro.results / "report.html").exists()
    proxy.write_text(working)
    assert micro.planned() == FROM_TRAIN


def test_lowered_steps_are_refused_while_the_model_is_there(finished: Micro, tmp_path: Path) -> None:
    """Guards against Snakemake deleting a finished model for a training that the trainer then refuses."""
    micro = finished.copy(tmp_path / "project")
    in_experiment("train", steps=STEPS - 2)(micro)
    done = micro.snakemake("--cores", "1", "train_micro")
    assert done.returncode == 1
    assert f"finished step {STEPS}" in done.stdout and "andrea fresh" in done.stdout
    assert (micro.results / "model.bin").exists()


def test_raised_steps_go_on_and_keep_the_old_archive(finished: Micro, tmp_path: Path) -> None:
    """Guards against a longer run that starts anew, and against the loss of the shorter one's archive."""
    micro = finished.copy(tmp_path / "project")
    old = (micro.results / "archive" / str(STEPS) / "model.bin").read_bytes()
    in_experiment("train", steps=STEPS + 4)(micro)
    said = micro.grow()
    assert f"step {STEPS} of {STEPS + 4}" in said
    assert (micro.results / "archive" / str(STEPS) / "model.bin").read_bytes() == old
    assert (micro.results / "archive" / str(STEPS + 4) / "model.bin").exists()
    history = json.loads((micro.run_folder / "ANDREA-MICRO.loss.json").read_text())
    assert [r["step"] for r in history if "loss" in r] == list(range(1, STEPS + 5))
