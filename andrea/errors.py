"""The errors that a user can cause. Each says what must hold, what came, and what to do about it.

Anything else that is raised is a defect of ours and keeps its traceback. What came may be text from a hostile file, so
its control characters are replaced.
"""

from andrea.terminal import harmless


class AndreaError(Exception):
    """A mistake that the user can mend; shown without a traceback at the command line."""

    def __init__(self, must: str, *, got: object, fix: str) -> None:
        super().__init__(must)
        self.must, self.got, self.fix = harmless(must), harmless(str(got)), harmless(fix)

    def __str__(self) -> str:
        return f"{self.must}\n  got: {self.got}\n  fix: {self.fix}"


class ExperimentError(AndreaError):
    """The experiment file is not valid."""


class DataError(AndreaError):
    """A corpus, a token file, a tokenizer or a JSON file is not what it should be."""


class StorageError(AndreaError):
    """The disk is full, read-only, or not ours to write on."""


class RunError(AndreaError):
    """The run folder cannot be used: another trainer holds it, or it stands past the requested step."""


class ServeError(AndreaError):
    """The dashboard cannot be served from here."""


class CheckpointError(AndreaError):
    """A checkpoint is damaged, or belongs to another experiment."""


class EngineError(AndreaError):
    """The engine cannot do what the experiment asks on this machine."""
