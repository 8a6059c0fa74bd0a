"""The megachat stage: what stays, what goes and why, and that a text is never on both sides of the split."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.errors import DataError, ExperimentError, StorageError
from andrea.experiment import Experiment, MegachatSpec, SourceSpec, load
from andrea.files import sha256_file
from andrea.megachat import Conversation, Prose, Turn, decode, encode, read
from andrea.prepare import Sieve, normal, prepare, word_pattern
from andrea.sources.pull import pull

ROOT = Path(__file__).resolve().parent.parent
TINY = load(ROOT / "experiments" / "ANDREA-TINY-TRAIN.json")
ANY = SourceSpec(files=None, min_characters=0, max_characters=10**6, max_documents=None, exclude_words=())


def experiment(sources: Mapping[str, SourceSpec], heldout: float = 0.25) -> Experiment:
    return dataclasses.replace(TINY, sources=dict(sources), megachat=MegachatSpec(heldout_fraction=heldout))


def own(root: Path, source: str, records: list[Any], **limits: Any) -> SourceSpec:
    """A source of the user's own records, pulled into root/raw."""
    texts = root / source
    texts.mkdir()
    (texts / "a.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    pull(source, root / "raw" / source / "local", lock=root / "unused", offline=True, files=texts)
    return dataclasses.replace(ANY, files=str(texts), **limits)


def prose(*numbers: int, word: str = "text") -> list[Any]:
    return [{"text": f"{word} number {number}"} for number in numbers]


def run(root: Path, sources: Mapping[str, SourceSpec], heldout: float = 0.25) -> dict[str, Any]:
    prepare(experiment(sources, heldout), root / "raw", root / "out")
    return json.loads((root / "out" / "manifest.json").read_bytes())


def split(root: Path, source: str, name: str) -> list[str]:
    return list(read(root / "out" / f"{source}.{name}.txt.zst"))


def kept(root: Path, source: str) -> set[str]:
    return {*split(root, source, "train"), *split(root, source, "heldout")}


def test_files_and_manifest_agree(tmp_path: Path) -> None:
    """Guards the counts that the report and the token stage believe."""
    spec = own(
        tmp_path,
        "mine",
        [*prose(*range(100)), {"turns": [{"role": "user", "text": "a"}, {"role": "reply", "text": "> b"}]}],
    )
    part = run(tmp_path, {"mine": spec})["sources"]["mine"]
    assert part["in"] == {"documents": 101, "characters": sum(len(f"text number {i}") for i in range(100)) + 4}
    assert (part["dataset"], part["bucket"], part["revision"]) == ("mine", "all", "local")
    assert part["licence"]
    assert part["provenance"]
    for name in ("train", "heldout"):
        path = tmp_path / "out" / part[name]["file"]
        texts = split(tmp_path, "mine", name)
        assert part[name] == {
            "file": f"mine.{name}.txt.zst",
            "sha256": sha256_file(path),
            "documents": len(texts),
            "bytes": sum(len(text.encode()) for text in texts),
            "file_bytes": path.stat().st_size,
        }
    assert part["train"]["documents"] + part["heldout"]["documents"] == 101
    assert encode(Conversation((Turn("user", "a"), Turn("reply", "> b")))) in kept(tmp_path, "mine")


def test_every_reason_is_counted(tmp_path: Path) -> None:
    """Guards the filters and their order; what is dropped and what stays is the whole."""
    monologue = {"turns": [{"role": "user", "text": "nobody answers me here"}]}
    records = [
        *prose(*range(40)),
        {"text": "short"},
        {"text": "long " * 30},
        monologue,
        {"text": "a Damn fine day"},
        {"text": "the damned are not meant"},
        {"text": "go  \n AWAY now please"},
        {"text": "text NUMBER\t 7"},
        {"text": "cafe\u0301 number one"},
        {"text": "caf\u00e9 Number one"},
        *prose(*range(100, 110)),
    ]
    limits = {"min_characters": 10, "max_characters": 100, "max_documents": 45, "exclude_words": ("damn", "go away")}
    part = run(tmp_path, {"mine": own(tmp_path, "mine", records, **limits)})["sources"]["mine"]
    assert part["dropped"] == {
        "an excluded word": 2,
        "duplicate": 2,
        "longer than max_characters": 1,
        "no reply": 1,
        "over max_documents": 7,
        "shorter than min_characters": 1,
    }
    assert sum(part["dropped"].values()) + 45 == part["in"]["documents"] == len(records)
    texts = {decode(text) for text in kept(tmp_path, "mine")}
    assert Prose("the damned are not meant") in texts
    assert Prose("text number 102") in texts
    assert Prose("text number 103") not in texts, "max_documents takes the first"


def test_limits_count_content_not_marks(tmp_path: Path) -> None:
    """Guards the meaning of the limits: four turns of two characters are eight characters."""
    turns = [{"role": role, "text": "ab"} for role in ("user", "reply", "user", "reply")]
    sieve = Sieve(0.5)
    document = Conversation(tuple(Turn(turn["role"], turn["text"]) for turn in turns))
    for least, most, stays in ((8, 8, True), (9, 9, False), (7, 7, False)):
        spec = dataclasses.replace(ANY, min_characters=least, max_characters=most)
        assert bool(sieve.sift(document, spec, None)[0]) is stays


def test_duplicates_stay_in_the_source_named_first(tmp_path: Path) -> None:
    """Guards the order: the experiment's, whatever the names."""
    specs = {name: own(tmp_path, name, prose(*numbers)) for name, numbers in (("b", range(60)), ("a", range(30, 90)))}
    manifest = run(tmp_path, specs)
    assert "duplicate" not in manifest["sources"]["b"]["dropped"]
    assert manifest["sources"]["a"]["dropped"] == {"duplicate": 30}
    assert kept(tmp_path, "a") == {f"text number {i}" for i in range(60, 90)}
    assert manifest["totals"]["dropped"] == {"duplicate": 30}
    assert manifest["totals"]["train"]["documents"] + manifest["totals"]["heldout"]["documents"] == 90


def test_a_text_is_held_out_wherever_it_stands(tmp_path: Path) -> None:
    """Guards validation: two experiments, two sources, one text in any case and spacing: always the same side."""
    run(tmp_path, {"one": own(tmp_path, "one", prose(*range(200)))})
    first = set(split(tmp_path, "one", "heldout"))
    shouted = [{"text": f"  TEXT\nnumber {i}"} for i in reversed(range(200))]
    run(tmp_path, {"two": own(tmp_path, "two", shouted)})
    assert {normal(text) for text in split(tmp_path, "two", "heldout")} == first
    assert 20 < len(first) < 80, "a quarter of 200"


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_the_share_is_the_one_asked_for(fraction: float) -> None:
    sieve = Sieve(fraction)
    splits = [sieve.sift(Prose(f"document {i}"), ANY, None)[0] for i in range(20_000)]
    assert abs(splits.count("heldout") - 20_000 * fraction) < 4 * (20_000 * fraction) ** 0.5


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(max_codepoint=127)) | st.text("aB \t\n\r\x0b\x1c\x1f.\x00"))
def test_the_quick_way_for_ascii_is_the_same(text: str) -> None:
    """Guards the fast path of `normal` against the plain definition."""
    assert normal(text) == " ".join(text.casefold().split())


