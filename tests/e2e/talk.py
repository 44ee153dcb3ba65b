"""A team whose agents keep their conversations, so that each prompt repeats what came before."""

from typing import Any

from marl_verl_tiny.inventory import NOTHING, asker_sees, holder_sees

from marl_verl import Episode, Task, Turn, Workflow, hookimpl
from marl_verl.plugins import Registry


class Talk(Workflow):
    """The holder sends its digits and the asker answers, over and over; the last answer counts.

    Options:
        rounds: turns of each agent.
    """

    rounds: int = 4

    async def run(self, task: Task, team: Any) -> str:
        holder, asker = (team[agent].conversation() for agent in ("holder", "asker"))
        answer = NOTHING
        for _ in range(self.rounds):
            message = (await holder.act(holder_sees(task))).text.strip() or NOTHING
            answer = (await asker.act(asker_sees(task, message))).text.strip() or NOTHING
        return answer


def varied(task: Task, turn: Turn, episode: Episode) -> float:
    """A number that differs between any two actions, so that every row has a gradient."""
    return sum(turn.action.response_ids) % 7 / 7


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.workflow("talk", Talk)
    registry.reward("varied", varied)
