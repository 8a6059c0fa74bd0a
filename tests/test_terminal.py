"""What reaches a terminal, and standard streams that are closed or full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from andrea.cli import main
from andrea.errors import DataError
from andrea.terminal import harmless, in_line

ROOT = Path(__file__).resolve().parent.parent
EVIL = "\x1b[2J\x9b31m"


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`ANDREA` in `command` is this program."""
    text = command.replace("ANDREA", f"{sys.executable} -m andrea")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", text], cwd=cwd, capture_output=True, text=True, env=environment)


def test_control_characters_are_replaced() -> None:
    """A terminal obeys them: they move the cursor, change the title, or answer questions."""
    assert harmless("a\x1b[2J\r\n\tb\x9b") == "a\ufffd[2J\ufffd\n\tb\ufffd"
    assert in_line("a\nb\x07") == "a\ufffdb\ufffd"


def test_an_error_quotes_files_harmlessly() -> None:
    """A key of a hostile JSON file reached the terminal as it was, with all three parts of the message."""
    mistake = DataError(f"must {EVIL}", got=f"got {EVIL}", fix=f"fix {EVIL}")
    assert str(mistake) == "must \ufffd[2J\ufffd31m\n  got: got \ufffd[2J\ufffd31m\n  fix: fix \ufffd[2J\ufffd31m"


@pytest.mark.parametrize(
    ("command", "code"),
    [("ANDREA runs >&-", 0), ("ANDREA runs <&- 2>&-", 0), ("ANDREA chat nope <&-", 1), ("ANDREA show nope >&-", 1)],
)
def test_closed_streams_are_no_traceback(command: str, code: int, tmp_path: Path) -> None:
    """A closed stream is None in Python: its methods are not there, and its number went to the next file."""
    done = shell(command, tmp_path)
    assert done.returncode == code and "Traceback" not in done.stderr


def test_a_message_for_a_closed_stream_goes_nowhere(tmp_path: Path) -> None:
    """print(file=None) writes to standard output: notes for people stood between the JSON lines of `sample`."""
    assert shell("ANDREA show nope 2>&-", tmp_path).stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has this device")
def test_output_on_a_full_disk_is_a_message(tmp_path: Path) -> None:
    """`andrea runs > file` on a full disk ended in two tracebacks."""
    done = shell("ANDREA runs > /dev/full", tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("error: standard output, or a file, must be usable")
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("command", ["chat", "show", "dashboard", "firehose", "fresh"])
def test_a_name_that_no_disk_can_hold(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A text pasted in the wrong place, or a loop in a script: a traceback about stat()."""
    assert main([command, "a" * 300]) == 1
    told = capsys.readouterr().err
    assert "got: File name too long" in told and "fix: " in told
