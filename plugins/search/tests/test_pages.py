"""Pages that agents read: files, and the web without the machine's own network."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from marl_verl_sandbox.pool import SandboxError
from marl_verl_search import pages, planner
from marl_verl_search.pages import PASSAGE, WEB, page_text, public, read_page
from marl_verl_search.planner import PlannerAndSearchers
from marl_verl_search.tasks import SearchTasks
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown

from marl_verl import Task
from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act

HTML = """<!doctype html><html><head><title>Norrvik</title><script>var x = "hidden";</script></head><body>
<nav><a href="/">Home</a> <a href="/venue#map">The <b>venue</b></a> <a href="mailto:a@b.c">Mail</a></nav>
<p>A town &amp; its   bridge,<br>opened in 1912.</p><table><tr><td>a</td><td>1</td></tr></table><p>Last</body>"""
TEXT = "Norrvik\nHome The venue Mail\nA town & its bridge,\nopened in 1912.\n| a | 1\nLast"


def read(source: Path | str, url: str, words: str = "", most: int = 2) -> str:
    return asyncio.run(read_page(str(source), url, words, most))


def test_text_and_links_of_a_page() -> None:
    text, links = page_text(HTML, "https://norrvik.example.org/bridge")
    assert text == TEXT
    site = "https://norrvik.example.org"
    assert links == [("Home", f"{site}/"), ("The venue", f"{site}/venue")]
    assert page_text("a<!-- b > c --><P>d<!-->", site)[0] == "a\nd"
    assert page_text("<SCRIPT>if (a < b) '</p>'</Script>c<style>d", site)[0] == "c"
    assert page_text('<div class="x">a</div\n>b<td>1', site)[0] == "a\nb | 1"
    for piece in ("<a ", "<a href='", "<a href=x>y"):
        begin = time.process_time()
        page_text(piece * ((1 << 20) // len(piece)), site)
        assert time.process_time() - begin < 10  # a quadratic parser needs minutes


def test_a_file_of_pages_shows_the_passages_with_the_words(tmp_path: Path) -> None:
    file = tmp_path / "pages.jsonl"
    long = "\n".join(f"{name} {'word ' * (PASSAGE // 6)}" for name in ("north", "bridge", "south"))
    rows = [{"url": "https://a.org/town/", "title": "Town", "text": long}, {"url": "http://b.org", "text": "B."}]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert read(file, "http://a.org/town#top", "the south", 1).startswith("http://a.org/town#top:\n\nsouth word")
    assert read(file, "a.org/town", "zebra", 1).startswith("a.org/town:\n\nTown\nnorth")
    with pytest.raises(LookupError, match=r"there is no page http://a\.org/tow"):
        read(file, "http://a.org/tow")
    with pytest.raises(ValueError, match="is no address of a page"):
        read(file, "file:///etc/passwd")


class Handler(BaseHTTPRequestHandler):
    seen: list[tuple[str, str]] = []

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Host"]))
        url = parse_qs(urlsplit(self.path).query).get("url", [self.path])[0]
        if url.endswith("/away"):
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.2:{self.server.server_address[1]}/secret")
        else:
            self.send_response(404 if url.endswith("/none") else 200)
        self.send_header("Content-Type", "image/png" if url.endswith("/image") else "text/html; charset=latin-1")
        self.end_headers()
        if url.endswith("/slow"):
            time.sleep(3)
        text = HTML.replace("Last", "Där " * (10**6 if url.endswith("/long") else 1))
        with contextlib.suppress(OSError):  # the reader has enough
            self.wfile.write(text.encode("latin-1"))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Handler.seen = []
    monkeypatch.setenv("no_proxy", "*")
    http = ThreadingHTTPServer(("", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def test_a_page_of_the_web_is_text_within_limits(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "public", lambda address: address == "127.0.0.1")
    site = f"http://{server}"
    page = read(WEB, f"{site}/a?b=1&c", "venue Där")
    assert "Där" in page
    assert f"The venue: {site}/venue" in page
    with pytest.raises(LookupError, match=r"there is no page .*/none \(status 404\)"):
        read(WEB, f"{site}/none")
    with pytest.raises(ValueError, match="is no text: it is image/png"):
        read(WEB, f"{site}/image")
    monkeypatch.setattr(pages, "MEGABYTES", 1)
    assert len(read(WEB, f"{site}/long", most=10**6)) < (1 << 20) + 1000
    monkeypatch.setattr(pages, "SECONDS", 0.3)
    with pytest.raises(LookupError, match=r"/slow cannot be loaded"):
        read(WEB, f"{site}/slow")


INSIDE = """127.0.0.1 localhost 10.0.0.1 192.168.1.1 169.254.169.254 100.64.0.1 224.0.0.1 0.0.0.0 2130706433
[::1] [::ffff:127.0.0.1] [fd00::1] [fe80::1] [2002:7f00:1::] a..b"""


@pytest.mark.parametrize("host", INSIDE.split())
def test_the_web_has_no_address_of_this_machine_or_its_network(host: str, server: str) -> None:
    with pytest.raises((ValueError, LookupError), match=r"is no public host|there is no host"):
        read(WEB, f"http://{host}:{server.rpartition(':')[2]}/secret")
    assert Handler.seen == []


def test_a_redirect_or_a_second_resolution_does_not_reach_it(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(public, ("93.184.215.14", "2606:2800:21f::1")))
    monkeypatch.setattr(pages, "public", lambda address: address == "127.0.0.1")
    with pytest.raises(ValueError, match=r"127\.0\.0\.2.* is no public host"):
        read(WEB, f"http://{server}/away")
    assert [path for path, _ in Handler.seen] == ["/away"]
    port = server.rpartition(":")[2]
    assert "opened in 1912" in read(WEB, f"http://user:word@localhost:{port}/bridge", "opened")
    assert Handler.seen[-1] == ("/bridge", f"localhost:{port}")  # the checked address was connected to, by its name
    with pytest.raises(ValueError, match="is no address of a page"):
        read(WEB, f"ftp://{server}/")


PAGE = {"url": "https://norrvik.example.org/bridge", "title": "Bridge", "text": "It was opened in 1912 for 24 crowns."}
TASK = Task("q", "What was the price of the bridge in crowns?", {"answers": ["24"], "metric": "gaia"})


def test_a_worker_searches_and_reads_by_recorded_calls(tmp_path: Path) -> None:
    file = tmp_path / "pages.jsonl"
    file.write_text(json.dumps(PAGE))

    def worker(act: Act) -> str:
        return [
            "<search>bridge</search>",
            '<read url="https://norrvik.example.org/none">crowns</read>',
            '<read url="https://norrvik.example.org/bridge">crowns</read>',
            f"<report>{shown(act).split(' crowns')[0].split()[-1]}</report>",
        ][act.turn]

    def planner(act: Act) -> str:
        return '<ask to="worker">price</ask>' if act.turn == 0 else f"<answer>{shown(act).split()[2]}</answer>"

    team = PlannerAndSearchers(source=str(file), pages=str(file), searches=3)
    run = check_workflow(team, TASK, ScriptedPolicy({"planner": planner, "worker": worker}))
    assert SearchTasks().score(TASK, run.answer) == 1.0
    assert [call.raised is None for call in run.journal.calls()] == [True, False, True]
    observations = [shown(act) for act, _ in run.turns if act.agent == "worker"]
    assert '<read url="https://...">' in observations[0]
    assert "https://norrvik.example.org/bridge" in observations[1]  # a search shows what can be read
    assert observations[2].startswith("Error: there is no page")
    assert "No uses of tools left. To report what you found: <report>" in observations[3]


def test_a_broken_sandbox_is_no_error_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(code: str, seconds: float, strict: bool) -> str:
        raise SandboxError("the sandbox server failed")

    monkeypatch.setattr(planner, "run_python", broken)
    said = {"planner": "<python>print(1)</python>"}
    task = Task("q", "?", {"paragraphs": [PAGE]})
    context = ScriptedContext(PlannerAndSearchers(alone=True, python=True), task, ScriptedPolicy(said))
    (failure,) = asyncio.run(Independent(1).sample(context)).failures
    assert "the sandbox server failed" in failure.detail
