"""An experiment file as frozen dataclasses: complete, strict, and checked before any work begins.

Nothing has a default: what is not in the file is an error, so that the file alone says what was run.
Values that follow from others (vocabulary size, head width) are computed here and never configured.
"""

import dataclasses
import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Self

from andrea.errors import ExperimentError
from andrea.recipe import FirehoseSpec, PolishSpec, Rule, recipe_rules
from andrea.schema import check_schema, parse_strict

BYTES = 256
SUFFIX = "-TRAIN"
LARGEST_FILE = 1 << 20  # bytes


@dataclass(frozen=True)
class Shape:
    """The sizes that decide every tensor of a model."""

    vocab_size: int
    d_model: int
    n_heads: int
    n_layers: int
    context: int
    tied_head: bool

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


@dataclass(frozen=True)
class SourceSpec:
    """One arm: which of its documents are taken. `files` is a folder of the user's own text, else None."""

    files: str | None
    min_characters: int
    max_characters: int
    max_documents: int | None
    exclude_words: tuple[str, ...]


@dataclass(frozen=True)
class MegachatSpec:
    heldout_fraction: float


@dataclass(frozen=True)
class TokenizerSpec:
    kind: str
    segments: int
    sample_bytes: int
    max_segment_bytes: int
    min_count: int


@dataclass(frozen=True)
class InitSpec:
    distribution: str
    embedding_std: float
    position_std: float
    matrix_std: float
    head_std: float
    residual_scaling: bool


@dataclass(frozen=True)
class ModelSpec:
    d_model: int
    n_heads: int
    n_layers: int
    context: int
    tied_head: bool
    init: InitSpec


@dataclass(frozen=True)
class TrainSpec:
    engine: str
    precision: str
    seed: int
    batch_size: int
    microbatches: int
    recompute: bool
    steps: int
    horizon: int
    lr: float
    min_lr_ratio: float
    warmup_steps: int
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip: float
    partitions: int


@dataclass(frozen=True)
class ValidationSpec:
    every: int
    blocks: int


@dataclass(frozen=True)
class SamplesSpec:
    every: int
    tokens: int
    temperature: float
    top_k: int
    prompts: tuple[str, ...]
    halt_below: float
    halt_after: int


@dataclass(frozen=True)
class CheckpointSpec:
    every: int
    keep_last: int
    keep_best: bool
    keep_every: int


@dataclass(frozen=True)
class Experiment:
    """One complete experiment. `path` is where it came from and takes no part in equality."""

    name: str
    description: str
    sources: Mapping[str, SourceSpec]
    megachat: MegachatSpec
    tokenizer: TokenizerSpec
    model: ModelSpec
    train: TrainSpec
    firehose: FirehoseSpec
    polish: PolishSpec | None
    validation: ValidationSpec
    samples: SamplesSpec
    checkpoints: CheckpointSpec
    path: Path = dataclasses.field(default=Path(), compare=False, repr=False)

    @classmethod
    def from_json(cls, value: dict[str, Any], origin: str | Path) -> Self:
        """Check `value` against the schema and the rules between fields; raises ExperimentError."""
        check_schema(value, str(origin))
        sections = {
            f.name: _build(f.type, value[f.name]) for f in dataclasses.fields(cls) if f.name not in ("path", "sources")
        }
        sources = {name: _build(SourceSpec, spec) for name, spec in value["sources"].items()}
        experiment = cls(**sections, sources=sources, path=Path(origin))
        _check_rules(experiment)
        return experiment

    @property
    def vocab_size(self) -> int:
        """Bytes, BOS, then the tokenizer's segments."""
        return self.tokenizer.segments + BYTES + 1

    @property
    def shape(self) -> Shape:
        m = self.model
        return Shape(self.vocab_size, m.d_model, m.n_heads, m.n_layers, m.context, m.tied_head)

    def to_json(self) -> dict[str, Any]:
        """The resolved form: every section, in the file's own layout."""
        return {f.name: self.section(f.name) for f in dataclasses.fields(self) if f.name != "path"}

    def section(self, name: str) -> Any:
        """One section as plain JSON values."""
        return _plain(getattr(self, name))


