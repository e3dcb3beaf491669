"""Makes text safe for a terminal.

Messages, Events, logs and names can come from a tenant. A terminal obeys escape sequences in them: these hide lines,
change the clipboard, or make a link. Characters that change the direction of text hide which command is shown.
"""

from __future__ import annotations

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    r"""Return text as one line, with each character that a terminal does not show as itself escaped, such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_lines(text: str) -> str:
    """Return text of several lines with these characters escaped. Line feeds and tabs stay."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
