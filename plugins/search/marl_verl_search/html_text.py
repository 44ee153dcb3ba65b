"""The text and the links of an HTML page."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin

Links = list[tuple[str, str]]

HIDDEN = frozenset(("script", "style", "noscript", "template", "svg"))
_BLOCKS = """address article aside blockquote br dd div dl dt figcaption footer form h1 h2 h3 h4 h5 h6 header hr li main
nav ol p pre section table title tr ul"""
LINES = frozenset(_BLOCKS.split())


def page_text(html: str, url: str) -> tuple[str, Links]:
    """(text, links as pairs of label and absolute address) of a page at `url`; blocks are lines, cells follow a `|`."""
    page = _Page(url)
    page.feed(html)
    page.close()
    lines = (" ".join(line.split()) for line in "".join(page.texts).splitlines())
    return "\n".join(line for line in lines if line), list(
        {target: (label, target) for label, target in page.links}.values()
    )


class _Page(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.links: Links = []
        self._url = url
        self._hidden: list[str] = []
        self._link: tuple[str, int] | None = None  # target, and number of texts before its label

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in HIDDEN:
            self._hidden.append(tag)
        elif tag in LINES:
            self.texts.append("\n")
        elif tag in ("td", "th"):
            self.texts.append(" | ")
        elif tag == "a":
            self._target(dict(attributes).get("href"))

    def _target(self, reference: str | None) -> None:
        self._close_link()
        try:
            target = urldefrag(urljoin(self._url, reference or "")).url
        except ValueError:  # no valid address
            return
        if target.startswith(("http://", "https://")) and target != urldefrag(self._url).url:
            self._link = target, len(self.texts)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden and tag == self._hidden[-1]:
            self._hidden.pop()
        elif tag in LINES:
            self.texts.append("\n")
        elif tag == "a":
            self._close_link()

    def _close_link(self) -> None:
        if self._link is not None:
            target, first = self._link
            if label := " ".join("".join(self.texts[first:]).split()):
                self.links.append((label, target))
            self._link = None

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.texts.append(data)
