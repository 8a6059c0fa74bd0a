"""Megachat text: nothing is lost in it, and no damaged file passes for a whole one."""

import hashlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from andrea.errors import DataError
from andrea.megachat import (
    MAX_DOCUMENT_BYTES,
    SEPARATOR,
    Conversation,
    Document,
    Prose,
    Turn,
    Writer,
    characters,
    decode,
    encode,
    prompt_text,
    read,
)

# Text made of what could be taken for structure: marks, escapes, separators and everything that looks like a line end.
PIECES = ["> ", "< ", ">", "<", " ", "\n", "\x10", "\x1e", SEPARATOR, "\r\n", "\r", "\u2028", "\u2029", "\x85", "\x0b"]
NASTY = st.lists(st.sampled_from([*PIECES, "\x0c", "\x1c", "\x00", "\x1f", "\ufeff", "a", "né", "\U0001f600"])).map(
    "".join
)
TEXT = NASTY | st.text(st.characters(exclude_categories=["Cs"]))
TURNS = st.lists(st.builds(Turn, st.sampled_from(["user", "reply"]), TEXT), min_size=1, max_size=6)
DOCUMENTS: st.SearchStrategy[Document] = TURNS.map(lambda turns: Conversation(tuple(turns))) | TEXT.map(Prose)


def talk(*texts: str) -> Conversation:
    """A conversation that a user opens."""
    return Conversation(tuple(Turn("reply" if i % 2 else "user", text) for i, text in enumerate(texts)))


@settings(max_examples=600, deadline=None)
@given(DOCUMENTS)
@example(Prose("> not a chat\n< not a reply"))
@example(Prose("\x10\x10> "))
@example(Prose(""))
@example(Conversation((Turn("reply", ""), Turn("reply", ""), Turn("user", "\x10"))))
@example(talk("> \n> > \n\x10> ", "\x1e\n\x1e", "a\r\n> b\rc\u2028> d\x85< e"))
def test_every_document_survives(document: Document) -> None:
    """Guards the one promise of the format; splitlines() anywhere in it fails here at once."""
    assert decode(encode(document)) == document


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS)
def test_the_separator_never_stands_inside_a_document(document: Document) -> None:
    """Guards the file: a document that held the separator would become two."""
    text = encode(document)
    assert SEPARATOR not in f"\n{text}\n"
    assert "\n\x1e" not in f"\n{text}"


@settings(max_examples=300, deadline=None)
@given(TEXT | st.text())
def test_decode_takes_any_string(text: str) -> None:
    """Guards sampling: a model may write anything, lone escapes and surrogates too, and decode must not raise."""
    again = decode(encode(decode(text)))
    assert again == decode(text)


def test_lone_surrogates_survive_in_memory() -> None:
    """Guards the promise that encode and decode are exact on every Python string."""
    document = talk("a\ud800b", "\udfff")
    assert decode(encode(document)) == document


def test_ordinary_chat_holds_no_escapes() -> None:
    """Guards readability: what people write must reach the model as they wrote it."""
    texts = [
        "Hi! :-> <3",
        "1. one\n2. two\n\n- three\n  > indented\n>no blank\n<b>html</b>\n\\begin{x}\n---\n***",
        "a > b < c",
    ]
    text = encode(talk(*texts))
    assert text == f"> {texts[0]}\n< {texts[1]}\n> {texts[2]}"


def test_a_quoted_line_is_escaped_and_prose_stays_prose() -> None:
    assert encode(talk("see:\n> quote")) == "> see:\n\x10> quote"
    assert encode(Prose("> quote\nme")) == "\x10> quote\nme"
    assert isinstance(decode("\x10> quote\nme"), Prose)


def test_prompt_text_ends_where_the_reply_begins() -> None:
    """Guards sampling: what the model adds to the prompt is the reply, also after a prompt that looks like a chat."""
    assert prompt_text("Hi") == "> Hi\n< "
    assert prompt_text("") == "> \n< "
    for user in ("Hi", "a\n< b", "\n\n"):
        assert decode(prompt_text(user) + "yes\nno") == talk(user, "yes\nno")


def test_characters_count_content_only() -> None:
    assert characters(talk("ab\n> c", "d")) == 7
    assert characters(Prose("> x")) == 3


def test_a_conversation_has_a_turn() -> None:
    with pytest.raises(ValueError, match="at least one turn"):
        Conversation(())


# ---------------------------------------------------------------------------------------------------------------------


def write(path: Path, *texts: str) -> Writer:
    with Writer(path) as writer:
        for text in texts:
            writer.add(text)
    return writer


