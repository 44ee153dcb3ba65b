"""`marl-verl watch RUN`: serve the report of a running or stored run on loopback.

It has the page, the episodes of a step, and Server-Sent Events with the metrics and the questions to a person. Its page
continues edited acts and plays held-out tasks by `evaluate`, which writes in `evaluations/` of the run only.
"""

import argparse
import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast
from urllib.parse import parse_qs

import msgspec
from marl_verl_evaluation.api import evaluate
from marl_verl_inspect.episodes import read_episodes

from marl_verl.cli.arguments import add_plugin_argument, at_least
from marl_verl.errors import MarlError, RunError, check_known, shown, user_error
from marl_verl.run.run_dir import STARTS, is_running
from marl_verl.run.terminal import show
from marl_verl_report import overview, report, steps
from marl_verl_report.human import Human, Page

PERIOD = 0.25  # seconds between two looks at the run directory

HEARTBEAT = 10.0  # maximum seconds between two events: a closed browser is noticed when one is sent

WATCHED = ("metrics.jsonl", "journals", "episodes", "rows", "summary.json", STARTS, "config.yaml")
LOCAL = "127.0.0.1"
LARGEST = 1 << 20  # bytes of a request's content that are read
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

EXAMPLES = """
The page of `marl-verl report`, which follows the run: new metrics and steps appear within 2 s. While the run is not
trained, the page continues its episodes from an edited act, and lets you act in the team. Only this machine can open
the printed address; from another one, forward its port: ssh -L 8400:127.0.0.1:8400 HOST

  marl-verl watch runs/inventory-1                 a free port; Ctrl-C ends it, the run continues
  marl-verl watch runs/inventory-1 --port 8400
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--port", type=at_least(0), default=0, metavar="N", help="on 127.0.0.1 (default: a free one)")
    add_plugin_argument(parser)


def run(options: argparse.Namespace) -> int:
    with contextlib.suppress(KeyboardInterrupt), Server(options.run, options.port, options.plugin) as server:
        show(f"watching {options.run}: open {server.address} (Ctrl-C ends this, not the run)")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.play_requests()
    return 0


@dataclass(frozen=True)
class Play:
    """What the page asks to play: `number` continuations of an edited act (episode, act, text), or held-out tasks.
    A person acts for the policy `person`."""

    number: int = 1
    edit: tuple[str, str, str] | None = None
    person: str | None = None


class Server(ThreadingHTTPServer):
    """Serves the report of one run until it is closed.

    Its address contains a secret, so that neither other users of the machine nor web pages can read the run. MarlError:
    no run, a damaged file, or the port is in use.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0, plugin_files: Sequence[Path] = ()) -> None:
        overview.use(folder, plugin_files)
        overview.read(folder)
        self.folder, self.secret, self._lock = folder, secrets.token_urlsafe(16), threading.Lock()
        self._files, self.page, self._plays = plugin_files, Page(), SimpleQueue[tuple[Play, Future[str]]]()
        with user_error(f"port {port} of {LOCAL} cannot be used, give another --port or 0", OSError, OverflowError):
            super().__init__((LOCAL, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{LOCAL}:{self.server_address[1]}/{self.secret}/"

    def reply(self, path: str, query: str, content: bytes | None = None) -> tuple[int, str, str]:
        """(status, content type, content) of a request for `path`, below the secret; `content`: what was posted."""
        try:
            if content is not None:
                return 200, "application/json", self._posted(path, content)
            with self._lock:  # one at a time: explaining a step uses all of a core
                if path == "":
                    return 200, "text/html; charset=utf-8", report.html([overview.read(self.folder)], {}, live=True)
                if path == "step":
                    return 200, "application/json", report.as_json(self._step(query))
        except (MarlError, RunError, msgspec.DecodeError) as error:
            return 500, "application/json", json.dumps({"error": str(error)})
        return 404, "application/json", json.dumps({"error": f"no page '{path}'"})

    def _step(self, query: str) -> dict[str, Any]:
        values = parse_qs(query)
        kind, step = values.get("kind", [""])[0], values.get("step", [""])[0]
        stored = {str(number): number for number in steps.stored(self.folder).get(kind, ())}
        if step not in stored:
            raise MarlError(f"step {shown(step)} of kind {shown(kind)} is not stored")
        return steps.read(self.folder, kind, stored[step])

    def _posted(self, path: str, content: bytes) -> str:
        if path == "answer":
            self.page.answer(*msgspec.json.decode(content, type=tuple[int, str | None]))
            return "{}"
        if path != "play":
            raise MarlError(f"nothing can be posted to '{path}'")
        played = Future[str]()
        self._plays.put((msgspec.json.decode(content, type=Play), played))
        return played.result()

    def play_requests(self) -> None:
        """Play what the page asks for, one after the other, until Ctrl-C: in the main thread, where it also ends the
        processes of an evaluation."""
        while True:
            play, played = self._plays.get()
            try:
                played.set_result(self._play(play))
            except Exception as error:  # noqa: BLE001 - raised where the page's request waits
                played.set_exception(error)

    def _play(self, play: Play) -> str:
        """Play by `evaluate`: JSON with the `pairings` of an edit, the `file` of the episodes, and them as a step."""
        overrides = [f"marl.rollout.keep_episodes={play.number}"]
        how: dict[str, Any] = {"tasks": play.number, "greedy_only": True}
        if play.edit is not None:
            how = {"edit": play.edit, "episodes": play.number}
        if play.person is not None:
            check_known("policy", play.person, overview.read(self.folder)["policies"])
            overrides, how = [*overrides, f"marl.policies.{play.person}.script=human"], {**how, "backend": "local"}
        Human.page = self.page
        try:
            done = evaluate(self.folder, overrides, plugins=self._files, **how)
        finally:
            Human.page = None
        file, pairings = done.file.with_suffix(".jsonl"), done.numbers.get("pairings")
        return report.as_json({"pairings": pairings, "file": str(file), "step": steps.of_file(read_episodes(file))})

    def events(self) -> Iterator[str]:
        """The run each time that its files, or whether it runs, have changed, and each question to a person or that it
        is over, as Server-Sent Events; empty comments in between. An error, too: the next change may mend it."""
        seen: object = None
        sent, asked = time.monotonic(), None
        while True:
            if (question := self.page.question) is not asked:
                sent, asked = time.monotonic(), question
                yield f"event: question\ndata: {report.as_json(question)}\n\n"
            state = [*(_state(self.folder / name) for name in WATCHED), is_running(self.folder)]
            if state != seen:
                seen, sent = state, time.monotonic()
                try:
                    yield f"event: runs\ndata: {report.as_json([overview.read(self.folder)])}\n\n"
                except (MarlError, OSError) as error:  # e.g. a file that is being replaced
                    yield f"event: problem\ndata: {json.dumps(str(error))}\n\n"
            elif time.monotonic() - sent > HEARTBEAT:
                sent = time.monotonic()
                yield ":\n\n"
            time.sleep(PERIOD)


def _state(path: Path) -> tuple[int, int] | None:
    """Changes whenever a file is written, or a file of a folder is added or replaced."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns, path.stat().st_size
    return None


class _Handler(BaseHTTPRequestHandler):
    timeout = 60  # seconds to send a request, or to take part of a reply

    def do_GET(self) -> None:
        self._reply()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        self._reply(int(length) if length.isdecimal() else 0)

    def _reply(self, length: int | None = None) -> None:
        """Answer a request; `length`: bytes of its content, if it posts one. Of another web page, which a browser shows
        under another host or origin, none."""
        server, (path, _, query) = cast(Server, self.server), self.path.partition("?")
        _, secret, *rest = [*path.split("/", 2), ""]
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        here = host.partition(":")[0] in (LOCAL, "localhost") and origin in (None, f"http://{host}")
        with contextlib.suppress(ConnectionError, TimeoutError):  # the browser has been closed
            if not here or not secrets.compare_digest(secret.encode(), server.secret.encode()):
                self._send(403, "text/plain; charset=utf-8", "open the address that marl-verl watch has printed\n")
            elif length is not None:
                self._send(*server.reply(rest[0], query, self.rfile.read(min(length, LARGEST))))
            elif rest[0] == "events":
                self._begin(200, "text/event-stream")
                for event in server.events():
                    self.wfile.write(event.encode())
            else:
                self._send(*server.reply(rest[0], query))

    def _send(self, status: int, kind: str, content: str) -> None:
        self._begin(status, kind)
        self.wfile.write(content.encode())

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: requests are not of interest, and their paths contain the secret."""
