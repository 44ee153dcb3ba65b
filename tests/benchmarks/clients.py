"""What a request of an OpenAI client costs more than the act that it becomes: paired runs of one workflow each way."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import httpx
from marl_verl_agents import openai_client, transport

from marl_verl.algo.sampling import drive
from marl_verl.episode import Action, Run, Workflow
from marl_verl.tasks.base import Task

TASK = Task("t", "2 + 2 = ?")
MESSAGES = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": "2 + 2 = ? " * 20}]


class Chatter(Workflow):
    """Acts `acts` times by one of the ways `act`, `transport` (an httpx client) and `openai` (the package's client)."""

    way: str = "act"
    acts: int = 200

    async def run(self, task: Task, team: Any) -> str:
        if self.way == "openai":
            client = openai_client(team, "solver")
            for _ in range(self.acts):
                await client.chat.completions.create(model="m", messages=MESSAGES)
        elif self.way == "transport":
            through, url = transport(team, "solver"), "http://team/v1/chat/completions"
            body = json.dumps({"model": "m", "messages": MESSAGES}).encode()
            for _ in range(self.acts):
                await through.handle_async_request(httpx.Request("POST", url, content=body))
        else:
            for _ in range(self.acts):
                await team["solver"].act(MESSAGES)
        return "done"


async def seconds(way: str, acts: int) -> float:
    """Time of one run."""
    action = Action("4", list(range(100)), [1, 2], [-1.0, -1.0])

    async def sample(act: Any) -> Action:
        return action

    async with Run(Chatter(way=way, acts=acts), TASK, ["solver"]) as run:
        begun = time.perf_counter()
        await drive(run, sample)
        return time.perf_counter() - begun


def overheads(way: str, rounds: int, acts: int) -> list[float]:
    """Milliseconds an act more than `act`, one number per pair of runs."""
    asyncio.run(seconds(way, 5))  # imports
    found = []
    for _ in range(rounds):
        plain, with_client = asyncio.run(seconds("act", acts)), asyncio.run(seconds(way, acts))
        found.append((with_client - plain) / acts * 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--acts", type=int, default=200)
    given = parser.parse_args()
    plain = asyncio.run(seconds("act", given.acts)) / given.acts * 1000
    print(f"act            {plain:.3f} ms")
    for way in ("transport", "openai"):
        found = overheads(way, given.rounds, given.acts)
        print(f"{way:<14} {statistics.median(found):+.3f} ms an act more (median of {given.rounds} pairs)")


if __name__ == "__main__":
    main()
