"""What a student should say to a task, made of a team's episodes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from marl_verl import MarlError, Task, TaskSet
from marl_verl.algo.sampling.context import judged
from marl_verl.episode import Action, Episode, Run, Workflow
from marl_verl.models.chat import Chat
from marl_verl_distil.imitation import KEY

STUDENT = "student"  # the agent, and its policy
Conversation = tuple[Task, list[dict[str, Any]]]
"""(task, messages: what the student sees of it, and then what it should say)."""


def said(episode: Episode, separator: str | None) -> str:
    """The team's answer; with a separator the actions of all agents before it, in their order."""
    answer = str(episode.answer).strip()
    actions = [] if separator is None else [turn.action.text.strip() for turn in episode.turns]
    return f"\n{separator}\n".join([*(actions[:-1] if actions[-1:] == [answer] else actions), answer])


async def conversations(
    episodes: Sequence[Episode], workflow: Workflow, tasks: TaskSet, separator: str | None, least: float | None
) -> list[Conversation]:
    """The different conversations in which the student solves a task (with `least`: has this score) by saying what the
    team said. MarlError without any."""

    async def conversation(task: Task, text: str) -> Conversation | None:
        async with Run(workflow, task, [STUDENT]) as run:
            acts = await run.next() or ()
            for act in acts:
                run.resolve(act, Action(text))
            if await run.next() is not None:  # further acts, of which the team says nothing
                return None
            score, success = await judged(tasks, task, run.answer)
        kept = success if least is None else isinstance(score, float) and score >= least
        return (task, [*acts[0].observation, {"role": "assistant", "content": text}]) if kept else None

    texts = [(episode.task, said(episode, separator)) for episode in episodes if isinstance(episode.answer, str)]
    different = {(task.id, text): task for task, text in texts}
    made = await asyncio.gather(*(conversation(task, text) for (_, text), task in different.items()))
    if not any(made):
        solved = sum(episode.success for episode in episodes)
        problem = f"the team solved {solved} of {len(episodes)} episodes, and the student solves none by its texts"
        raise MarlError(f"{problem} in one act of workflow '{type(workflow).__name__}': there is nothing to imitate")
    return [conversation for conversation in made if conversation is not None]


def demonstrated(conversations: Sequence[Conversation], chat: Chat) -> list[Task]:
    """Their tasks, with demonstrations in tokens: the prompt, the text, and the token that ends a turn. MarlError for a
    text that the tokenizer cannot write."""
    tasks: dict[str, Task] = {}
    for task, (*seen, reply) in conversations:
        text = chat.controls.broken(reply["content"])
        ids = chat.tokenizer(text, add_special_tokens=False)["input_ids"]
        if (written := chat.tokenizer.decode(ids, skip_special_tokens=True)).split() != text.split():
            raise MarlError(f"{chat.whose}: its tokenizer writes {text!r:.80} as {written!r:.80}")
        ids = {"prompt_ids": chat.encode(seen), "response_ids": [*ids, chat.tokenizer.eos_token_id]}
        tasks.setdefault(task.id, replace(task, data={**task.data, KEY: []})).data[KEY].append({"text": text, **ids})
    return list(tasks.values())
