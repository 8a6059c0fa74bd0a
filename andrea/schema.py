"""Checking an experiment against `workflow/schemas/experiment.schema.json`, with errors that name the way out."""

import difflib
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from andrea.errors import ExperimentError

LARGEST = float(2**63)
SCHEMA_PATH = Path(__file__).resolve().parent.parent / "workflow" / "schemas" / "experiment.schema.json"


@cache
def _validator() -> Any:
    """Draft 2020-12, but `5.0` and `true` are no integers: one value, one spelling."""
    base = jsonschema.Draft202012Validator
    integers = base.TYPE_CHECKER.redefine("integer", lambda _, v: isinstance(v, int) and not isinstance(v, bool))
    kind = jsonschema.validators.extend(base, type_checker=integers)  # type: ignore[no-untyped-call]
    return kind(json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))


def parse_strict(text: str, origin: str) -> dict[str, Any]:
    """JSON object of `text`; ExperimentError for anything else, duplicate keys, lone surrogates and numbers past LARGEST."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ExperimentError(f"{origin}: a key may stand once", got=f"{twice} twice", fix="delete one of the two")
        return dict(pairs)

    def number(digits: str) -> float:
        value = float(digits)
        if not abs(value) <= LARGEST:
            raise ExperimentError(
                f"{origin}: numbers must be finite, at most {LARGEST:.1e}", got=digits[:40], fix="write another one"
            )
        return value

    def whole(digits: str) -> int:
        number(digits)
        return int(digits)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=number, parse_float=number, parse_int=whole)
    except (json.JSONDecodeError, RecursionError) as cause:
        raise ExperimentError(f"{origin} must be JSON", got=cause, fix="mend the text at that place") from cause
    if not isinstance(value, dict):
        raise ExperimentError(
            f"{origin} must be a JSON object", got=type(value).__name__, fix="start from a shipped one"
        )
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as cause:  # JSON can spell it, but no file that quotes it could be written
        raise ExperimentError(
            f"{origin} must be text without lone surrogates", got=cause, fix="write the character itself"
        ) from cause
    return value


def check_schema(value: dict[str, Any], origin: str) -> None:
    """Raise ExperimentError for the first thing in `value` that the schema refuses."""
    errors = sorted(
        _validator().iter_errors(value), key=lambda e: (len(e.absolute_path), list(map(str, e.absolute_path)))
    )
    if errors:
        raise _explain(_deepest(errors[0]), origin)


def _deepest(error: Any) -> Any:
    """The most telling part of an `anyOf` failure."""
    return _deepest(min(error.context, key=lambda e: -len(e.absolute_path))) if error.context else error


def _explain(error: Any, origin: str) -> ExperimentError:
    where = ".".join(map(str, error.absolute_path)) or "the experiment"
    known = sorted(error.schema.get("properties", {}))
    if error.validator == "additionalProperties":
        key = next(k for k in error.instance if k not in known)
        near = difflib.get_close_matches(key, known, n=1)
        fix = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(known)}"
        return ExperimentError(f"{origin}: {where} has only known keys", got=f'"{key}"', fix=fix)
    if error.validator == "required":
        key = next(k for k in error.validator_value if k not in error.instance)
        fix = f'add "{key}": {known and error.schema["properties"][key].get("description", "see the schema")}'
        return ExperimentError(f'{origin}: {where} must have "{key}"', got=f"keys {sorted(error.instance)}", fix=fix)
    meaning = error.schema.get("description", "see the schema")
    return ExperimentError(
        f"{origin}: {where}: {error.message}", got=json.dumps(error.instance), fix=f"it means: {meaning}"
    )
