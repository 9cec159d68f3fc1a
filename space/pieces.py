"""The text of each token, so that all of them together are the text of the whole."""

from __future__ import annotations


class Pieces:
    """Decodes token by token.

    A character may be spread over several tokens; it then is the last one's text. Worked example: "👍" is 4 tokens of one
    byte each; their pieces are "", "", "" and "👍".

    Args:
        tokenizer: of the target.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        # Text before `start` is settled; ids start … read have been said and are decoded again, as context of what follows.
        self.start = self.read = 0

    def add(self, token: int) -> str:
        """The text that this token adds."""
        self.ids.append(token)
        said, now = self._decode(self.start, self.read), self._decode(self.start, len(self.ids))
        if len(now) <= len(said) or now.endswith("\ufffd"):
            return ""
        self.start, self.read = self.read, len(self.ids)
        return now[len(said) :]

    def rest(self) -> str:
        """Bytes that never became a character, after the last token."""
        return self._decode(self.start, len(self.ids))[len(self._decode(self.start, self.read)) :]

    def _decode(self, start: int, end: int) -> str:
        return self.tokenizer.decode(self.ids[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
