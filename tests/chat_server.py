"""A server that speaks as much of OpenAI's API as an endpoint needs, in a thread, with answers that a test gives."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

AT_ONCE = {"retry-after-ms": "1"}
"""Sent to the package, so that no test waits half a second for a second try."""


@dataclass
class Reply:
    """A response: an HTTP status, and a body that is sent as JSON unless it is a string."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(AT_ONCE))


def completion(text: str, tokens: int = 3) -> Reply:
    """A chat completion."""
    body: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    body["choices"] = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
    return Reply({**body, "usage": usage})


def refused(status: int, message: str, code: Any = None) -> Reply:
    """An error as OpenAI's API words it."""
    return Reply({"error": {"message": message, "type": "error", "param": None, "code": code}}, status)


def models(*names: str) -> Reply:
    return Reply({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


@dataclass
class ChatServer:
    """A running server.

    Attributes:
        answer: what a chat request's JSON gets.
        models: what /v1/models gets.
        asked: the JSON of every chat request, in the order of arrival.
        headers: of every request, names in lower case.
    """

    answer: Callable[[dict[str, Any]], Reply]
    models: Reply
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def serving(answer: Callable[[dict[str, Any]], Reply], models: Reply) -> Iterator[ChatServer]:
    """A server on a free port of this machine."""
    server = ChatServer(answer, models)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(server.models if self.path == "/v1/models" else refused(404, "nothing here"))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path not in ("/v1/chat/completions", "/v1/completions"):
                return self._reply(refused(404, "nothing here"))
            server.asked.append(request)
            self._reply(server.answer(request))

        def _reply(self, reply: Reply) -> None:
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
            kind = "text/html" if text.startswith("<") else "application/json"
            self.send_response(reply.status)
            headers = {"content-type": kind, "content-length": str(len(text.encode())), **reply.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that has gone away, because its time was over."""

    http = Quiet(("127.0.0.1", 0), Handler)
    server.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
