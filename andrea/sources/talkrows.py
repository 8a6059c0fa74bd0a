"""Rows that the synthetic-chat generator computes: sums, days, letters, stories. Each function gives the slots of one.

`Draw` is a stream of choices that no library can change: raw 64-bit Philox words, scaled. (NumPy may change what its
`integers` and `choice` make of the same words from one version to the next.)
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from andrea.philox import generator

T = TypeVar("T")
Row = dict[str, str]

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = {
    "January": ("31 days", "winter"),
    "February": ("28 days, and 29 in a leap year", "winter"),
    "March": ("31 days", "spring"),
    "April": ("30 days", "spring"),
    "May": ("31 days", "spring"),
    "June": ("30 days", "summer"),
    "July": ("31 days", "summer"),
    "August": ("31 days", "summer"),
    "September": ("30 days", "autumn"),
    "October": ("31 days", "autumn"),
    "November": ("30 days", "autumn"),
    "December": ("31 days", "winter"),
}
NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


class Draw:
    """Choices for one document, a function of (purpose, counters) alone."""

    def __init__(self, purpose: str, *counters: int) -> None:
        self._words = generator(1, purpose, *counters).bit_generator

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1."""
        return (int(self._words.random_raw()) * n) >> 64

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def one(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """n of the items, none twice, in random order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(n)]


def letters(word: str) -> Row:
    """What can be said about the letters of a word."""
    return {
        "spelled": "-".join(word.upper()),
        "letter": word[0].upper(),
        "last": word[-1].upper(),
        "count": NUMBERS[len(word)] if len(word) < len(NUMBERS) else str(len(word)),
        "backwards": word[::-1],
    }


def sums(draw: Draw) -> Row:
    top = draw.one((10, 20, 50))
    a, b = draw.between(1, top), draw.between(1, top)
    parity = "odd" if (a + b) % 2 else "even"
    return {"a": str(a), "b": str(b), "sum": str(a + b), "more": str(a + b + 1), "parity": parity}


def products(draw: Draw) -> Row:
    a, b = draw.between(2, 10), draw.between(2, 10)
    return {"a": str(a), "b": str(b), "product": str(a * b), "double": str(2 * a)}


def bigger_number(draw: Draw) -> Row:
    a, b = draw.some(range(1, draw.one((20, 100, 1000))), 2)
    verdict = "Yes" if a < b else "No"
    return {"a": str(a), "b": str(b), "big": str(max(a, b)), "small": str(min(a, b)), "verdict": verdict}


def counting(draw: Draw) -> Row:
    start = draw.between(1, 30)
    stop = start + draw.between(3, 9)
    up = [str(n) for n in range(start, stop + 1)]
    joined = {"up": ", ".join(up), "down": ", ".join(reversed(up))}
    return {"start": str(start), "stop": str(stop), "after": str(stop + 1), **joined}


def patterns(draw: Draw) -> Row:
    start, step = draw.between(1, 20), draw.one((2, 3, 4, 5, 10))
    row = [str(start + step * i) for i in range(6)]
    return {"shown": ", ".join(row[:4]), "next": row[4], "then": row[5], "step": str(step)}


def days(draw: Draw) -> Row:
    i = draw.below(7)
    day = DAYS[i]
    weekend = f"Yes, {day} is on the weekend." if i > 4 else f"No, {day} is a weekday."
    around = {"before": DAYS[i - 1], "after": DAYS[(i + 1) % 7], "later": DAYS[(i + 2) % 7]}
    return {"day": day, "weekend": weekend, **around}


def months(draw: Draw) -> Row:
    names = list(MONTHS)
    i = draw.below(12)
    length, season = MONTHS[names[i]]
    around = {"before": names[i - 1], "after": names[(i + 1) % 12]}
    return {"month": names[i], "length": length, "season": season, "number": str(i + 1), **around}


def hours(draw: Draw) -> Row:
    hours, now = draw.between(2, 6), draw.between(1, 6)
    return {"now": str(now), "hours": str(hours), "later": str(now + hours)}


# Rows that need the word lists (`talk`, the whole of synthetic.yaml).


def problems(draw: Draw, talk: dict[str, Any]) -> Row:
    who, friend = draw.some(talk["names"], 2)
    a, b = draw.between(2, 12), draw.between(2, 12)
    return {"who": who, "friend": friend, "items": draw.one(talk["items"]), "a": f"{a}", "b": f"{b}", "sum": f"{a + b}"}


def bigger_animal(draw: Draw, talk: dict[str, Any]) -> Row:
    """Two animals whose sizes differ so much that nobody would argue."""
    animals = talk["tables"]["animals"]["rows"]
    first = draw.one(animals)
    second = draw.one([animal for animal in animals if abs(animal[-1] - first[-1]) >= 2])
    small, big = sorted((first, second), key=lambda animal: int(animal[-1]))
    return {"one": first[0], "two": second[0], "small": small[0], "big": big[0]}


def name_three(draw: Draw, talk: dict[str, Any]) -> Row:
    group, _, members = draw.one(talk["tables"]["groups"]["rows"])
    four = draw.some(members, 4)
    names = dict(zip(("first", "second", "third", "fourth"), four, strict=True))
    return {"group": group, "ordered": ", ".join(sorted(four[:3])), **names}


def odd_one(draw: Draw, talk: dict[str, Any]) -> Row:
    (group, one, members), (_, _, others) = draw.some(talk["tables"]["groups"]["rows"], 2)
    odd = draw.one(others)
    shown = draw.some([*draw.some(members, 3), odd], 4)
    return {"group": group, "one": one, "odd": odd, "list": ", ".join(shown)}


def alphabet(draw: Draw, talk: dict[str, Any]) -> Row:
    words = draw.some([row[0] for row in talk["tables"]["spellings"]["rows"]], 3)
    return {"list": ", ".join(words), "ordered": ", ".join(sorted(words))}


def stories(draw: Draw, talk: dict[str, Any]) -> Row:
    return {key: draw.one(talk[f"{key}s"]) for key in ("hero", "trait", "place", "find", "friend")}


COMPUTED: dict[str, Callable[[Draw], Row]] = {
    f.__name__: f for f in (sums, products, bigger_number, counting, patterns, days, months, hours)
}
PICKED: dict[str, Callable[[Draw, dict[str, Any]], Row]] = {
    f.__name__: f for f in (problems, bigger_animal, name_three, odd_one, alphabet, stories)
}
