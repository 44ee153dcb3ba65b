"""The documentation site: it builds without a warning, a newcomer finds the way, and its generated pages are true."""

import functools
import logging
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.batches import SHIPPED

pytest.importorskip("material", reason="make docs needs pip install 'marl-verl[docs]'")
pytest.importorskip("mkdocstrings_handlers.python", reason="make docs needs pip install 'marl-verl[docs]'")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. It is built with `strict`: every warning fails, such as a link or an anchor that is not there."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    folder, said = tmp_path_factory.mktemp("site"), list[str]()
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
    assert config.strict
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mkdocs").addHandler(handler)
    try:
        config.plugins.run_event("startup", command="build", dirty=False)
        build(config)
    except Abort as error:
        pytest.fail(f"{error}: {said}")
    finally:
        logging.getLogger("mkdocs").removeHandler(handler)
    return folder


class Links(HTMLParser):
    """The links of a page: what a reader can click, and what the page loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.clicked, self.loaded, self.anchors = list[str](), list[str](), set[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors.add(given.get("id") or "")
        if tag == "a" and given.get("href"):
            self.clicked.append(str(given["href"]))
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.loaded.append(str(given["src"]))
        if tag == "link" and given.get("rel") != "canonical" and given.get("href"):
            self.loaded.append(str(given["href"]))


read = functools.cache(Links)


def reached(page: Path) -> Iterator[Path]:
    """The pages of the site to which a page links."""
    for link in read(page).clicked:
        path = urldefrag(unquote(link)).url
        if path and "://" not in path and path.endswith(".html"):
            yield (page.parent / path).resolve()


def test_every_page_can_be_reached_and_every_link_leads_somewhere(site: Path) -> None:
    found, waiting = set[Path](), [site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page not in found:
            assert page.is_file(), page
            found.add(page)
            waiting += reached(page)
    assert found == {page for page in site.rglob("*.html") if page.name != "404.html"}
    for page in found:
        for link in read(page).clicked:
            path, anchor = urldefrag(unquote(link))
            if path and "://" not in path and path.endswith(".html") and anchor:
                assert anchor in read((page.parent / path).resolve()).anchors, f"{page.name} -> {link}"


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not [link for link in read(page).loaded if re.match(r"(https?:)?//", link)], page.name


def test_every_algorithm_has_its_equation_drawn(site: Path) -> None:
    text, source = ((site / "equations.html").read_text("utf-8"), (ROOT / "docs" / "equations.md").read_text("utf-8"))
    assert text.count('display="block"') == source.count("```math")
    sections = dict(re.findall(r'<h2 id="[^"]*">([^<]+).*?</h2>(.*?)(?=<h2|</article>)', text, re.DOTALL))
    assert set(sections) == set(SHIPPED)
    for name, section in sections.items():
        assert re.search(r'<math [^>]*display="block"', section), name
    assert "```math" not in text
    assert "@@" not in text