def load(path: str | Path) -> Experiment:
    """Read and check `experiments/<NAME>-TRAIN.json`; raises ExperimentError."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # reading a pipe or a device never ends
            raise OSError(errno.EINVAL, "no file")
        if path.exists() and path.stat().st_size > LARGEST_FILE:
            raise OSError(errno.EFBIG, f"more than {LARGEST_FILE >> 20} MiB")
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except FileNotFoundError as cause:
        known = ", ".join(sorted(p.name for p in path.parent.glob(f"*{SUFFIX}.json"))) or "none"
        raise ExperimentError(
            f"the experiment {path} must exist", got="no such file", fix=f"choose one of: {known}"
        ) from cause
    except UnicodeDecodeError as cause:
        raise ExperimentError(f"{path} must be UTF-8 text", got=cause, fix="save it as UTF-8") from cause
    except OSError as cause:
        raise ExperimentError(
            f"{path} must be a file that can be read", got=cause.strerror, fix="see ls -ld for what it is, and whose"
        ) from cause
    experiment = Experiment.from_json(parse_strict(text, str(path)), path)
    if path.stem != experiment.name + SUFFIX:
        raise ExperimentError(
            f"{path.name}: `name` must be the file's name without {SUFFIX}.json",
            got=experiment.name,
            fix=f'write "name": "{path.stem.removesuffix(SUFFIX)}" or rename the file',
        )
    return experiment


def _build(kind: Any, value: Any) -> Any:
    """JSON value -> the field's type. The schema has already checked every type and key."""
    if isinstance(kind, UnionType) and dataclasses.is_dataclass(kind.__args__[0]):  # a section that may be null
        return None if value is None else _build(kind.__args__[0], value)
    if dataclasses.is_dataclass(kind):
        return kind(**{f.name: _build(f.type, value[f.name]) for f in dataclasses.fields(kind)})  # type: ignore[operator]
    if kind is float:
        return float(value)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        return {key: float(number) for key, number in value.items()}
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text, whatever the file's layout."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _check_rules(e: Experiment) -> None:
    """What the schema cannot say: rules between fields."""
    m, t, f = e.model, e.train, e.firehose
    rules: list[Rule] = [
        (m.d_model % m.n_heads == 0, "model.d_model must be a multiple of model.n_heads", (m.d_model, m.n_heads)),
        (
            t.batch_size % t.microbatches == 0,
            "train.batch_size must be a multiple of train.microbatches",
            (t.batch_size, t.microbatches),
        ),
        (t.warmup_steps <= t.horizon, "train.warmup_steps must not pass train.horizon", (t.warmup_steps, t.horizon)),
        (t.engine != "cpu" or t.precision == "fp32", '"engine": "cpu" goes with "precision": "fp32"', t.precision),
        (t.engine != "cpu" or not t.recompute, '"engine": "cpu" goes with "recompute": false', "true"),
        (
            set(f.weights) == set(e.sources),
            "firehose.weights must name exactly the experiment's sources",
            f"weights for {sorted(f.weights)}, sources {sorted(e.sources)}",
        ),
        (sum(f.weights.values()) > 0, "one of firehose.weights must be above 0", dict(f.weights)),
        (f.window_steps[0] <= f.window_steps[1], "firehose.window_steps must be [least, most]", list(f.window_steps)),
    ]
    rules += [
        (
            s.min_characters <= s.max_characters,
            f"sources.{name}.min_characters must not pass max_characters",
            (s.min_characters, s.max_characters),
        )
        for name, s in e.sources.items()
    ]
    rules += [
        ("\0" not in (s.files or ""), f"sources.{name}.files must be the name of a folder", ascii(s.files))
        for name, s in e.sources.items()
    ]
    rules += recipe_rules(f, e.polish, set(e.sources))
    for holds, must, got in rules:
        if not holds:
            raise ExperimentError(f"{e.path}: {must}", got=got, fix="change one of the two in the experiment file")
