"""Settings of Sphinx for the site: `make docs`."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Final

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_DOCS: Final = Path(__file__).resolve().parent
_ROOT: Final = _DOCS.parent

project = "kplane"
author = "the authors of kplane"
release = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
exclude_patterns = ["pictures/*.toml"]
suppress_warnings = ["misc.highlighting_failure"]  # of transcripts whose commands go over several lines
smartquotes = False
myst_heading_anchors = 4
html_theme = "furo"
html_title = "kplane"
html_copy_source = False
html_show_copyright = False


class RepositoryLinks(SphinxTransform):
    """Has links to files of the repository outside of docs/ lead there: on GitHub, or in the checkout.

    MyST warns about the others: those that lead nowhere.
    """

    default_priority = 500

    def apply(self, **_: object) -> None:
        """Replace the links of one page."""
        for node in [*self.document.findall(pending_xref), *self.document.findall(download_reference)]:
            if node.get("reftype") != "myst":
                continue
            path, _, anchor = node["reftarget"].partition("#")
            anchor = node.get("reftargetid") or anchor
            file = (_DOCS / self.env.docname).parent / path
            # A document outside is named without its suffix.
            found = next((each.resolve() for each in (file, file.with_name(f"{file.name}.md")) if each.exists()), None)
            if found is not None and found.is_relative_to(_ROOT) and not found.is_relative_to(_DOCS):
                uri = self._uri(found) + (f"#{anchor}" if anchor else "")
                node.replace_self(nodes.reference("", "", *node.children, refuri=uri))

    def _uri(self, file: Path) -> str:
        if repository := os.environ.get("GITHUB_REPOSITORY"):
            server, commit = os.environ["GITHUB_SERVER_URL"], os.environ["GITHUB_SHA"]
            return f"{server}/{repository}/blob/{commit}/{file.relative_to(_ROOT)}"
        return os.path.relpath(file, (Path(self.app.outdir) / self.env.docname).parent)


def setup(app: Sphinx) -> None:
    """Add the transform."""
    app.add_transform(RepositoryLinks)
