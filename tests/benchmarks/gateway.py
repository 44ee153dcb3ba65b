"""What a request to the gateway costs at 100 concurrent ones, against the same acts without HTTP.

The client is a process of its own that writes prepared requests to keep-alive connections, so that it costs little.
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

from marl_verl_agents.gateway import Endpoints, ExternalWorkflow, process

from marl_verl.algo.sampling import drive
from marl_verl.episode import Action, Limits, Run, Workflow
from marl_verl.tasks.base import Task

TASK = Task("t", "2 + 2 = ?")
MESSAGES = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": "2 + 2 = ? " * 20}]


class Acts(Workflow):
    """`lanes` concurrent lanes of `each` acts."""

    lanes: int = 100
    each: int = 20

    async def run(self, task: Task, team: Any) -> str:
        async def lane(name: str) -> None:
            for _ in range(self.each):
                await team["solver"].act(MESSAGES, slot=name)

        begun = time.perf_counter()
        await asyncio.gather(*(lane(f"lane{n}") for n in range(self.lanes)))
        return str(time.perf_counter() - begun)


class Requests(ExternalWorkflow):
    """The same acts as requests of another process."""

    lanes: int = 100
    each: int = 20

    async def run(self, task: Task, endpoints: Endpoints) -> str:  # type: ignore[override]
        words = ("-m", "tests.benchmarks.gateway", "--client", endpoints["solver"].openai)
        sizes = ("--lanes", str(self.lanes), "--each", str(self.each))
        return (await process(sys.executable, *words, *sizes)).output


async def client(url: str, lanes: int, each: int) -> None:
    """Print the seconds that all requests take."""
    parts = urlsplit(url)
    body = json.dumps({"model": "m", "messages": MESSAGES}).encode()
    head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: {len(body)}\r\n\r\n"
    opened = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(lanes)]

    async def lane(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(each):
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in answer.split(b"\r\n")[0], answer
            size = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(size.split(b":")[1]))

    begun = time.perf_counter()
    await asyncio.gather(*(lane(*pair) for pair in opened))
    print(time.perf_counter() - begun)


async def seconds(workflow: Workflow) -> float:
    """Time of all acts of one run."""
    action = Action("4", list(range(100)), [1, 2], [-1.0, -1.0])

    async def sample(act: Any) -> Action:
        return action

    async with Run(workflow, TASK, ["solver"], limits=Limits(acts=10**6)) as run:
        await drive(run, sample)
        return float(run.answer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lanes", type=int, default=100)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--client", help="the URL to send requests to (of the other process)")
    given = parser.parse_args()
    if given.client:
        return asyncio.run(client(given.client, given.lanes, given.each))
    count, found = given.lanes * given.each, []
    for _ in range(given.rounds):
        pair = [asyncio.run(seconds(each(given.lanes, given.each))) for each in (Acts, Requests)]
        found.append((pair[1] - pair[0]) / count * 1000)
    print(f"gateway  {statistics.median(found):+.3f} ms a request more than an act, {given.lanes} at once")


if __name__ == "__main__":
    main()
