"""The site's parts beside the pages of docs/: mermaid for their drawings, and the other files that they link to.

mkdocs calls `on_files` and `on_page_markdown` by their names (mkdocs.yml, `hooks`).
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from testbed.mermaid import mermaid_script

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?![a-z]+:|#|/)([^)#\s]+)")
"""A link's path in Markdown, when it is relative."""

OUTSIDE = "repository/"
"""The folder of the site that has the files that are not in docs/."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add mermaid's script, and each file outside docs/ that a page links to."""
    files.append(File.generated(config, "mermaid.min.js", abs_src_path=str(mermaid_script())))
    pages = list(files.documentation_pages())
    while pages:
        for path in sorted(_linked(pages.pop())):
            # A link to a file that does not exist is reported by mkdocs as broken.
            if not path.startswith("docs/") and OUTSIDE + path not in files.src_uris and (ROOT / path).is_file():
                added = File.generated(config, OUTSIDE + path, abs_src_path=str(ROOT / path))
                files.append(added)
                pages += [added] if added.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links as they are in the site."""
    here = page.file.src_uri

    def in_site(link: re.Match[str]) -> str:
        path = _in_repository(here, link[1])
        site = path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE + path
        return f"]({posixpath.relpath(site, posixpath.dirname(here))}"

    return LINK.sub(in_site, markdown)


def _linked(page: File) -> set[str]:
    return {_in_repository(page.src_uri, link[1]) for link in LINK.finditer(page.content_string)}


def _in_repository(page: str, link: str) -> str:
    """Return the path from the repository's root of what a page of the site links to."""
    source = page.removeprefix(OUTSIDE) if page.startswith(OUTSIDE) else f"docs/{page}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
