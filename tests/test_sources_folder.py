"""The user's own folder: every form and order of text, and each mistake with its file and line."""

import json
import os
import re
from pathlib import Path

import pytest

from andrea.errors import DataError
from andrea.megachat import Conversation, Document, Prose, Turn
from andrea.sources.folder import feed, items

TALK = Conversation((Turn("user", "hi"), Turn("reply", "yo")))


def documents(folder: Path) -> list[Document]:
    return [item.parsed.document for item in feed(folder).items if item.parsed]


@pytest.mark.parametrize(
    ("record", "document"),
    [
        ({"turns": [{"role": "user", "text": "hi"}, {"role": "reply", "text": "yo"}]}, TALK),
        ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}, TALK),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}, TALK),
        ({"text": " > any\r\ntext\u2028 "}, Prose(" > any\r\ntext\u2028 ")),
    ],
    ids=["turns", "conversations", "messages", "text"],
)
def test_the_four_forms(tmp_path: Path, record: object, document: Document) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record, ensure_ascii=False), newline="")
    assert documents(tmp_path) == [document]


def test_system_prompts_are_folded(tmp_path: Path) -> None:
    """Guards the two sides: a system prompt joins the user turn behind it, and stands alone before a reply."""
    roles = ["system", "system", "user", "assistant", "system", "assistant"]
    messages = [{"role": role, "content": f"{role}{i}"} for i, role in enumerate(roles)]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}))
    turns = [
        ("user", "system0\n\nsystem1\n\nuser2"),
        ("reply", "assistant3"),
        ("user", "system4"),
        ("reply", "assistant5"),
    ]
    assert documents(tmp_path) == [Conversation(tuple(Turn(role, text) for role, text in turns))]


def test_files_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    """Guards determinism: the order of a walk is the file system's, the order of a pull is ours."""
    for name in ("b.txt", "a/z.TXT", "a/b/c.txt", "a.txt", "C.txt", ".hidden/x.txt", "a/.x.txt", "notes.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    assert documents(tmp_path) == [Prose(name) for name in ("C.txt", "a.txt", "a/b/c.txt", "a/z.TXT", "b.txt")]
    assert feed(tmp_path).facts == {"files": str(tmp_path), "left_out_files": 3}


def test_the_key_is_of_names_and_content(tmp_path: Path) -> None:
    """Guards resume: shards of an earlier text must not be taken for those of an edited one."""
    (tmp_path / "a.txt").write_text("one")
    first = feed(tmp_path).key
    assert feed(tmp_path).key == first
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    second = feed(tmp_path).key
    (tmp_path / "b.txt").write_text("two")
    assert len({first, second, feed(tmp_path).key}) == 3


def test_byte_order_marks_blank_lines_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "x"}\r\n\r\n\n{"text": "y"}')
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfz\n")
    (tmp_path / "c.txt").write_bytes(b" \n")
    assert documents(tmp_path) == [Prose("x"), Prose("y"), Prose("z\n")]
    assert [item.reason for item in feed(tmp_path).items if item.parsed is None] == ["empty file"]


def test_a_name_that_is_not_utf8_is_a_name(tmp_path: Path) -> None:
    """Guards old archives: names from another time must not end in a traceback."""
    with open(os.fsencode(tmp_path) + b"/caf\xe9.txt", "w") as file:
        file.write("x")
    assert documents(tmp_path) == [Prose("x")]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}\n', r"a\.jsonl, line 2 must be UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text": "x"\n', r"a\.jsonl, line 3 must be a JSON object .*not JSON"),
        ("a.jsonl", b'["text"]', r"a\.jsonl, line 1 must be .*not a JSON object"),
        ("a.jsonl", b'{"txt": "x"}', r"a\.jsonl, line 1 must be .*none of the keys"),
        ("a.jsonl", b'{"turns": [{"role": "boss", "text": "x"}]}', r"line 1 must be .*unknown role"),
        ("a.txt", b"one\ntwo\nth\xe9\n", r"a\.txt, line 3 must be UTF-8"),
        ("a.md", b"x", r"must hold \.jsonl or \.txt files.*1 other files: \{'\.md': 1\}"),
    ],
)
def test_mistakes_are_named_with_file_and_line(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as caught:
        documents(tmp_path)
    assert re.search(says, str(caught.value).replace("\n", " ")), str(caught.value)


def test_a_text_without_an_end_is_refused_unread(tmp_path: Path) -> None:
    """A file of 5 GB filled the memory, be it one document or one line."""
    for name, says in (("a.txt", "must be at most 64 MiB"), ("a.jsonl", "line 1 must be a JSON object")):
        with open(tmp_path / name, "wb") as file:
            file.write(b"{")
            file.truncate(5 << 30)
        with pytest.raises(DataError, match=says):
            next(items([tmp_path / name])) if name == "a.jsonl" else feed(tmp_path)
        (tmp_path / name).unlink()


def test_an_empty_or_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold"):
        feed(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        feed(tmp_path / "x")


def test_a_file_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the message: not a traceback, and not a complaint about writing. (Root may read all, so the check is faked.)"""
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(DataError, match=r"a\.txt must be readable"):
        feed(tmp_path)
