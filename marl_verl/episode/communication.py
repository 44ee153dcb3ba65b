"""Communication: the tokens that an act reads from other agents.

An act reads a line from another agent if that agent wrote it in an earlier act of the episode and the observation has
it. A line counts once per observation, and not at all if the reader could have it from elsewhere: from what it was
shown of the task's prompt, from an action of its own, or from an observation that it had before the line was written.
Its tokens are its share of the tokens of the action that it is from, by characters other than white space. Fences of
code, and lines without a letter or digit, do not count. Words that a workflow takes out of a line are not seen: it is
a lower bound.
"""

import itertools
from collections.abc import Sequence

from marl_verl.episode.journal import Episode
from marl_verl.episode.messages import message_text
from marl_verl.episode.turn import Action

COSTS = ("read", "acts", "calls")
AMOUNTS = ("tool", *COSTS)  # reward components of an agent's turns: amounts of its whole episode


def read_lengths(episode: Episode) -> list[float]:
    """The tokens that each turn of an episode reads from other agents, in the order of `episode.turns`."""
    lengths: list[float] = []
    written: dict[tuple[str, str], tuple[int, float]] = {}  # (agent, line) -> position of its first act, tokens
    observations: dict[str, list[tuple[int, str]]] = {}  # agent -> (position, text)
    actions: dict[str, str] = {}
    for position, turn in enumerate(episode.turns):
        observed = "\n".join(map(message_text, turn.observation))
        seen = observations.setdefault(turn.agent, [])
        seen.append((position, observed))
        read: dict[str, float] = {}
        for (agent, line), (first, tokens) in written.items():
            if agent == turn.agent or line in read or not has(observed, line) or has(actions.get(turn.agent, ""), line):
                continue
            shown = _contexts(episode.task.prompt, line)
            if not any((at < first and has(text, line)) or any(has(text, part) for part in shown) for at, text in seen):
                read[line] = tokens
        lengths.append(sum(read.values()))
        actions[turn.agent] = f"{actions.get(turn.agent, '')}\n{turn.action.text}"
        for line, tokens in _lines(turn.action).items():
            written.setdefault((turn.agent, line), (position, tokens))
    return lengths


def amounts(agent: str, episode: Episode, lengths: Sequence[float]) -> dict[str, float]:
    """An agent's amounts in an episode: `read`, tokens that its acts read from others; `acts` and `calls`, their
    numbers; and `tool`, the share of its calls that did not raise, if it made any. `lengths`: as `read_lengths`."""
    read = [length for turn, length in zip(episode.turns, lengths, strict=True) if turn.agent == agent]
    worked = [call.raised is None for call in episode.journal.calls() if call.agent == agent]
    tool = {"tool": sum(worked) / len(worked)} if worked else {}
    return {"read": sum(read), "acts": float(len(read)), "calls": float(len(worked)), **tool}


def has(text: str, part: str) -> bool:
    """Whether a text has a part that begins and ends at the ends of words."""
    at = text.find(part)
    while at >= 0:
        edges = text[max(0, at - 1) : at] + part[0], part[-1] + text[at + len(part) : at + len(part) + 1]
        if not any(len(edge) == 2 and edge.isalnum() for edge in edges):
            return True
        at = text.find(part, at + 1)
    return False


def _contexts(prompt: str, line: str) -> set[str]:
    """A line where the prompt has it, with the word before it and that after it; alone where it has neither."""
    contexts = set[str]()
    for left, right in itertools.chain(*(itertools.pairwise(text.split(line)) for text in prompt.splitlines())):
        beside = " ".join(left.split(" ")[-2:]) + line, line + " ".join(right.split(" ")[:2])
        parts = {part.strip() for part in beside}
        contexts |= parts - {line} or parts
    return contexts


def _lines(action: Action) -> dict[str, float]:
    """The different lines of an action, each with its tokens."""
    whole = _size(action.text) + _size(action.reasoning or "")
    lines = (line.strip() for line in action.text.splitlines())
    said = (line for line in lines if any(map(str.isalnum, line)) and not line.startswith("```"))
    return {line: action.length * _size(line) / whole for line in said}


def _size(text: str) -> int:
    return sum(len(word) for word in text.split())
