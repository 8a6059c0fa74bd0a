"""Hermes-3 into three buckets: ANDREA's own rule, as the data set has no categories.

The rule looks at one text: the first user turn, which starts with the system prompt when there is one (records.py).
Case does not count (but in 1a), words are whole words, a blank stands for any blanks. The first that holds decides:

    1. roleplay   it asks to be someone:
                  a. the text begins with "You are <Name>", and the name is not that of an assistant
                  b. it holds one of ROLEPLAY_WORDS or one of ROLEPLAY_PHRASES
    2. creative   it asks for invented text:
                  a. it holds one of CREATIVE_WORDS or one of CREATIVE_PHRASES
                  b. it holds a word of WRITE, and one of WORKS at most SPAN words later: "write me a short poem"
    3. general    the rest

So a story told in character is roleplay. The rule looks at nothing else, neither at the replies nor at the place in
the file. It is ours and not the data set's: nobody else's counts are comparable.

A phrase is filed under one of its words and tried only on texts that hold the word, which is many times faster than
one large pattern.
"""

import re
from collections.abc import Mapping

from andrea.megachat import Document, Prose


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


BUCKETS = ("general", "creative", "roleplay")

ASSISTANTS = "Hermes|Nous|Chat|GPT|Claude|Llama|Bard|Gemini|Siri|Alexa|Assistant|An|The|Given|Going|Being|Asked|Tasked"
ROLEPLAY_WORDS = _set("roleplay roleplays roleplayed roleplaying roleplayer impersonate impersonates impersonating")
ROLEPLAY_PHRASES = {
    "role": "role(-| )play(ed|s|ing|er)?|(take|taking|assume|assuming|adopt) (on )?(the|a) role",
    "act": "act as (if you|though you|an?|the|my)",
    "acting": "acting as (an?|the|my)",
    "pretend": "pretend (that )?(to be|you are|you're|we are|we're)",
    "imagine": "imagine (that )?(you are|you're|yourself)",
    "play": "(you|i) (will )?play (the (role|part|character) of|as|an?)",
    "playing": "(you are|you're|i am|i'm) playing (the (role|part|character) of|as|an?)",
    "character": "(in|out of)(-| )character|your character|character (card|sheet)|the character of",
    "persona": "(the|your|this|a|following) persona",
    "embody": "embody (the|an?)",
    "adventure": "text(-| )(based )?adventure",
    "dungeon": "dungeon master",
    "user": r"\{\{user\}\}",
    "char": r"\{\{char\}\}",
}
CREATIVE_WORDS = _set(
    "sonnet sonnets haiku haikus limerick limericks villanelle screenplay screenplays fanfic fanfiction fairytale "
    "worldbuilding storytelling storyteller backstory protagonist protagonists novelist songwriter playwright "
    "screenwriter poet"
)
CREATIVE_PHRASES = {
    "creative": "creative (writing|writer|piece)",
    "story": "(short|bedtime|science fiction|fantasy|horror|love|adventure|detective) story|story (idea|about|in which)",
    "stories": "(short|bedtime|science fiction|fantasy|horror|love|adventure|detective) stories",
    "fiction": "(flash|fan|historical) fiction",
    "fairy": "fairy tales?",
    "upon": "once upon a time",
    "verse": "(free|rap) verse",
    "plot": "plot (twist|outline|idea|hook)s?",
    "world": "world(-| )building",
    "lyrics": "song lyrics|lyrics (for|about|to)",
}
WRITE = _set(
    "write writes writing compose composing create creating craft crafting draft invent tell generate continue produce "
    "pen make give imagine"
)
WORKS = _set(
    "story stories poem poems poetry song songs lyrics tale tales fable fables novel novella scene dialogue monologue "
    "ballad ode verse verses rhyme myth parody saga prologue epilogue chapter vignette joke jokes"
)
SPAN = 7

_WORD = re.compile("[a-z0-9]+(?:'[a-z]+)?")
_NAMED = re.compile(
    rf"\s*You are (?:now )?(?!(?:{ASSISTANTS})(?![a-z]))[A-Z][a-z]+(?: [A-Z][a-z]+)*(?:,|\.| the | from )"
)


def bucket(document: Document) -> str:
    """The bucket of a Hermes-3 conversation."""
    if isinstance(document, Prose):
        return "general"
    opening = next((text for role, text in document.turns if role == "user"), "")
    text = opening.lower().replace("\u2019", "'")
    words = _WORD.findall(text)
    held = set(words)
    if _NAMED.match(opening) or held & ROLEPLAY_WORDS or _says(text, held, _ROLEPLAY):
        return "roleplay"
    if held & CREATIVE_WORDS or _says(text, held, _CREATIVE) or (held & WORKS and _asks_for_work(words)):
        return "creative"
    return "general"


def _says(text: str, held: set[str], phrases: Mapping[str, re.Pattern[str]]) -> bool:
    return any(phrases[word].search(text) for word in held & phrases.keys())


def _asks_for_work(words: list[str]) -> bool:
    """Rule 2b."""
    asked = -SPAN - 1
    for place, word in enumerate(words):
        if word in WORKS and place - asked <= SPAN:
            return True
        if word in WRITE:
            asked = place
    return False


def _compile(table: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    blanks = "[ \t\r\n]+"
    return {
        word: re.compile(f"(?<![a-z0-9])(?:{phrase.replace(' ', blanks)})(?![a-z0-9])")
        for word, phrase in table.items()
    }


_ROLEPLAY = _compile(ROLEPLAY_PHRASES)
_CREATIVE = _compile(CREATIVE_PHRASES)
