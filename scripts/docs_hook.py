"""MkDocs hook of the documentation site: adds the generated pages, follows links out of docs/, renders equations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs_site import api, commands, config, errors, links, maths
from mkdocs.structure.files import File, Files

PAGES = {**api.PAGES, **commands.PAGES, **config.PAGES, **errors.PAGES, **links.PAGES}
"""Path of a generated page -> the function that writes it."""


def on_config(config: Any) -> Any:
    """Append the pages that `nav` does not name: a new page of docs/, plugins/ or recipes/ has a place at once."""
    there = sorted({*PAGES, *(path.name for path in Path(config.docs_dir).glob("*.md"))})
    named = set(_named(config.nav))
    sections = {name: pages for section in config.nav for name, pages in section.items()}
    for page in there:
        if page not in named:
            kind = {"plugins": "Tasks", "recipes": "Recipes"}.get(page.partition("/")[0], "How-to")
            sections[kind].append(page)
    return config


def _named(nav: Any) -> Iterator[str]:
    """The pages of a navigation."""
    for item in nav if isinstance(nav, list) else nav.values():
        if isinstance(item, str):
            yield item
        else:
            yield from _named(item)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, as if they were in docs/."""
    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return maths.hidden(links.followed(markdown, page.file.src_uri), page)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    return maths.rendered(html, page)