def test_words_are_whole_and_any_case() -> None:
    found = word_pattern(("Stra\u00dfe", "c++", "new york"))
    assert found is not None
    hits = ["in der STRASSE.", "I like C++!", "to new \n york?"]
    misses = ["strassen", "c+", "abc++", "anew york", "new yorker"]
    assert [bool(found.search(normal(text))) for text in hits + misses] == [True] * 3 + [False] * 5
    assert word_pattern(()) is None


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    """Guards determinism over processes: hash seeds and the order of sets must not show."""
    own(tmp_path, "mine", prose(*range(300)))
    script = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path; import dataclasses, test_prepare as t\n"
        "root = Path(sys.argv[3])\n"
        "t.prepare(t.experiment({'mine': dataclasses.replace(t.ANY, files=str(root / 'mine'))}), root / 'raw', root / sys.argv[4])\n"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", script, str(ROOT), str(ROOT / "tests"), str(tmp_path), f"out{seed}"]
        subprocess.run(command, check=True, env={"PYTHONHASHSEED": seed}, capture_output=True)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / f"out{seed}").iterdir()} for seed in "12")
    assert one == two
    assert len(one) == 3


def test_files_of_sources_that_went_are_removed(tmp_path: Path) -> None:
    """Guards the folder: what the manifest does not name is not there."""
    specs = {name: own(tmp_path, name, prose(*range(50), word=name)) for name in ("a", "b")}
    run(tmp_path, specs)
    run(tmp_path, {"b": specs["b"]})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "b.heldout.txt.zst",
        "b.train.txt.zst",
        "manifest.json",
    ]


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(root: Path, sources: Mapping[str, SourceSpec], says: str, heldout: float = 0.25) -> None:
    """An error, and no manifest: the stage after this one must not start on a half corpus."""
    with pytest.raises(DataError, match=says):
        run(root, sources, heldout)
    assert not (root / "out" / "manifest.json").exists()