@settings(max_examples=60, deadline=None)
@given(documents=st.lists(DOCUMENTS, max_size=8))
def test_files_survive(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Guards reading in pieces: documents of any content, empty ones and empty files included."""
    path = tmp_path_factory.mktemp("megachat") / "x.txt.zst"
    texts = [encode(document) for document in documents]
    writer = write(path, *texts)
    assert list(read(path)) == texts
    assert writer.documents == len(texts)
    assert writer.bytes == sum(len(text.encode()) for text in texts)
    assert writer.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert writer.file_bytes == path.stat().st_size


def test_separators_that_straddle_pieces_are_found(tmp_path: Path) -> None:
    """Guards the scan: with thousands of short documents some separator lies across every kind of boundary."""
    texts = [encode(talk("x" * (i % 7), f"{i}")) for i in range(60_000)]
    write(tmp_path / "x.txt.zst", *texts)
    assert list(read(tmp_path / "x.txt.zst")) == texts


def test_equal_documents_give_equal_bytes(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, "> a\n< b", "c") for name in ("1.txt.zst", "2.txt.zst"))
    assert (tmp_path / "1.txt.zst").read_bytes() == (tmp_path / "2.txt.zst").read_bytes()
    assert one.sha256 == two.sha256


def test_a_failed_writer_leaves_nothing(tmp_path: Path) -> None:
    """Guards atomicity: a stage that dies between two documents must not leave a short file under the final name."""

    def stage() -> None:
        with Writer(tmp_path / "x.txt.zst") as writer:
            writer.add("> a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stage()
    assert list(tmp_path.iterdir()) == []


def test_what_no_file_can_hold_is_refused_by_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"document 2 must hold no lone surrogates"):
        write(tmp_path / "x.txt.zst", "> a", "\ud800")
    with pytest.raises(DataError, match=r"document 1 must be at most 64 MiB"):
        write(tmp_path / "x.txt.zst", "x" * (MAX_DOCUMENT_BYTES + 1))
    assert list(tmp_path.iterdir()) == []


def packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


GOOD = packed(b"> a\n\x1e\n> b\n\x1e\n")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "cut short at byte 0", id="empty"),
        pytest.param(b"> a\n\x1e\n", "near byte 0", id="not zstd"),
        pytest.param(GOOD[:-1], "cut short at byte", id="truncated"),
        pytest.param(GOOD[:9], "cut short at byte 9", id="header only"),
        pytest.param(GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "near byte", id="wrong checksum"),
        pytest.param(GOOD + b"x", "more bytes after the end", id="trailing byte"),
        pytest.param(GOOD + GOOD, "more bytes after the end", id="two frames"),
        pytest.param(packed(b"> a\n\x1e\n> b\n\x1e"), "document 2 is cut short after 5 bytes", id="half separator"),
        pytest.param(packed(b"> a\n\x1e\n> \xff\n\x1e\n"), "document 2 at byte 6 is not UTF-8", id="not UTF-8"),
        pytest.param(packed(b"\x1ex\n\x1e\n"), "document 1 at byte 0 has a record separator", id="separator inside"),
        pytest.param(packed(b"a\n\x1e\n\x1e\n\x1e\n"), "has a record separator inside", id="overlapping separators"),
    ],
)
def test_damaged_files_are_named_with_the_place(tmp_path: Path, data: bytes, says: str) -> None:
    """Guards the hostile reader: each damage is a DataError with file and place, none a short read."""
    path = tmp_path / "x.txt.zst"
    path.write_bytes(data)
    with pytest.raises(DataError, match=says) as caught:
        list(read(path))
    assert "x.txt.zst" in str(caught.value)


def test_a_large_file_is_checked_beyond_its_first_piece(tmp_path: Path) -> None:
    """Guards the check in `read` behind the first read of a file: bytes after the frame, in a later piece."""
    path = tmp_path / "x.txt.zst"
    write(path, *(hashlib.sha256(bytes([i % 256, i // 256])).hexdigest() for i in range(3000)))
    assert path.stat().st_size > 3 * 4096
    path.write_bytes(path.read_bytes() + bytes(5000))
    with pytest.raises(DataError, match="more bytes after the end"):
        list(read(path))


def test_a_bomb_without_separators_is_stopped(tmp_path: Path) -> None:
    """Guards memory: a small file that unpacks to gigabytes of one document ends at 64 MiB and some."""
    path = tmp_path / "x.txt.zst"
    pack = zstandard.ZstdCompressor().compressobj()
    path.write_bytes(b"".join(pack.compress(bytes(1 << 24)) for _ in range(30)) + pack.flush())
    with pytest.raises(DataError, match="document 1 is longer than 64 MiB"):
        list(read(path))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(read(tmp_path / "x.txt.zst"))
