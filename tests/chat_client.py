"""A policy's client for tests, whose server gives prepared actions, and chat templates for it."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_verl_tiny.factory import make_bpe_tokenizer, make_tokenizer
from omegaconf import OmegaConf

from marl_verl.algo.sampling import Independent
from marl_verl.algo.sampling.context import TaskContext
from marl_verl.backend.rollout.clients import PolicyClient
from marl_verl.backend.rollout.context import PolicySamplingContext, WorkerContext
from marl_verl.episode import Act, Workflow
from marl_verl.models.chat import Chat
from marl_verl.tasks import Task, TaskSet
from marl_verl.team import AgentConfig

WORDS = ["2", "4", "so", "is", "what", "and", "brief", "<think>", "</think>", "END"]
TURN = "{% for m in messages %}{{ '[' ~ m['role'] ~ '] ' ~ m['content'] ~ ' ' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
ALTERNATES = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
OMITS_SYSTEM = TURN.replace("messages %}", "messages if m['role'] != 'system' %}", 1) + PROMPT
LIKE_GEMMA = NO_SYSTEM + ALTERNATES + TURN + PROMPT
STRIPS = (  # former reasoning, and opens an empty one where the model must not think
    "{% for m in messages %}{{ '[' ~ m['role'] ~ '] ' ~ m['content'].split('</think>')[-1].strip() ~ ' ' }}{% endfor %}"
    + PROMPT
    + "{% if enable_thinking is defined and not enable_thinking %}{{ '<think> </think> ' }}{% endif %}"
)


def chat(template: str, **options: Any) -> Chat:
    tokenizer = make_tokenizer(WORDS)
    tokenizer.chat_template = template
    return Chat(tokenizer, options, "policy 'p' (model 'm')")


def messages(*pairs: str) -> list[dict[str, str]]:
    """From texts such as "user: what is 2"."""
    return [dict(zip(("role", "content"), pair.split(": ", 1), strict=True)) for pair in pairs]


SPOKEN = messages("system: brief", "user: 2", "assistant: 4", "user: and 4")

TURNS = (
    "{% for m in messages %}{{ '<|turn|>' ~ m['role'] ~ ' ' ~ m['content'] ~ END }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant ' }}{% endif %}"
)


class Server:
    """In place of verl's client: returns given texts as token ids, and keeps the requests."""

    def __init__(self, actions: Sequence[list[int]]) -> None:
        self.actions, self.asked = list(actions), []  # type: ignore[var-annotated]

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked.append(sampling_params)
        ids = self.actions.pop(0)
        return SimpleNamespace(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={"global_steps": 1})


def client(
    folder: Path,
    actions: Sequence[str | list[int]],
    stop: list[str] | None = None,
    ends: Any = None,
    bpe: bool = False,
    template: dict[str, Any] | None = None,
    **model: Any,
) -> PolicyClient:
    """A policy's client whose server gives these actions; a text is followed by the tokenizer's own end."""
    tokenizer = make_bpe_tokenizer(WORDS) if bpe else make_tokenizer(WORDS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({} if ends is None else {"eos_token_id": ends}))
    rollout = {"prompt_length": 512, "response_length": 16, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
    rollout |= {"calculate_log_probs": True, "ignore_eos": False}
    given = {"path": str(folder), "tokenizer_path": None, "trust_remote_code": False, "custom_chat_template": None}
    config = OmegaConf.create({"rollout": rollout, "model": given | model})
    coded = [[*tokenizer.encode(each), tokenizer.eos_token_id] if isinstance(each, str) else each for each in actions]
    return PolicyClient("p", config, Server(coded), template or {}, stop)  # type: ignore[arg-type]


ACT = Act("p", "0", 0, 0, ())


def answer(policy: PolicyClient, **sampling: Any) -> tuple[str, str | None]:
    action = asyncio.run(policy.answer(messages("user: 2"), sampling, "r", ACT))
    assert len(action.log_probs) == len(action.response_ids)
    return action.text, action.stop_reason


class Remembers(Workflow):
    """Two turns of one agent, the second with the whole conversation."""

    async def run(self, task: Task, team: Any) -> str:
        seen = messages("user: what is 2")
        first = await team["solver"].act(seen)
        last = await team["solver"].act([*seen, {"role": "assistant", "content": first.text}, *messages("user: and 4")])
        return str(last.text)


class Always(TaskSet):
    def score(self, task: Task, answer: Any) -> float:
        return 1.0


def play(policy: PolicyClient, workflow: Workflow, agent: AgentConfig, held_out: dict[str, Any] | None = None) -> Any:
    """The turns of one episode."""
    parts = WorkerContext(TaskContext(workflow, Always(), {agent.name: agent}), {"p": policy}, seed=0)
    sample = asyncio.run(Independent(1).sample(PolicySamplingContext(parts, Task("t", "2", {}), "u", 1, held_out)))
    assert not sample.failures, sample.failures
    return sample.turns
