"""`python -m tests.benchmarks.clients`: what a request costs more than the same act, in this process and over HTTP.

The client of the gateway is a process of its own that writes prepared requests to 100 keep-alive connections, so that
it costs little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
from marl_verl_agents import openai_client, transport
from marl_verl_agents.gateway import Endpoints, ExternalWorkflow, process

from marl_verl.algo.sampling import drive
from marl_verl.episode import Action, Run, Workflow
from marl_verl.episode.errors import Limits
from marl_verl.tasks.task import Task

TASK = Task("t", "2 + 2 = ?")
MESSAGES: Any = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": "2 + 2 = ? " * 20}]
BODY = json.dumps({"model": "m", "messages": MESSAGES}).encode()
ACTION = Action("4", list(range(100)), [1, 2], [-1.0, -1.0])


class Chatter(Workflow):
    """`acts` acts in each of some concurrent lanes; returns the seconds. `way`: act, transport or openai."""

    way: str = "act"
    lanes: int = 1
    acts: int = 200

    async def run(self, task: Task, team: Any) -> float:
        through, client = transport(team, "solver"), openai_client(team, "solver")

        async def lane(name: str) -> None:
            for _ in range(self.acts):
                if self.way == "act":
                    await team["solver"].act(MESSAGES, slot=name)
                elif self.way == "openai":
                    await client.chat.completions.create(model="m", messages=MESSAGES)
                else:
                    request = httpx.Request("POST", "http://team/v1/chat/completions", content=BODY)
                    await through.handle_async_request(request)

        begun = time.perf_counter()
        await asyncio.gather(*(lane(f"lane{number}") for number in range(self.lanes)))
        return time.perf_counter() - begun


class Requests(ExternalWorkflow):
    """The same acts as requests of another process."""

    lanes: int = 100
    acts: int = 20

    async def run(self, task: Task, endpoints: Endpoints) -> float:  # type: ignore[override]
        command = ("-m", "tests.benchmarks.clients", "--client", endpoints["solver"].openai)
        return float((await process(sys.executable, *command, str(self.lanes), str(self.acts))).output)


async def client(url: str, lanes: int, acts: int) -> float:
    """The seconds that all requests take."""
    parts = urlsplit(url)
    head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: {len(BODY)}\r\n\r\n"
    connections = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(lanes)]

    async def lane(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(acts):
            writer.write(head.encode() + BODY)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in answer.split(b"\r\n")[0], answer
            size = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(size.split(b":")[1]))

    begun = time.perf_counter()
    await asyncio.gather(*(lane(*pair) for pair in connections))
    return time.perf_counter() - begun


async def seconds(workflow: Workflow) -> float:
    """Time of all acts of one run."""

    async def sample(act: Any) -> Action:
        return ACTION

    async with Run(workflow, TASK, ["solver"], limits=Limits(acts=10**6)) as run:
        await drive(run, sample)
        return float(run.answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="pairs of runs")
    parser.add_argument("--client", nargs=3, help="URL, lanes and acts (of the other process)")
    options = parser.parse_args()
    if options.client:
        url, lanes, acts = options.client
        print(asyncio.run(client(url, int(lanes), int(acts))))
        return
    pairs: dict[str, tuple[Any, Any]] = {
        "transport": (Chatter(), Chatter("transport")),
        "openai": (Chatter(), Chatter("openai")),
        "gateway": (Chatter("act", 100, 20), Requests()),
    }
    for name, (plain, other) in pairs.items():
        asyncio.run(seconds(other))  # imports
        both = [(asyncio.run(seconds(plain)), asyncio.run(seconds(other))) for _ in range(options.rounds)]
        count = plain.lanes * plain.acts
        act, more = (
            1000 * statistics.median(values) / count for values in ([a for a, _ in both], [b - a for a, b in both])
        )
        print(f"{name:<10} {more:+.3f} ms a request more than an act, which takes {act:.3f} ms, {plain.lanes} at once")


if __name__ == "__main__":
    main()
