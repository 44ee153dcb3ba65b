"""The text and the links of an HTML page, in time linear in its length whatever it contains.

`html.parser` is quadratic on `<a <a <a ...`: 256 KiB of it take minutes, in which a rollout worker does nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urldefrag, urljoin

Links = list[tuple[str, str]]

MOST_LINKS = 3000
"""Links that are read; those after them are text only."""
HIDDEN = frozenset(("script", "style", "noscript", "template", "svg", "textarea"))
_BLOCKS = """address article aside blockquote br dd div dl dt figcaption footer form h1 h2 h3 h4 h5 h6 header hr li main
nav ol p pre section table title tr ul"""
LINES = frozenset(_BLOCKS.split())

_NAME = re.compile(r"/?[a-zA-Z][a-zA-Z0-9]*")
_HREF = re.compile(r"""(?:^|[\s"'])href\s*=\s*(?:"([^"]*)|'([^']*)|([^\s"'>]+))""", re.IGNORECASE)
_ENDS = {name: re.compile(rf"</{name}\b", re.IGNORECASE) for name in HIDDEN}


def page_text(html: str, url: str) -> tuple[str, Links]:
    """(text, links as pairs of label and absolute address) of a page at `url`; blocks are lines, cells follow a `|`."""
    texts: list[str] = []
    links: dict[str, str] = {}  # address -> label
    target, first, count = "", 0, 0  # the open link, number of texts before its label, number of links
    for name, content in _pieces(html):
        if name in ("a", "/a"):
            if target and (label := " ".join("".join(texts[first:]).split())):
                links.setdefault(target, label)
            count += name == "a"
            target, first = _target(content, url) if name == "a" and count <= MOST_LINKS else "", len(texts)
        elif not name:
            texts.append(unescape(content))
        elif name.removeprefix("/") in LINES:
            texts.append("\n")
        elif name in ("td", "th"):
            texts.append(" | ")
    lines = (" ".join(line.split()) for line in "".join(texts).splitlines())
    return "\n".join(line for line in lines if line), [(label, address) for address, label in links.items()]


def _pieces(html: str) -> Iterator[tuple[str, str]]:
    """(name, attributes) of each tag, an end as "/name"; ("", text) of each text. What `HIDDEN` elements have is left
    out, as are comments."""
    place = 0
    while (start := html.find("<", place)) >= 0:
        if start > place:
            yield "", html[place:start]
        comment = html.startswith("<!--", start)
        end = html.find("-->" if comment else ">", start)
        tag = _NAME.match(html, start + 1)
        if end < 0:  # neither a tag nor a comment that ends
            if not comment and tag is None:
                yield "", html[start:]
            return
        place = end + (3 if comment else 1)
        if tag is None and html[start + 1] not in "!?/":  # as in 1 < 2
            yield "", "<"
            place = start + 1
        elif tag is not None:
            name = tag[0].lower()
            yield name, html[tag.end() : end]
            if name in HIDDEN:
                hidden = _ENDS[name].search(html, place)
                if hidden is None:
                    return
                place = hidden.start()
    yield "", html[place:]


def _target(attributes: str, url: str) -> str:
    """The absolute address of a link to another page, without fragment; "" for another one."""
    href = _HREF.search(attributes)
    if href is None:
        return ""
    try:
        target = urldefrag(urljoin(url, unescape(href[1] or href[2] or href[3] or "").strip())).url
    except ValueError:  # no valid address
        return ""
    return target if target.startswith(("http://", "https://")) and target != urldefrag(url).url else ""
