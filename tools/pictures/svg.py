"""Common parts of all pictures."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

__all__ = ["MONOSPACE", "SANS", "opened"]

MONOSPACE = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace'
SANS = '-apple-system,BlinkMacSystemFont,"Segoe UI",Helvetica,Arial,sans-serif'


def opened(title: str, *, width: int, height: int) -> tuple[str, str]:
    """Return the first lines of an SVG, with a title for readers who cannot see the picture."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={quoteattr(title)}>'
    return svg, f"<title>{escape(title)}</title>"
