"""A growing run file, read a part at a time: only what is new, at most `budget` bytes a call.

It takes the run files (a JSON array with one record a line, whose closing bracket moves on) and JSON Lines. The file
may be another one at every call, since two copies take turns under its name, and may be cut back or replaced by
another run's. So the bytes before the place where reading goes on are compared with those read last time: the last
few dozen records, whose timings no other run repeats. If they differ, everything is read anew.
"""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from andrea.files import refuse_constant

BUDGET = 1 << 20
_COMPARED = 4096
_NO_RECORDS = (b"", b"[", b"]")


class Tail:
    """`take` is given every record and says whether it is sound; `forget` is called before reading begins anew.

    Reading ends at a record that is not sound or longer than `budget`; without `strict` it is passed over.
    `trouble` says, for people, why not all can be shown; `complete` whether all that can be read has been; `exists`
    whether there is a file; `written` when it was changed last, in Unix time.
    """

    def __init__(
        self,
        path: Path,
        take: Callable[[Any], bool],
        forget: Callable[[], object],
        budget: int = BUDGET,
        *,
        strict: bool = True,
    ) -> None:
        self.path, self.take, self.forget, self.budget, self.strict = path, take, forget, budget, strict
        self.trouble, self.complete, self.exists, self.written = "", True, False, 0.0
        self._place, self._before = 0, b""
        self._known: tuple[int, ...] = ()
        self._passed = ""  # what is said of a line that was too long

    def read(self) -> bool:
        """Take what is new; whether anything has changed."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make us wait
        except FileNotFoundError:
            return self._lost("")
        except OSError as cause:
            return self._lost(f"{self.path.name} cannot be read: {cause.strerror}")
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                return self._lost(f"{self.path.name} is not a file")
            known = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
            if self.exists and self.complete and known == self._known:
                return False
            self._known, self.exists, self.written = known, True, facts.st_mtime
            self._read_on(handle, facts.st_size)
        finally:
            os.close(handle)
        return True

    def _read_on(self, handle: int, size: int) -> None:
        before = os.pread(handle, len(self._before), self._place - len(self._before))
        if before != self._before:
            self._restart()
        data = os.pread(handle, self.budget, self._place)
        end, self.trouble = self._place + len(data), ""
        taken = self._take_lines(data)
        if not taken and end < size and not self.trouble:
            long = f"{self.path.name} has a line of more than {self.budget:,} bytes"
            if self.strict:
                self.trouble = long
            else:  # what is left of the line is no sound record either
                taken, self._passed = len(data), f"{long}, which is passed over"
        self._place += taken
        self._before = (self._before + data[:taken])[-_COMPARED:]
        self.complete = bool(self.trouble) or end >= size
        self.trouble = self.trouble or self._passed

    def _take_lines(self, data: bytes) -> int:
        """Take the whole lines of `data`; how many bytes were read, up to the end of the last sound record."""
        lines = data[: max(0, data.rfind(b"\n"))].split(b"\n")
        texts = [line.rstrip(b",\r ") for line in lines]
        records = iter(_parsed([text for text in texts if text not in _NO_RECORDS]))
        taken = at = 0
        for line, text in zip(lines, texts, strict=True):
            if text not in _NO_RECORDS:
                if not self.take(next(records)) and self.strict:
                    self.trouble = f"{self.path.name} is damaged behind what is shown here"
                    break
                taken = at + len(text)
            at += len(line) + 1
        return taken

    def _restart(self) -> None:
        self._place, self._before, self.complete, self._passed = 0, b"", False, ""
        self.forget()

    def _lost(self, trouble: str) -> bool:
        changed = self.exists or trouble != self.trouble
        if changed:
            self._restart()
        self.exists, self.complete, self.trouble, self._known = False, True, trouble, ()
        return changed


def _parsed(texts: list[bytes]) -> list[Any]:
    """One value a text; None for a text that is no JSON."""
    try:  # all at once is twice as fast
        records = list(json.loads(b"[" + b",".join(texts) + b"]", parse_constant=refuse_constant))
        if len(records) == len(texts):
            return records
    except (ValueError, RecursionError):
        pass  # one of them is at fault
    return [_parsed_alone(text) for text in texts]


def _parsed_alone(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
