"""The documentation site: it builds without a warning, a newcomer finds the way, and its generated pages are true."""

from __future__ import annotations

import functools
import importlib
import logging
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from marl_verl.cli.main import COMMANDS, registered
from tests.batches import SHIPPED
from tests.browser import chromium, needs_chromium
from tests.test_public_names import PUBLIC

pytest.importorskip("material", reason="make docs needs pip install 'marl-verl[docs]'")
pytest.importorskip("mkdocstrings_handlers.python", reason="make docs needs pip install 'marl-verl[docs]'")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages() -> Iterator[Any]:
    """The modules that write the generated pages."""
    sys.path.insert(0, str(ROOT / "scripts"))
    names = ("config", "errors", "maths", "commands")
    yield {name: importlib.import_module(f"docs_site.{name}") for name in names}
    sys.path.remove(str(ROOT / "scripts"))


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


@pytest.mark.long
def test_what_a_newcomer_looks_for_is_two_clicks_away(site: Path) -> None:
    """From the first page: at most two links to follow."""
    first = site / "index.html"
    near = {first, *reached(first)}
    near |= {further for page in near.copy() for further in reached(page)}
    for path, shown in {
        "start.html": "make install",
        "tutorial-first-team.html": "SendAndAnswer",
        "config.html": "max_failed_share",
        "errors.html": "unknown key",
        "errors-a-to-z.html": "all policies are frozen",
        "api/algo.sampling.html": 'id="marl_verl.algo.sampling.Sampler"',
    }.items():
        assert site / path in near, path
        assert shown in (site / path).read_text(encoding="utf-8"), shown


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


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_its_place(name: str, site: Path) -> None:
    page = site / "api" / f"{name.removeprefix('marl_verl').lstrip('._') or 'index'}.html"
    anchors = read(page).anchors
    for each in importlib.import_module(name).__all__:
        if name == "marl_verl":
            assert f">{each}</code>" in page.read_text(encoding="utf-8") or each == "__version__", each
        else:
            assert {f"{name}.{each}", f"{name}.{each}.{each}"} & anchors, each  # the second: named as its file


def test_every_algorithm_has_its_equation_drawn(site: Path) -> None:
    text, source = ((site / "equations.html").read_text("utf-8"), (ROOT / "docs" / "equations.md").read_text("utf-8"))
    assert text.count('display="block"') == source.count("```math")
    sections = dict(re.findall(r'<h2 id="[^"]*">([^<]+).*?</h2>(.*?)(?=<h2|</article>)', text, re.DOTALL))
    assert set(sections) == set(SHIPPED)
    for name, section in sections.items():
        assert re.search(r'<math [^>]*display="block"', section), name
    assert "```math" not in text
    assert "@@" not in text


def test_every_key_has_a_meaning(pages: dict[str, Any]) -> None:
    keys = {key.path: key for key in pages["config"].of_schema()}
    assert not [path for path, key in keys.items() if not key.meaning]
    assert keys["marl.run.seed"].default == "0"
    assert keys["marl.run.seed"].allowed == "a whole number >= 0"
    assert keys["marl.schedule.max_staleness"].meaning.startswith("updates by which a row may be older")
    assert keys["marl.policies.NAME.tiny.good"].allowed == "a number >= 0 and <= 1"


def test_keys_of_verl_have_our_defaults_and_verls_meanings(pages: dict[str, Any]) -> None:
    keys = {key.path: key for key in pages["config"].of_verl()}
    rate = keys["actor_rollout_ref.actor.optim.lr"]
    assert (float(rate.default), rate.meaning) == (1e-6, "Learning rate")
    assert rate.allowed.startswith("a number > 0 and <= 1")
    assert "trainer.balance_batch" not in keys, "it has no effect on a team"
    explained = sum(bool(key.meaning) for key in keys.values())
    assert explained > 0.9 * len(keys), f"verl's comments explain {explained} of {len(keys)} keys"


def test_every_command_and_option_is_listed(site: Path, pages: dict[str, Any]) -> None:
    text = (site / "commands.html").read_text(encoding="utf-8")
    parsers = pages["commands"].parsers()
    assert set(parsers) == {*COMMANDS, *registered()}
    for name, parser in parsers.items():
        assert f'<h2 id="{name}">' in text
        for action in parser._actions[1:]:
            for option in action.option_strings:
                assert option in text, option


def test_the_common_errors_are_errors(pages: dict[str, Any]) -> None:
    """Each heading is part of a message in the source."""
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## `(.+)`$", text, re.MULTILINE)
    assert len(headings) > 15
    messages = pages["errors"].messages()
    for heading in headings:
        assert any(heading in message for message in messages), heading


def test_messages_are_those_of_the_source(pages: dict[str, Any]) -> None:
    messages = pages["errors"].messages()
    assert messages["recipe '{...}' must be a .yaml file of at most {...} bytes"] == "marl_verl/config/recipe_file.py"
    assert len(messages) > 400
    built = "'{...}.rollout.max_model_len' is {...}, but its model has a context of {...} tokens"  # in two steps
    assert any(message.startswith(built) for message in messages)


@pytest.mark.slow
@needs_chromium
def test_it_is_readable_in_a_browser(site: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as page:
        for name in ("index", "equations", "config", "api/algo.sampling", "errors-a-to-z"):
            for width, dark in ((400, True), (1600, False)):
                page.open((site / f"{name}.html").as_uri(), width, dark, ready=False)
                page.wait(f"location.pathname.endsWith('/{name}.html') && document.readyState === 'complete'")
                page.value("localStorage.clear()")  # Material keeps the first choice of colours
                page.call("Page.reload")
                page.wait(f"document.body?.dataset.mdColorScheme === '{'slate' if dark else 'default'}'")
                assert page.value("document.documentElement.scrollWidth") <= width, f"{name} at {width}"
                equations = "[...document.querySelectorAll('math[display=block]')]"
                assert page.value(f"{equations}.filter((one) => one.scrollHeight > one.clientHeight).length") == 0, name
        assert not page.problems
