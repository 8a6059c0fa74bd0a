"""What has been said, as the prompt for the next reply: BOS, then megachat text that ends where the reply begins."""

from collections.abc import Sequence

from andrea import megachat
from andrea.errors import DataError
from andrea.megachat import REPLY, Conversation, Turn
from andrea.tokenizer import Tokenizer


def prompt_ids(tokenizer: Tokenizer, turns: Sequence[Turn]) -> list[int]:
    """Ids of a conversation whose next turn is the model's."""
    text = megachat.encode(Conversation((*turns, Turn("reply", ""))))
    return [tokenizer.bos, *tokenizer.encode(text).tolist()]


def check_length(ids: list[int], context: int, what: str) -> None:
    """DataError unless at least one token of reply fits behind the prompt `what`."""
    if len(ids) >= context:
        raise DataError(
            f"a prompt must leave room in the model's context of {context:,} tokens",
            got=f"{len(ids):,} tokens for {what[:40]!r}",
            fix="shorten it",
        )


class History:
    """The turns of one chat. `cut` says whether some had to go."""

    def __init__(self, tokenizer: Tokenizer, context: int) -> None:
        self._tokenizer, self._context = tokenizer, context
        self.turns: list[Turn] = []
        self.cut = False

    def ask(self, text: str, tokens: int) -> list[int]:
        """Add a user's turn; the prompt for a reply of up to `tokens` tokens.

        The oldest turns go until that reply fits, or half the context is free for it. A turn that alone is too long is
        a DataError, and not added.
        """
        turns = [*self.turns, Turn("user", text)]
        most = self._context - min(tokens, self._context // 2)
        ids = prompt_ids(self._tokenizer, turns)
        while len(ids) > most and len(turns) > 1:
            turns = _without_oldest(turns)
            ids = prompt_ids(self._tokenizer, turns)
        check_length(ids, self._context, text)
        self.cut = self.cut or len(turns) <= len(self.turns)
        self.turns = turns
        return ids

    def answer(self, text: str) -> None:
        """Add what the model wrote, which may be several turns of its own."""
        document = megachat.decode(REPLY + text)
        assert isinstance(document, Conversation), "it begins with a mark"
        self.turns += document.turns

    def forget(self) -> None:
        """Begin anew."""
        self.turns = []


def _without_oldest(turns: list[Turn]) -> list[Turn]:
    """From the next user's turn on; the last turn is one."""
    return next(turns[n:] for n in range(1, len(turns)) if turns[n].role == "user")
