"""Encoding loses nothing, the exported file and our encoder agree, and text can never become BOS."""

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizer_texts import ANY_TEXT, conversations

from andrea.errors import DataError, RunError
from andrea.files import sha256_file
from andrea.tokenizer import BOS, Tokenizer, bpe, harris, load, parallel
from andrea.tokenizer.encoders import id_type
from andrea.tokenizer.exported import from_merges, from_segments, to_bytes

TEXTS = [*conversations(150), *["> 日本語 한국어 हिन्दी 😂😂 é\n< <|bos|> e\u0301 — ½"] * 20]
SIZES = {"segments": 180, "max_segment_bytes": 16, "min_count": 3}


@pytest.fixture(scope="module", params=["harris", "bpe"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    learned = from_segments(harris.train(TEXTS, **SIZES))
    if request.param == "bpe":
        learned = from_merges(bpe.train(TEXTS, **SIZES))
    file: Path = tmp_path_factory.mktemp(request.param) / "tokenizer.json"
    file.write_bytes(to_bytes(learned.document))
    return file


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return load(path)


@pytest.fixture(scope="module")
def library(path: Path) -> tokenizers.Tokenizer:
    loaded = tokenizers.Tokenizer.from_file(str(path))
    loaded.encode_special_tokens = True
    return loaded


def test_id_layout(path: Path, tokenizer: Tokenizer, library: tokenizers.Tokenizer) -> None:
    """0-255 bytes, 256 BOS, segments from 257: models and other tools rely on it."""
    assert tokenizer.vocab_size == library.get_vocab_size() == 180 + 257
    assert tokenizer.token_bytes[:256] == [bytes([n]) for n in range(256)]
    assert tokenizer.bos == BOS == library.token_to_id("<|bos|>") == 256
    assert tokenizer.token_bytes[256] == b""
    assert min(map(len, tokenizer.token_bytes[257:])) >= 2
    assert len(set(tokenizer.token_bytes)) == tokenizer.vocab_size
    assert tokenizer.sha256 == sha256_file(path)
    assert tokenizer.dtype == np.uint16
    assert id_type(1 << 16) == np.uint16
    assert id_type((1 << 16) + 1) == np.uint32


@given(text=ANY_TEXT)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip_and_the_same_ids_as_the_library(
    tokenizer: Tokenizer, library: tokenizers.Tokenizer, text: str
) -> None:
    """Emoji, joiners, control characters, marks and "<|bos|>" in a text are text; no id is BOS."""
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint16
    assert tokenizer.decode(ids) == text
    assert BOS not in ids
    assert library.encode(text).ids == ids.tolist()
    assert library.decode(ids.tolist(), skip_special_tokens=False) == text


def test_ordinary_text_gives_the_same_ids_as_the_library(tokenizer: Tokenizer, library: tokenizers.Tokenizer) -> None:
    """The strings of the property test hold few long runs of words."""
    fresh = conversations(60, seed=9)
    assert [ids.tolist() for ids in tokenizer.encode_many(fresh)] == [library.encode(text).ids for text in fresh]


@given(data=st.binary(max_size=200))
def test_harris_takes_any_bytes(data: bytes) -> None:
    """Bytes that are not UTF-8 come back as they were; only `decode` replaces them."""
    tokenizer = ANY_BYTES
    ids = tokenizer.encode_bytes(data)
    assert tokenizer.decode_bytes(ids) == data
    assert tokenizer.decode(ids) == data.decode(errors="replace")


ANY_BYTES = Tokenizer(from_segments([b"\xff\xfe", b"\x00\x00", b"\xc3\xa9", b"ab", b"abc"]), "")


def test_lone_surrogates_are_replaced_and_counted(tokenizer: Tokenizer) -> None:
    """The library raises TypeError for them, in the middle of a corpus."""
    with pytest.warns(UnicodeWarning, match="2 lone surrogates"):
        ids = tokenizer.encode("a\ud800b\udfff😂")
    assert tokenizer.decode(ids) == "a\ufffdb\ufffd😂"
    with pytest.warns(UnicodeWarning, match="3 lone surrogates"):
        assert len(list(tokenizer.encode_many(["\ud800", "x", "\udc00\udfff"]))) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer.encode("fine 😂")


def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer) -> None:
    """Python would take -1 for the last token."""
    assert tokenizer.decode([]) == ""
    for ids in ([-1], [tokenizer.vocab_size], np.array([1 << 31])):
        with pytest.raises(DataError, match="token ids must be 0 to 436"):
            tokenizer.decode_bytes(ids)
    assert tokenizer.decode([BOS, 104, 105, BOS]) == "hi"


def test_a_cut_character_decodes_to_a_replacement(tokenizer: Tokenizer) -> None:
    """A model may stop inside a character; the text before it must still come out."""
    assert tokenizer.decode([104, 105, 0xF0, 0x9F]) == "hi\ufffd"


def test_processes_change_nothing(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches come back in the order in which they went out, whichever worker is faster."""
    monkeypatch.setattr(parallel, "BATCH_BYTES", 4000)
    texts = [*conversations(120, seed=3), "", "x" * 30_000, ""]
    one = list(tokenizer.encode_many(texts, bos=True))
    two = list(tokenizer.encode_many(iter(texts), 2, bos=True))
    assert len(one) == len(texts)
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, two, strict=True))
    assert [tokenizer.decode(ids) for ids in two] == texts
    assert all(ids[0] == BOS for ids in two)


def test_reading_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool's own `map` takes in the whole corpus at once."""
    monkeypatch.setattr(parallel, "BATCH_BYTES", 1000)
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for text in ["ab" * 500] * 200:
            taken += 1
            yield text

    encoded = ANY_BYTES.encode_many(texts(), 2)
    next(encoded)
    assert taken < 20
    encoded.close()


def test_a_dead_worker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory, the system kills a worker; waiting for it would take for ever."""
    monkeypatch.setattr(parallel, "BATCH_BYTES", 1000)
    others = multiprocessing.active_children()
    encoded = ANY_BYTES.encode_many(["ab" * 500] * 200, 2)
    next(encoded)
    for worker in multiprocessing.active_children():
        if worker not in others:
            worker.kill()
    with pytest.raises(RunError, match="must stay alive"):
        list(encoded)


def test_the_bpe_cuts_a_prompt_as_in_training() -> None:
    """GPT-2's pieces would give the space of "\\n< " to the word behind it."""
    learned = from_merges(bpe.train(TEXTS, **SIZES))
    tokenizer = Tokenizer(learned, "")
    mark = 257 + learned.segments.index(b"\n< ")
    for before, after in (("> hi", "I know."), ("> hi  \n", " the"), ("> ", ""), ("", "x\n< y")):
        prompt = tokenizer.encode(before + "\n< ").tolist()
        assert tokenizer.encode(before + "\n< " + after).tolist()[: len(prompt)] == prompt
        assert prompt[-1] == mark


def test_training_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """Sets of strings have another order in every process; a tokenizer must not."""
    program = (
        "import sys; from tokenizer_texts import conversations; from andrea.files import sha256_bytes\n"
        "from andrea.tokenizer import bpe, harris\n"
        "sizes = {'segments': 150, 'max_segment_bytes': 16, 'min_count': 3}; texts = conversations(80)\n"
        "print(sha256_bytes(repr([harris.train(texts, **sizes), bpe.train(texts, **sizes)]).encode()))"
    )
    folder = Path(__file__).resolve().parent
    seen = set()
    for seed in ("0", "1", "77"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{folder}{os.pathsep}{folder.parent}"}
        seen.add(subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True).stdout)
    assert len(seen) == 1


ORPHANS = """
import multiprocessing, sys, time
from andrea.tokenizer import Tokenizer, parallel
from andrea.tokenizer.exported import from_segments

if __name__ == "__main__":
    parallel.BATCH_BYTES = 1000
    encoded = Tokenizer(from_segments([b"ab"]), "").encode_many(["ab" * 500] * 200, 2)
    next(encoded)
    print(*[worker.pid for worker in multiprocessing.active_children()], flush=True)
    time.sleep(60)
"""


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    """A pool's workers wait for work for ever when nobody is left to send it."""
    (tmp_path / "program.py").write_text(ORPHANS)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    with subprocess.Popen([sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def alive(pid: int) -> bool:
    """False also for a dead process that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_million_processes_are_a_few(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers start at once: `--threads 1000000` would have taken the machine with it."""
    asked: list[int] = []

    class Pool:
        def __init__(self, processes: int, **_: object) -> None:
            asked.append(processes)
            raise RunError("enough", got="seen", fix="none")

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(parallel, "BATCH_BYTES", 10)
    with pytest.raises(RunError, match="enough"):
        list(tokenizer.encode_many(["a text of some length"] * 20, 10**6))
    assert asked == [4 * (os.cpu_count() or 1)]
