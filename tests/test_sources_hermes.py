"""The bucket rule of Hermes-3: what each line of it sends where."""

import pytest

from andrea.megachat import Conversation, Prose, Turn
from andrea.sources.hermes import bucket

CASES = {
    "general": [
        "What is the capital of France?",
        "You are Hermes, a helpful assistant.\n\nSort this list.",
        "You are a helpful assistant.\n\nExplain gravity.",
        "You are An AI.\n\nHello",
        "Write a function that stores a value.",  # a verb of WRITE, but no word of WORKS
        "The word 'story' is a noun.",  # a word of WORKS, but nobody asks for one
        "Write down everything that I told you about the other people who were in the room before the story",  # too far
        "Is creativity a character trait?",
        "He stored the act as evidence: act 5.",
        "What does 'inactive' mean in characterization?",
    ],
    "creative": [
        "Write me a very short poem about rain.",
        "Tell me a JOKE",
        "A haiku, please",
        "I need\nsome song   lyrics for a birthday",
        "Compose the first chapter of a novel",
        "Once upon a time there was",
        "You are a poet.\n\nHelp me.",
    ],
    "roleplay": [
        "You are Ada Lovelace, a mathematician.\n\nHi",
        "You are now Captain Nemo. Speak.",
        "You are Lena from the bakery.\n\nTell me a story",
        "Let's roleplay. Write me a poem",
        "Stay in character and tell a story.",
        "Act as a Linux terminal",
        "Pretend you\u2019re a cat",
        "Imagine that you are a tree.",
        "{{user}} enters the room",
        "Start a text-based adventure",
    ],
}


@pytest.mark.parametrize(("want", "text"), [(want, text) for want, texts in CASES.items() for text in texts])
def test_each_line_of_the_rule(want: str, text: str) -> None:
    """Guards the documented rule, word boundaries and order of precedence included."""
    assert bucket(Conversation((Turn("user", text), Turn("reply", "roleplay poem")))) == want


def test_only_the_first_user_turn_counts() -> None:
    turns = (Turn("reply", "Let's roleplay"), Turn("user", "Hello"), Turn("user", "Write a poem"))
    assert bucket(Conversation(turns)) == "general"
    assert bucket(Conversation((Turn("reply", "a poem"),))) == "general"
    assert bucket(Prose("Write a poem")) == "general"
