"""The id layout that every tokenizer here shares: 0-255 are the bytes, 256 is BOS, segments follow from 257.

In a tokenizer.json a token is a string, so bytes are written in GPT-2's byte alphabet: printable Latin-1 as itself,
the other bytes as the characters from U+0100 on (a space is U+0120, a line end U+010A).
"""

BYTES = 256
BOS = 256
FIRST_SEGMENT = 257
BOS_TEXT = "<|bos|>"


def _byte_alphabet() -> dict[int, str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(BYTES) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(BYTES + n) for n, byte in enumerate(hidden)}


TO_CHARACTER = _byte_alphabet()
TO_BYTE = {character: byte for byte, character in TO_CHARACTER.items()}


def spell(token: bytes) -> str:
    """The token as it stands in a tokenizer.json: b" the" -> "Ġthe"."""
    return "".join([TO_CHARACTER[byte] for byte in token])


def unspell(text: str) -> bytes:
    """Inverse of `spell`; KeyError for a character outside the byte alphabet."""
    return bytes([TO_BYTE[character] for character in text])


def vocabulary(segments: list[bytes]) -> dict[str, int]:
    """Token string -> id, in id order, for `segments` in theirs."""
    spelled = {TO_CHARACTER[byte]: byte for byte in range(BYTES)} | {BOS_TEXT: BOS}
    return spelled | {spell(segment): FIRST_SEGMENT + n for n, segment in enumerate(segments)}