def test_an_empty_source_is_an_error(tmp_path: Path) -> None:
    spec = own(tmp_path, "mine", prose(*range(9)), min_characters=1000)
    refused(tmp_path, {"mine": spec}, r'"mine" must keep a document\n  got: none of 9; dropped: .*min_characters.: 9')


def test_a_source_that_only_repeats_another_is_an_error(tmp_path: Path) -> None:
    specs = {name: own(tmp_path, name, prose(*range(50))) for name in ("a", "b")}
    refused(tmp_path, specs, r'"b" must keep a document\n  got: none of 50; dropped: {.duplicate.: 50}')


@pytest.mark.parametrize(("heldout", "name"), [(1e-9, "heldout"), (1 - 1e-9, "train")])
def test_an_empty_split_is_an_error(tmp_path: Path, heldout: float, name: str) -> None:
    """Guards validation: without held-out text it would have nothing to measure, and say so hours later."""
    spec = own(tmp_path, "mine", prose(*range(20)))
    refused(tmp_path, {"mine": spec}, f"must have a document in the {name} split", heldout)


def test_an_unknown_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match='did you mean "chitchat"'):
        run(tmp_path, {"chit-chat": ANY})


def test_raw_text_must_be_pulled_and_the_experiments_own(tmp_path: Path) -> None:
    """Guards against another folder's text under the same name, another revision, and text that was never pulled."""
    refused(tmp_path, {"synthetic-chat": ANY}, "the manifest of a pulled data set must exist")
    spec = own(tmp_path, "mine", prose(*range(9)))
    refused(tmp_path, {"mine": dataclasses.replace(spec, files="elsewhere")}, "must come from elsewhere")
    manifest = tmp_path / "raw" / "mine" / "local" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"local"', '"other"'))
    refused(tmp_path, {"mine": spec}, r"must be \('mine', 'local', 'files'\)")
    manifest.write_text(text.replace('"all"', '"some"'))
    refused(tmp_path, {"mine": spec}, "must have a bucket all")


def test_a_damaged_shard_is_an_error(tmp_path: Path) -> None:
    """Guards the sha256 of raw shards: a flipped bit is found before its text is used."""
    spec = own(tmp_path, "mine", prose(*range(50)))
    run(tmp_path, {"mine": spec})
    shard = tmp_path / "raw" / "mine" / "local" / "all-00000.jsonl.zst"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    refused(tmp_path, {"mine": spec}, "must have the sha256")


def test_a_folder_that_is_a_file_is_a_storage_error(tmp_path: Path) -> None:
    spec = own(tmp_path, "mine", prose(*range(50)))
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(StorageError):
        run(tmp_path, {"mine": spec})


# --- the script ------------------------------------------------------------------------------------------------------


def script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "prep-megachat.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_script_prepares_the_tiny_experiment(tmp_path: Path) -> None:
    """Guards the pipeline's own text from end to end: package and generator, pulled, prepared and counted."""
    for dataset, revision in (("chitchat", "0.9.0"), ("synthetic-chat", "v1")):
        out = tmp_path / "data" / "raw" / dataset / revision
        pull(dataset, out, lock=tmp_path / "unused", offline=True, files=None)
    path = str(ROOT / "experiments" / "ANDREA-TINY-TRAIN.json")
    result = script(tmp_path, "--experiment", path)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "data" / "ANDREA-TINY" / "megachat"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert list(manifest["sources"]) == list(TINY.sources)
    assert manifest["totals"]["train"]["bytes"] > 10_000_000
    for source in TINY.sources:
        for text in read(folder / f"{source}.heldout.txt.zst"):
            assert isinstance(decode(text), Conversation)


def test_the_script_explains_itself(tmp_path: Path) -> None:
    result = script(tmp_path, "--experiment", str(ROOT / "experiments" / "ANDREA-TINY-TRAIN.json"))
    assert result.returncode == 1
    assert result.stderr.startswith("error: the manifest of a pulled data set must exist")
    assert "Traceback" not in result.stderr
