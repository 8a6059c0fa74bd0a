"""chat, sample and eval as they are typed: over pipes, into files, and with mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trained_model import make_model

from andrea.cli import main

ROOT = Path(__file__).resolve().parent.parent


def test_a_chat_over_a_pipe(tmp_path: Path) -> None:
    """Replies and nothing else on standard output, whatever the locale and the bytes that come in."""
    folder = make_model(tmp_path)
    command = [sys.executable, "-m", "andrea", "chat", str(folder), "--temperature", "0", "--tokens", "5"]
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PATH": "/usr/bin", "HOME": str(tmp_path)}
    runs = [
        subprocess.run(command, cwd=ROOT, input=text, capture_output=True, env=environment)
        for text in (b"hi\n\xff \xc3\xa9\n", b"hi\n/quit\nnever\n")
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr.decode()
    assert runs[0].stdout.startswith(runs[1].stdout) and runs[0].stdout.count(b"\n") >= 2
    assert runs[0].stderr.decode().startswith("ANDREA-MINI, step 40; engine cpu: fp32, 1 thread,")


def test_sample_and_eval(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The same lines to a file and to standard output; a table for people and JSON for programs."""
    folder, prompts, out = make_model(tmp_path), tmp_path / "p.txt", tmp_path / "deep" / "out.jsonl"
    prompts.write_text("hi\nthe\n")
    sample = ["sample", str(folder), "--prompts", str(prompts), "--tokens", "6", "--top-p", "0.9"]
    assert main(sample) == 0
    text = capfdbinary.readouterr().out
    assert main([*sample, "--out", str(out)]) == 0
    assert out.read_bytes() == text and [json.loads(line)["prompt"] for line in text.splitlines()] == ["hi", "the"]
    assert main(["eval", str(folder), str(prompts), "--json"]) == 0
    found = json.loads(capfdbinary.readouterr().out)
    assert found["sources"]["p.txt"]["tokens"] == 7 and found["model"] == "ANDREA-MINI"
    assert main(["eval", str(folder), str(prompts)]) == 0
    assert b"nats per token" in capfdbinary.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chat", "nano"], "must be a trained model"),
        (["chat", "MODEL", "--temperature", "nan"], "temperature nan"),
        (["sample", "MODEL", "--prompts", "x.txt", "--top-p", "0"], "top_p 0.0"),
        (["sample", "MODEL", "--prompts", "x.txt", "--top-p", "1.5"], "top_p 1.5"),
        (["sample", "MODEL", "--prompts", "no.txt"], "must be a readable file"),
        (["eval", "MODEL"], "the tokens manifest must exist"),
        (["eval", "MODEL", "no.txt"], "no such file"),
        (["eval", "MODEL", "--threads", "0"], "at least one thread"),
    ],
)
def test_mistakes(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A short message each, and exit code 1."""
    folder = make_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main([str(folder) if a == "MODEL" else a for a in arguments]) == 1
    printed = capsys.readouterr()
    assert words in printed.err and "fix: " in printed.err and printed.out == ""


@pytest.mark.parametrize("out", ["p.txt", "link.txt", "", ".", "pipe"])
def test_replies_do_not_replace_what_is_not_theirs(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--out` with the file of the prompts lost them; as root, --out /dev/null replaced the device by a file."""
    folder = make_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("hi\n")
    Path("link.txt").symlink_to("p.txt")
    os.mkfifo("pipe")
    assert main(["sample", str(folder), "--prompts", "p.txt", "--tokens", "2", "--out", out]) == 1
    assert "fix: " in capsys.readouterr().err and Path("p.txt").read_text() == "hi\n" and Path("pipe").is_fifo()


def test_a_line_of_json_holds_no_control_characters(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """JSON leaves U+007F to U+009F as they are, and one of them opens a terminal's commands."""
    folder, prompts = make_model(tmp_path), tmp_path / "p.txt"
    prompts.write_text("hi\x9b31m\x7f\n", encoding="utf-8")
    assert main(["sample", str(folder), "--prompts", str(prompts), "--tokens", "2"]) == 0
    line = capfdbinary.readouterr().out
    assert b"hi\\u009b31m\\u007f" in line and json.loads(line)["prompt"] == "hi\x9b31m\x7f"


@pytest.mark.parametrize(
    "arguments",
    [["eval", "x", "--blocks", "-5"], ["eval", "x", "--blocks", "x"], ["firehose", "x", "--characters", "-5"]],
)
def test_a_count_is_a_count(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A negative number of blocks was taken for all of them, one of characters for those but the last."""
    with pytest.raises(SystemExit):
        main(arguments)
    assert "must be a whole number" in capsys.readouterr().err


def test_a_million_threads_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Buffers for each of them were planned for minutes."""
    assert main(["eval", str(make_model(tmp_path)), "x.txt", "--threads", "1000000"]) == 1
    assert "at most 1,024" in capsys.readouterr().err
