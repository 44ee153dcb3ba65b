"""Pages that agents read, by a workflow's option `pages`:

    data/pages.jsonl                    a file of pages: JSON lines, a JSON list or parquet with `url` and `text`
    web                                 the address itself, over http or https

An address that is not public (loopback, private, link-local) is refused, also after a redirect: an agent reaches no
service of the machine or its network. A name is resolved once, and the connection is made to the address that was
checked; proxies of the environment are not used.
"""

import asyncio
import functools
import socket
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import httpx
from lxml import etree, html
from marl_verl_datasets import Fields

from marl_verl.errors import user_error
from marl_verl.tasks import read_rows
from marl_verl_search.source import Index

WEB = "web"
SECONDS, MEGABYTES, REDIRECTS = 30.0, 2, 5
PASSAGE = 1500  # characters of a passage
LINKS, MOST_LINKS = 10, 3000  # links that a page is shown with, and of how many the best are chosen
TEXTUAL = ("text/", "application/json", "application/xhtml+xml", "application/xml")


def check_pages(source: str) -> None:
    """MarlError if the option `pages` is neither a file of pages nor `web`."""
    if source != WEB:
        _file(Path(source).expanduser())


async def read_page(source: str, url: str, words: str, most: int) -> str:
    """A page's address, its `most` passages with the words, best first, and links; its beginning if none has a word.
    ValueError: the address is wrong or not allowed, or the page has no text. LookupError: there is no such page."""
    key, links = key_of(url), list[tuple[str, str]]()
    if source == WEB:
        kind, text = await _loaded(url)
        if "html" in kind:
            text, links = await asyncio.to_thread(page_text, text, url)
    else:
        pages = await asyncio.to_thread(_file, Path(source).expanduser())
        if key not in pages:
            raise LookupError(f"there is no page {url}")
        text = pages[key]
    passages = _passages(text)
    if not passages:
        raise ValueError(f"the page {url} has no text")
    shown = Index(passages).best(words, most) or passages[:most]
    if links:
        texts = [f"{label}: {target}" for label, target in links[:MOST_LINKS]]
        shown.append("Links:\n" + "\n".join(Index(texts).best(words, LINKS) or texts[:LINKS]))
    return "\n\n".join([f"{url}:", *shown])


def _passages(text: str) -> list[str]:
    """Lines joined to passages of at most `PASSAGE` characters; longer lines are cut."""
    passages: list[str] = []
    for line in text.splitlines():
        for start in range(0, len(line), PASSAGE):
            piece = line[start : start + PASSAGE].strip()
            if passages and len(passages[-1]) + len(piece) < PASSAGE:
                passages[-1] += f"\n{piece}"
            elif piece:
                passages.append(piece)
    return passages


def key_of(url: str) -> str:
    """HOST/PATH?QUERY of an address: what addresses of the same page share. ValueError for another text."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r:.200} is no address of a page: it must begin with http:// or https://")
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.hostname}{unquote(parts.path).rstrip('/')}{unquote(query)}"


@functools.lru_cache(maxsize=2)
def _file(path: Path) -> dict[str, str]:
    """Key -> text of the pages of a file. MarlError for a row without `url` or `text`."""
    pages = {}
    for number, row in read_rows(path, "pages"):
        fields = Fields(row, f"pages '{path}', row {number}")
        title = f"{fields.text('title')}\n" if "title" in fields else ""
        with user_error(fields.where, ValueError):
            pages[key_of(fields.text("url"))] = title + fields.text("text")
    return pages


async def _loaded(url: str) -> tuple[str, str]:
    """(content type, text) of a page of the web. LookupError if it cannot be loaded, ValueError if it may not."""
    try:
        async with asyncio.timeout(SECONDS), httpx.AsyncClient(timeout=SECONDS, trust_env=False) as client:
            target = httpx.URL(url if "://" in url else f"http://{url}")
            for _ in range(REDIRECTS + 1):
                checked = target.copy_with(host=await _public_address(target), username=None, password=None)
                headers = {"Host": target.netloc.decode(), "Accept-Encoding": "identity"}
                name = {"sni_hostname": target.raw_host.decode()}
                async with client.stream("GET", checked, headers=headers, extensions=name) as response:
                    if not response.has_redirect_location:
                        return await _content(response, url)
                    target = target.join(response.headers["location"])
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, UnicodeError) as error:
        raise LookupError(f"the page {url} cannot be loaded: {type(error).__name__} {error}".rstrip()) from error
    raise LookupError(f"the page {url} is redirected more than {REDIRECTS} times")


async def _public_address(url: httpx.URL) -> str:
    """An address of a host, all of whose addresses are public. ValueError if one is not, LookupError without any."""
    loop = asyncio.get_running_loop()
    try:
        places = await loop.getaddrinfo(url.host, url.port or 80, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise LookupError(f"there is no host '{url.host}'") from error
    addresses = [str(place[4][0]) for place in places]
    if not all(map(public, addresses)):
        raise ValueError(f"{url} is not allowed: '{url.host}' is no public host")
    return addresses[0]


def public(address: str) -> bool:
    """Whether an IP address is public; also of the IPv4 address within one of IPv6."""
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address):
        embedded = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo or (None, None))[1]
        if embedded is not None:
            return public(str(embedded))
    return parsed.is_global and not parsed.is_multicast


async def _content(response: httpx.Response, url: str) -> tuple[str, str]:
    """(content type, text), the first `MEGABYTES`. LookupError for an error's status, ValueError if it is no text."""
    if response.is_error:
        raise LookupError(f"there is no page {url} (status {response.status_code})")
    kind = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
    if not kind.startswith(TEXTUAL):
        raise ValueError(f"the page {url} is no text: it is {kind}")
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) >= MEGABYTES << 20:
            break
    if b"\0" in content:
        raise ValueError(f"the page {url} is no text")
    return kind, content[: MEGABYTES << 20].decode(response.encoding or "utf-8", errors="replace")


_HIDDEN = ("script", "style", "noscript", "template", "svg", "textarea")
_BLOCKS = """address article aside blockquote br dd div dl dt figcaption footer form h1 h2 h3 h4 h5 h6 header hr li main
nav ol p pre section table title tr ul"""


def page_text(page: str, url: str) -> tuple[str, list[tuple[str, str]]]:
    """(text, links as pairs of label and absolute address) of a page at `url`; blocks are lines, cells follow a `|`."""
    parser = html.HTMLParser(encoding="utf-8", huge_tree=True)
    root = html.document_fromstring(f"<html>{page}".encode(), parser, base_url=url)
    etree.strip_elements(root, *_HIDDEN, with_tail=False)
    root.make_links_absolute(handle_failures="discard")
    links: dict[str, str] = {}  # address -> label
    for link in root.iterfind(".//a[@href]"):
        target, label = urldefrag(link.get("href")).url, " ".join(link.text_content().split())
        if label and target.startswith(("http://", "https://")) and target != urldefrag(url).url:
            links.setdefault(target, label)
    for block in root.iter(*_BLOCKS.split()):
        block.text, block.tail = f"\n{block.text or ''}", f"\n{block.tail or ''}"
    for cell in root.iter("td", "th"):
        cell.text = f" | {cell.text or ''}"
    lines = (" ".join(line.split()) for line in root.text_content().splitlines())
    return "\n".join(line for line in lines if line), [(label, address) for address, label in links.items()]
