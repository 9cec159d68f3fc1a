"""Text as HTML: whatever a visitor or a model wrote stays text."""

from __future__ import annotations

import html
import re

# Control characters but tab and newline, which HTML drops or forbids; U+2400 … U+2421 are their pictures.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# Orders to turn the direction of writing would reach beyond the text they stand in.
DIRECTION = re.compile(r"[\u202a-\u202e\u2066-\u2069]")


def text(value: str) -> str:
    """Escaped, for element content and quoted attributes alike."""
    value = CONTROL.sub(lambda match: "\u2421" if match[0] == "\x7f" else chr(0x2400 + ord(match[0])), value)
    return html.escape(DIRECTION.sub("\ufffd", value), quote=True)


def visible(token: str) -> str:
    """A single token's text with its spaces and line ends to be seen, escaped."""
    return text(token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣"))
