"""The text and the links of an HTML page, in time linear in its length whatever it contains.

`html.parser` is quadratic on `<a <a <a ...`: 256 KiB of it take minutes, in which a rollout worker does nothing else.
"""

import re
from html import unescape
from urllib.parse import urldefrag, urljoin

_BLOCKS = """address article aside blockquote br dd div dl dt figcaption footer form h1 h2 h3 h4 h5 h6 header hr li main
nav ol p pre section table title tr ul"""
LINES = frozenset(_BLOCKS.split())
# A comment, a hidden element, a tag with its name and attributes, a declaration, or text. Each may end with the page,
# so that none is tried again from a later place.
_PIECE = re.compile(
    r"<!(?=--).*?(?:-->|\Z)"
    r"|<(script|style|noscript|template|svg|textarea)\b.*?(?:</\1\b[^>]*(?:>|\Z)|\Z)"
    r"|<(?P<name>/?[a-z][a-z0-9]*)(?P<attributes>[^>]*)(?:>|\Z)|<[!?/][^>]*(?:>|\Z)|(?P<text>[^<]+|<)",
    re.IGNORECASE | re.DOTALL,
)
_HREF = re.compile(r"""(?:^|[\s"'])href\s*=\s*(?:"([^"]*)|'([^']*)|([^\s"'>]+))""", re.IGNORECASE)


def page_text(html: str, url: str) -> tuple[str, list[tuple[str, str]]]:
    """(text, links as pairs of label and absolute address) of a page at `url`; blocks are lines, cells follow a `|`."""
    texts: list[str] = []
    links: dict[str, str] = {}  # address -> label
    target, first = "", 0  # the open link, number of texts before its label
    for piece in _PIECE.finditer(html):
        name = (piece["name"] or "").lower()
        if name in ("a", "/a"):
            if target and (label := " ".join("".join(texts[first:]).split())):
                links.setdefault(target, label)
            target, first = _target(piece["attributes"], url) if name == "a" else "", len(texts)
        elif piece["text"]:
            texts.append(unescape(piece["text"]))
        elif name.removeprefix("/") in LINES:
            texts.append("\n")
        elif name in ("td", "th"):
            texts.append(" | ")
    lines = (" ".join(line.split()) for line in "".join(texts).splitlines())
    return "\n".join(line for line in lines if line), [(label, address) for address, label in links.items()]


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
