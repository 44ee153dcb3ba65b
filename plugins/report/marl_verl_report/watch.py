"""`marl-verl watch RUN`: serve the report of a running run on loopback.

It has the page, the episodes of a step, and Server-Sent Events with the metrics.
"""

import argparse
import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.errors import MarlError, shown
from marl_verl.run.run_dir import STARTS, is_running
from marl_verl.run.terminal import show
from marl_verl_report import overview, report, steps

PERIOD = 0.25
"""Seconds between two looks at the run directory."""

HEARTBEAT = 10.0
"""Maximum seconds between two events: a closed browser is noticed when one is sent."""

WATCHED = ("metrics.jsonl", "journals", "episodes", "rows", "summary.json", STARTS, "config.yaml")
LOCAL = "127.0.0.1"
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

EXAMPLES = """
The page of `marl-verl report`, which follows the run: new metrics and steps appear within 2 s. Only this machine can
open the printed address; from another one, forward its port: ssh -L 8400:127.0.0.1:8400 HOST

  marl-verl watch runs/inventory-1                 a free port; Ctrl-C ends it, the run continues
  marl-verl watch runs/inventory-1 --port 8400
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Serve the report of a running run on this machine; it follows the run."
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: a free one)")
    add_plugin_argument(parser)


def run(options: argparse.Namespace) -> int:
    with contextlib.suppress(KeyboardInterrupt), Server(options.run, options.port, options.plugin) as server:
        show(f"watching {options.run}: open {server.address} (Ctrl-C ends this, not the run)")
        server.serve_forever()
    return 0


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
        try:
            super().__init__((LOCAL, port), _Handler)
        except (OSError, OverflowError) as error:
            why = f"port {port} of {LOCAL} cannot be used: {error}. Give another one with --port, or 0 for a free one."
            raise MarlError(why) from error

    @property
    def address(self) -> str:
        return f"http://{LOCAL}:{self.server_address[1]}/{self.secret}/"

    def reply(self, path: str, query: str) -> tuple[int, str, str]:
        """(status, content type, content) of a request for `path`, below the secret."""
        try:
            with self._lock:  # one at a time: explaining a step uses all of a core
                if path == "":
                    return 200, "text/html; charset=utf-8", report.html([overview.read(self.folder)], {}, live=True)
                if path == "step":
                    return 200, "application/json", report.as_json(self._step(query))
        except MarlError as error:
            return 500, "application/json", json.dumps({"error": str(error)})
        return 404, "application/json", json.dumps({"error": f"no page '{path}'"})

    def _step(self, query: str) -> dict[str, Any]:
        values = parse_qs(query)
        kind, step = values.get("kind", [""])[0], values.get("step", [""])[0]
        stored = {str(number): number for number in steps.stored(self.folder).get(kind, ())}
        if step not in stored:
            raise MarlError(f"step {shown(step)} of kind {shown(kind)} is not stored")
        return steps.read(self.folder, kind, stored[step])

    def events(self) -> Iterator[str]:
        """The run each time that its files, or whether it runs, have changed, as Server-Sent Events; empty comments in
        between. An error is an event too: it may be gone after the next change."""
        seen: object = None
        sent = time.monotonic()
        while True:
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
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class _Handler(BaseHTTPRequestHandler):
    timeout = 60  # seconds to send a request, or to take part of a reply

    def do_GET(self) -> None:
        server, (path, _, query) = cast(Server, self.server), self.path.partition("?")
        _, secret, *rest = [*path.split("/", 2), ""]
        with contextlib.suppress(ConnectionError, TimeoutError):  # the browser has been closed
            if not secrets.compare_digest(secret.encode(), server.secret.encode()):
                self._send(
                    403, "text/plain; charset=utf-8", "the address is the one that marl-verl watch has printed\n"
                )
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
