"""Escapes for text on a terminal.

Messages, Events, logs and names can come from a tenant. A terminal executes their escape sequences, which can hide
lines, change the clipboard, or create a link. Characters that change the direction of text can disguise a command.
"""

from __future__ import annotations

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    r"""Return text as a single line, with each character that is not printable escaped, such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def printable_lines(text: str) -> str:
    """Return text of several lines with non-printable characters escaped. Line feeds and tabs remain."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
