"""The command line: mistakes are short messages with exit code 1, never tracebacks."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from andrea.__main__ import start
from andrea.cli import _parser, find_experiment, main
from andrea.errors import RunError

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "andrea", *arguments], cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["tiny", "TINY", "ANDREA-TINY", "experiments/ANDREA-TINY-TRAIN.json"])
def test_an_experiment_is_found_by_name_or_path(name: str) -> None:
    """People type what `make tiny` and the target names taught them."""
    assert find_experiment(name) == Path("experiments/ANDREA-TINY-TRAIN.json")
    assert find_experiment("12m_fp32").name == "ANDREA-12M-FP32-TRAIN.json"


def test_a_mistake_is_one_screen_without_a_traceback() -> None:
    """At 3 a.m. a traceback hides the one line that helps."""
    done = run("show", "nano")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "fix: choose one of" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) < 10


def test_show_prints_size_memory_and_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question about a run is whether it fits and how long it takes."""
    monkeypatch.chdir(ROOT)
    assert main(["show", "12m"]) == 0
    text = capsys.readouterr().out
    for part in ("11,905,152", "memory", "activations", "time", '"engine": "cpu"', '"d_model": 384'):
        assert part in text


def test_the_estimate_knows_the_precision(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict float32 took nearly nine times as long as bf16 on the same card, and was promised the same two minutes."""
    monkeypatch.chdir(ROOT)
    times = []
    for name in ("12m", "12m-fp32"):
        main(["show", name])
        lines = capsys.readouterr().out.splitlines()
        times.append(" ".join(line for line in lines if line.startswith("time") or "H200 " in line))
    assert "1 min" in times[0] and "15 min" in times[1] and "fp32" in times[1]


def test_a_reader_that_leaves_is_no_mistake() -> None:
    """`andrea show tiny | head` ended in a traceback about a broken pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "andrea", "show", "tiny"]
    with os.fdopen(writer) as gone:
        done = subprocess.run(command, cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_wish_for_a_checkpoint_never_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIGUSR1 that comes before the trainer listens, or after, would end it; Snakemake then deletes the model."""

    def train(*_: object, **__: object) -> int:
        os.kill(os.getpid(), signal.SIGUSR1)
        return 0

    monkeypatch.setattr("andrea.proxy.train", train)
    before = signal.getsignal(signal.SIGUSR1)
    try:
        assert main(["train", "tiny"]) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_help_lists_every_command() -> None:
    """A command that help does not show is not there for a newcomer."""
    done = run("--help")
    stages = ("pull", "tokenizer", "tokens", "train", "archive", "report")
    for command in (
        *stages,
        "runs",
        "dashboard",
        "show",
        "chat",
        "sample",
        "eval",
        "export",
        "firehose",
        "fresh",
        "doctor",
    ):
        assert command in done.stdout


def test_every_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """Usage lines in brackets do not tell a newcomer what to type; nor did `andrea chat`, which wants a model."""
    with pytest.raises(SystemExit):
        main(["--help"])
    for command in re.findall(r"^    (\w+)\b", capsys.readouterr().out, re.MULTILINE):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        (example,) = re.findall(r"^example:  \.venv/bin/andrea (.*)", capsys.readouterr().out, re.MULTILINE)
        assert _parser().parse_args(example.split()).command == command


def test_a_decline_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Who says no at the question gets the shell back, and no run folder."""

    def no(*_: object) -> None:
        raise RunError("it must be what you want", got="n", fix="nothing was begun")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("andrea.consent.ask", no)
    monkeypatch.setattr("andrea.proxy.train", lambda *_, **__: pytest.fail("trained all the same"))
    before = signal.getsignal(signal.SIGUSR1)
    try:
        assert main(["train", "tiny"]) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "nothing was begun" in capsys.readouterr().err


def test_ctrl_c_while_modules_are_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first tenths of a second are spent there, and ended in a traceback through a library."""

    def interrupted(_: object = None) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("andrea.cli.main", interrupted)
    assert start() == 130 and capsys.readouterr().err == "stopped by Ctrl-C\n"
