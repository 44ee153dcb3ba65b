"""Where a workflow searches: a server in Search-R1's protocol, a function, a corpus; and their failures."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from marl_verl_search import source
from marl_verl_search.look_up import LookUpTasks, TinySearchTeam
from marl_verl_search.routed import SearchTeam
from marl_verl_search.source import ask
from marl_verl_testing import ScriptedPolicy, check_task, check_workflow, shown

from marl_verl import MarlError, Task
from marl_verl.options import build

TASK = Task("q", "When?", {"answers": ["1912"]})
POLICY = ScriptedPolicy({"verifier": "<verify>no</verify>", "searcher": "<search>town</search>", "answerer": "?"})


class Handler(BaseHTTPRequestHandler):
    replies: list[Any] = []
    seen: list[Any] = []

    def do_POST(self) -> None:
        self.seen.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        reply = self.replies[min(len(self.seen), len(self.replies)) - 1]
        self.send_response(500 if reply is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode() if reply is not None else b"")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Handler.seen = []
    monkeypatch.setenv("no_proxy", "*")
    found = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}/retrieve"
    found.shutdown()
    found.server_close()


DOCUMENTS = [
    {"document": {"id": "0", "contents": '"Norrvik"\nA town.'}, "score": 0.9},
    {"document": {"title": "Sundby", "text": "A bridge."}, "score": 0.5},
    {"id": "2", "contents": "No title"},
]


def test_a_retrieval_server(server: str) -> None:
    Handler.replies = [{"result": [DOCUMENTS]}]
    assert asyncio.run(ask(server, "town", 3)) == ["Norrvik: A town.", "Sundby: A bridge.", "No title"]
    assert Handler.seen == [("/retrieve", {"queries": ["town"], "topk": 3, "return_scores": True})]
    run = check_workflow(SearchTeam(source=server, steps=2, found=1), TASK, POLICY)
    assert "<information>Norrvik: A town.</information>" in shown(run.turns[-1][0])


def test_a_server_that_fails_once_is_asked_again(server: str) -> None:
    Handler.replies = [None, {"result": [DOCUMENTS]}]
    assert len(asyncio.run(ask(server, "town", 2))) == 2
    assert len(Handler.seen) == 2


@pytest.mark.parametrize("reply", [None, {"result": [[{"document": {}}]]}])
def test_a_server_that_fails_is_named(server: str, reply: Any) -> None:
    Handler.replies = [reply]
    with pytest.raises(RuntimeError, match=r"the retrieval server http://127\.0\.0\.1:\d+/retrieve failed 3 times"):
        asyncio.run(ask(server, "town", 1))


def test_a_function_searches_the_web(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find(query: str, most: int) -> list[str]:
        return [f"{query} {most}"]

    for function in (find, lambda query, most: [f"{query} {most}"]):
        monkeypatch.setattr(source, "FIND", function, raising=False)
        source.function.cache_clear()
        find_with = SearchTeam(source="web:marl_verl_search.source:FIND").finder(TASK)
        assert asyncio.run(find_with("town", 3)) == ["town 3"]
    monkeypatch.setattr(source, "FIND", lambda query, most: "town", raising=False)
    source.function.cache_clear()
    with pytest.raises(MarlError, match="must be a list, got 'town'"):
        asyncio.run(SearchTeam(source="web:marl_verl_search.source:FIND").finder(TASK)("town", 3))
    source.function.cache_clear()


def test_a_corpus(tmp_path: Path) -> None:
    file = tmp_path / "wiki.jsonl"
    file.write_text('{"title": "Norrvik", "text": "A town."}')
    run = check_workflow(SearchTeam(source=str(file), steps=2), TASK, POLICY)
    assert "<information>Norrvik: A town.</information>" in shown(run.turns[-1][0])


@pytest.mark.parametrize(
    "source", ["/nowhere/wiki.jsonl", "web:no.such.module:find", "web:marl_verl_search.source:aks"]
)
def test_a_source_that_is_not_there(source: str) -> None:
    with pytest.raises(MarlError, match=source.rpartition(":")[2]):
        build(SearchTeam, {"source": source}, "o")
    with pytest.raises(MarlError, match="the data of task 'q' has no 'paragraphs'"):
        check_workflow(SearchTeam(), TASK, POLICY)


def teller(told: dict[str, str]) -> Any:
    return lambda act: told[shown(act)]


def test_look_up_for_tiny_models() -> None:
    tasks = LookUpTasks()
    train, test = tasks.generate("train", 300, 1), tasks.generate("test", 30, 1)
    assert not {task.id for task in train} & {task.id for task in test}
    words = set(tasks.vocabulary())
    for agent in ("verifier", "searcher", "answerer"):
        assert all(set(f"{seen} {said}".split()) <= words for seen, said in tasks.demonstrations(agent, 200, 0, 0.5))
    right = {agent: dict(tasks.demonstrations(agent, 9000, 0, 1.0)) for agent in ("verifier", "searcher", "answerer")}
    policy = ScriptedPolicy({agent: teller(told) for agent, told in right.items()})
    run = check_workflow(TinySearchTeam(), train[0], policy)
    assert [act.agent for act, _ in run.turns] == ["verifier", "searcher", "verifier", "answerer"]
    assert tasks.score(train[0], run.answer) == 1.0


def test_the_kit_checks_the_tiny_tasks() -> None:
    check_task(LookUpTasks(), lambda task: [task.data["answers"][0], "pink", ""])
