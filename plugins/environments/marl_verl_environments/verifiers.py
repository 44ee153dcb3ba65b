"""Environments of verifiers 0.4 as task sets. Their programs act through the gateway, so an episode cannot be replayed.

An environment has seats: `agent`, or the roles of a multi-agent environment. Each is an agent of the team with the same
name; a seat that the team lacks keeps the model of its own config, such as a fixed judge. The score is the reward that
the environment gives, summed over the seats of the team.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from marl_verl_agents.gateway import Endpoints, ExternalWorkflow

from marl_verl import Episode, Task, TaskSet, Turn
from marl_verl.errors import check_known, user_error
from marl_verl.tasks import Split, held_out, quick
from marl_verl_environments.seats import required

TEST = 4  # one task in four is held out
KEY = "MARL_VERL_NO_KEY"  # a variable that is not set: the secret of an episode is in its URL
SEAT = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
"""A chat without code of the model, on this machine; the default of verifiers is a shell in a cloud of its authors."""


class VerifiersTasks(TaskSet):
    """The tasks of one environment of verifiers. An answer is the mapping that `Verifiers` returns.

    Options:
        env: the id of the environment: an installed module that exports a `Taskset`.
        arguments: the environment's config, such as {taskset: {...}, agent: {max_turns: 3}}.
    """

    quick = True

    env: str
    arguments: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        made(self.env, self.arguments or {})

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """Up to `count` tasks of the environment: the first that are in this split, in its own order, whatever the
        seed."""
        data = {"env": self.env, "arguments": dict(self.arguments or {})}
        in_split = (
            Task(f"{self.env} {item.key}", item.data.prompt_text, {**data, "idx": item.data.idx})
            for item in made(self.env, self.arguments or {}).taskset
            if held_out(item.key, TEST) == (split == "test")
        )
        return list(itertools.islice(in_split, count))

    def score(self, task: Task, answer: Any) -> float:
        return float(answer["reward"])


class Verifiers(ExternalWorkflow):
    """Runs the environment; each model request of a seat is an act of the agent with its name.

    A seat is a chat (harness `null`) on this machine, unless `arguments` name another harness or runtime.
    """

    ignored = ("temperature", "top_p", "max_tokens", "max_completion_tokens")

    async def run(self, task: Task, endpoints: Endpoints) -> dict[str, Any]:  # type: ignore[override]
        vf: Any = required("verifiers.v1")
        env = made(task.data["env"], task.data["arguments"], endpoints)
        nowhere = vf.EvalClientConfig(base_url="http://127.0.0.1:9", api_key_var=KEY)  # of seats outside the team
        chosen = next(item for item in env.taskset if item.data.idx == task.data["idx"])
        async with env.serving():
            episode = await env.run_episode(chosen, vf.ModelContext("none", nowhere))
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError(f"verifiers '{task.data['env']}': {errors[0].message if errors else 'not finished'}")
        seats = {trace.agent.name or "agent": trace for trace in episode.traces}
        rewards = {seat: float(trace.reward) for seat, trace in seats.items() if seat in endpoints}
        return {"reward": sum(rewards.values()), "rewards": rewards}


@quick
def seat_reward(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of the agent's own seat, on each of its turns."""
    return float(episode.answer["rewards"].get(turn.agent, 0.0))


def made(name: str, arguments: Mapping[str, Any], endpoints: Endpoints | None = None) -> Any:
    """The environment, with its seats at the URLs of `endpoints`. MarlError with the reason if there is none."""
    loaders: Any = required("verifiers.v1.utils.loaders")
    required("verifiers.v1")
    with user_error(f"verifiers '{name}' cannot be used", ImportError, AttributeError, TypeError, ValueError):
        kind = loaders.env_config_type(name, str(arguments.get("id") or ""))
        seats = list(required("verifiers.v1.configs.agent").agent_config_fields(kind()))
        config = {seat: {**SEAT, **dict(arguments.get(seat) or {})} for seat in seats}
        for agent, endpoint in (endpoints or {}).items():
            check_known("seat", agent, seats)
            client = {"type": "eval", "base_url": endpoint.openai, "api_key_var": KEY}
            config[agent] |= {"model": agent, "client": client}
        taskset = {**dict(arguments.get("taskset") or {}), "id": name}
        return loaders.load_environment(kind.model_validate({**arguments, **config, "taskset": taskset}))
