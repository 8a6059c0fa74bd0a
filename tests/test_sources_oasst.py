"""Message trees: the best replies make one conversation a tree, and odd rows cannot lead a walk astray."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from andrea.sources import oasst


def row(ident: Any, parent: Any, **more: Any) -> dict[str, Any]:
    """A message; ids that begin with p are prompts."""
    role = "prompter" if str(ident).startswith("p") else "assistant"
    message = {"message_id": ident, "parent_id": parent, "role": role, "text": f"text {ident}"}
    return {**message, "lang": "en", "deleted": False, "rank": None, **more}


def talks(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The ids of each conversation's turns."""
    found = [item.parsed.document for item in oasst.items(rows) if item.parsed]
    return [[text.removeprefix("text ") for _, text in document.turns] for document in found]


def reasons(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(item.reason for item in oasst.items(rows) if not item.parsed)


def test_each_step_takes_the_best_child() -> None:
    """Guards the rule: lowest rank, then no rank, then file order; roles become ours; file order of trees."""
    rows = [
        row("r1", "p1", rank=1),  # before its parent: order in the file is no promise
        row("p1", None),
        row("r2", "p1", rank=0),
        row("r3", "p1"),
        row("p2", "r2"),
        row("p3", "r2"),
        row("r4", "p2", rank=2.0),  # nullable integers may come as floats
        row("r5", "p2", rank=1.0),
        row("p9", None),
        row("r9", "p9", rank=float("nan")),
    ]
    assert talks(rows) == [["p1", "r2", "p2", "r5"], ["p9", "r9"]]
    assert reasons(rows) == ["on another branch than the best"] * 4
    (first, _) = [item.parsed.document for item in oasst.items(rows) if item.parsed]
    assert [role for role, _ in first.turns] == ["user", "reply", "user", "reply"]


def test_a_prompt_without_an_answer_is_left_off() -> None:
    rows = [row("p1", None), row("r1", "p1"), row("p2", "r1"), row("p3", None)]
    assert talks(rows) == [["p1", "r1"], ["p3"]], "a lone prompt stays: the megachat stage drops it, and counts it"
    assert reasons(rows) == ["on another branch than the best"]


def test_what_does_not_count_ends_the_way() -> None:
    """Guards language and deletion: neither such a message nor what hangs on it gets in."""
    rows = [row("p1", None), row("r1", "p1", lang="es", rank=0), row("r2", "p1", rank=1)]
    rows += [row("p2", "r2", deleted=True), row("r3", "p2"), row("p4", None, lang="de"), row("r4", "p4")]
    assert talks(rows) == [["p1", "r2"]]
    assert reasons(rows) == [
        "deleted",
        "not in English",
        "not in English",
        "on another branch than the best",
        "on another branch than the best",
    ]


def test_a_way_cannot_go_round() -> None:
    """Guards against a pull that never ends: an id that comes again could be its own descendant."""
    rows = [row("p1", None), row("r1", "p1"), row("p1", "r1"), row("p2", "p2")]
    assert talks(rows) == [["p1", "r1"]]
    assert "a message id for the second time" in reasons(rows)


def test_rows_of_wrong_types_are_dropped() -> None:
    rows = [row(None, None), row("p1", 7), row("p2", None, rank="best"), row("p3", None, text=None), row("p4", None)]
    assert talks(rows) == [["p4"]]
    assert len(reasons(rows)) == 4


IDS = st.sampled_from(["p1", "r1", "p2", "r2", "p3"])


@given(st.lists(st.tuples(IDS, st.one_of(st.none(), IDS), st.one_of(st.none(), st.integers(0, 3))), max_size=12))
def test_every_row_is_accounted_for(messages: list[tuple[str, str | None, int | None]]) -> None:
    """Guards the counts in the manifest, and that any tangle of ids ends."""
    rows = [row(ident, parent, rank=rank) for ident, parent, rank in messages]
    assert sum(item.size for item in oasst.items(rows)) == len(rows)
