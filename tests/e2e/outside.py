"""The inventory team as programs: each asks its URL once, prints what it is told, and gets both rewards back."""

import asyncio
import sys
from typing import Any

from marl_verl_agents.gateway import Endpoints, ExternalWorkflow, process
from marl_verl_tiny.inventory import NOTHING, Inventory, asker_sees, holder_sees

from marl_verl import hookimpl
from marl_verl.plugins import Registry

PROGRAM = """
import json, os, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
body = json.dumps({"model": "any", "temperature": 0.0, "messages": [{"role": "user", "content": sys.stdin.read()}]})
asked = urllib.request.Request(url, body.encode(), {"content-type": "application/json"})
print(json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"], end="")
"""
_at_once = asyncio.Semaphore(4)


class Programs(ExternalWorkflow):
    """A process for each act."""

    ignored = ("temperature",)

    async def run(self, task: Any, endpoints: Endpoints) -> dict[str, Any]:  # type: ignore[override]
        async def ask(agent: str, seen: str) -> str:
            async with _at_once:
                done = await process(sys.executable, "-S", "-c", PROGRAM, environ=endpoints[agent].environ, input=seen)
            return done.stdout

        held = await ask("holder", holder_sees(task))
        answer = await ask("asker", asker_sees(task, held.strip() or NOTHING))
        return {"text": answer, "rewards": {"holder": float(len(held.split()) == 4), "asker": 0.25}}


class Sets(Inventory):
    """The inventory task, with a mapping as the answer."""

    def score(self, task: Any, answer: Any) -> float:
        return float(super().score(task, answer["text"]))


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.workflow("programs", Programs)
    registry.task("inventory-by-programs", Sets)
