"""The output of `marl-verl replay`: a list of episodes, or one episode as a conversation with its rewards."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_verl.episode import Act, ActRecord, Episode, Turn
from marl_verl.episode.codec import encode_call
from marl_verl.episode.journal import CallRecord
from marl_verl.episode.messages import Observation, message_text
from marl_verl.episode.turn import shared_length
from marl_verl.inspect.episodes import EpisodeFile, Header, StoredFailure
from marl_verl.inspect.replay import Rerun
from marl_verl.inspect.texts import aligned, count, indented, line
from marl_verl.run.terminal import harmless

LONG, HEAD, TAIL = 1600, 800, 600  # characters: a text of more than LONG is cut to its first HEAD and last TAIL
REPEATED = 120  # minimum length of a repeated beginning of an observation that is omitted

Seen = dict[str, tuple[str, Observation]]  # agent -> (name, observation) of its latest act


def list_text(file: EpisodeFile, named: str, validation: Path | None = None) -> str:
    """The list of a file, with totals; `named`: arguments that select it, `validation`: a validation of its run."""
    episodes, failures = list(file.episodes.values()), file.failures
    counts = sorted(Counter(failure.reason for failure in failures).items())
    reasons = f" ({', '.join(f'{reason} {times}' for reason, times in counts)})" if counts else ""
    lines = [origin(file), f"{count(len(episodes), 'episode')}, {count(len(failures), 'failed attempt')}{reasons}"]
    if episodes:
        mean = sum(episode.score for episode in episodes) / len(episodes)
        lines.append(f"{sum(episode.success for episode in episodes)} solved, mean score {mean:.3g}")
        rows = [["episode", "score", "turns", "beside", "", "task"]]
        for episode in episodes:
            state = ("solved" if episode.success else "") if episode.finished else "unfinished"
            counted = [str(episode.turns), str(len(episode.off_path_turns) or "")]
            rows.append([episode.id, f"{episode.score:g}", *counted, state, line(episode.task.id, 60)])
        lines += ["", *aligned(rows)]
    if failures:
        rows = [[failure.id, failure.reason, line(failure.detail, 120)] for failure in failures]
        lines += ["", *aligned([["failed", "reason", ""], *rows])]
    if episodes or failures:
        lines += ["", f"one of them: marl-verl replay {named} --episode {(episodes or failures)[0].id}"]
    if validation is not None:
        lines += ["", f"of a validation: marl-verl replay {shlex.quote(str(validation))}"]
    return harmless("\n".join(lines))


def failure_text(file: EpisodeFile, failures: Sequence[StoredFailure]) -> str:
    """Failed attempts with one id, in full."""
    lines = [f"failed attempt {failures[0].id}, {origin(file)}", "", f"task {line(failures[0].task, 100)}"]
    for failure in failures:
        lines += ["", failure.reason, *indented(failure.detail, 2)]
    return harmless("\n".join(lines))


def episode_text(file: EpisodeFile, episode: Episode, again: Rerun | None, folder: str | None = None) -> str:
    """One episode as a conversation: observations, actions and rewards of the agents; then the result.

    Args:
        again: the result of its replay, or None.
        folder: the run that has stored the rows of this step, for a printed command.
    """
    header = file.header
    lines = [f"episode {episode.id}, {origin(file)}", "", f"task {line(episode.task.id, 100)}"]
    if episode.task.prompt != episode.task.id:
        lines += indented(episode.task.prompt, 2)
    for name, agent in file.header.agents.items():
        if agent.instructions:
            lines += [f"instructions of {name}", *indented(_clipped(agent.instructions), 2)]
    turns, seen = {turn.key: turn for turn in episode.turns}, Seen()
    marks = {} if again is None else again.invalid
    for record in episode.journal:
        if isinstance(record, CallRecord):
            lines += ["", _call(record)]
            continue
        turn = turns.get(record.act.key)
        lines += ["", *_act(record, turn, marks, seen, header)]
    lines += ["", *_end(episode, again)]
    if episode.off_path_turns:
        lines += ["", *_beside(episode, header)]
    rows = [turn for turn in episode.turns if not turn.transition]
    if folder is not None and _rows(header) and rows:
        command = f"marl-verl explain {folder} --step {file.header.step} --row {rows[0].row}"
        lines += ["", f"how an advantage was computed: {command}"]
    return harmless("\n".join(lines))


def _act(
    record: ActRecord, turn: Turn | None, marks: Mapping[tuple[str, str], str], seen: Seen, header: Header
) -> list[str]:
    act, name = record.act, ":".join(record.act.key)
    lines = [name if turn is None else f"{name}   {_place(turn, header)}"]
    who = act.agent if turn is None else turn.agent
    lines += ["  sees", *indented(_sight(act.observation, seen.get(who)), 4)]
    lines += ["  says", *indented(_clipped(message_text(record.action.message)) or "(nothing)", 4)]
    seen[who] = (name, act.observation)
    if (invalid := marks.get(act.key, None if turn is None else turn.invalid)) is not None:
        lines.append(f"  invalid: {invalid}")
    return lines


def _place(turn: Turn, header: Header) -> str:
    """The turn's row, agent, policy, position in a tree, and rewards."""
    parts = [f"row {turn.row}"] if _rows(header) and not turn.transition else []
    if turn.called is not None:
        parts.append(f"acted by {turn.agent}")
    if turn.policy != turn.agent:
        agent = header.agents.get(turn.role)
        past = f", snapshot of step {turn.action.version}" if agent is not None and agent.past_of else ""
        parts.append(f"policy {turn.policy}{past}")
    if turn.transition:
        parts += [] if turn.node is None else [f"after node {turn.node}"]
    elif turn.node is not None:
        parts.append(f"node {turn.node}" + (f" under {turn.parent}" if turn.parent is not None else " at the root"))
    return ", ".join([*parts, _rewards(turn)])


def _rows(header: Header) -> bool:
    """Whether the turns are rows: those of a validation are not."""
    return header.split == "train"


def _rewards(turn: Turn) -> str:
    if turn.transition:
        return "of the transition"
    return ", ".join(f"{name} {value:g}" for name, value in sorted(turn.components.items())) or "no reward"


def _sight(observation: Observation, before: tuple[str, Observation] | None) -> str:
    """An observation without the part that its agent has already seen: chat messages, or the start of a long text."""
    name, old = before or ("", ())
    if observation == old:
        return f"(the same as {name})"
    if 0 < len(old) < len(observation) and observation[: len(old)] == old:
        return f"({count(len(old), 'message')} as {name})\n{_messages(observation[len(old) :], roles=True)}"
    if len(old) == len(observation) == 1 and old[0]["role"] == observation[0]["role"]:
        text = observation[0]["content"]
        shared = shared_length(old[0]["content"], text)
        start = text.rfind("\n", 0, shared) + 1 or shared
        if start >= REPEATED:
            return f"(the first {start} characters as {name})\n{_clipped(text[start:]) or '(nothing more)'}"
    return _messages(observation)


def _messages(observation: Observation, roles: bool = False) -> str:
    if len(observation) == 1 and observation[0]["role"] == "user" and not roles:
        return _clipped(observation[0]["content"])
    return "\n".join(f"{message['role']}: {_clipped(message_text(message))}" for message in observation)


def _call(record: CallRecord) -> str:
    who = "call" if record.agent is None else f"{record.agent} calls"
    name = record.function.partition(":")[2]
    asked = f"{who} {name}({line(record.arguments[1:-1], 200)})"
    if record.raised is not None:
        return f"{asked} raises {record.raised.kind}: {line(record.raised.message, 200)}"
    return f"{asked} -> {line(record.value or '', 300)}"


def _end(episode: Episode, again: Rerun | None) -> list[str]:
    lines: list[str] = []
    if not episode.finished:
        blocked = ", ".join(":".join(act.key) for act in again.waiting) if again is not None else ""
        lines.append(f"blocked at {blocked}" if blocked else "unfinished")
        if again is not None and again.score is None:
            lines.append("the score is that of a continuation, which is not in the journal")
    lines.append(_answer(episode))
    if again is not None and again.score is not None:
        return [*lines, _score(again)]
    return [*lines, f"{_score(episode)} (as stored)"]


def _beside(episode: Episode, header: Header) -> list[str]:
    """The off-path turns by session, in a tree with their nodes."""
    others = sorted(episode.off_path_turns, key=lambda turn: (turn.session, turn.index))
    several = any(turn.session != episode.session for turn in others)
    rows = [["session", "row", "node", "under", "act", "by", "rewards", "says"]]
    for turn in others:
        session = str(turn.session) if several else ""
        row = turn.row if _rows(header) and not turn.transition else ""
        by = turn.agent if turn.called is not None else ""
        place = [session, row, turn.node or "", turn.parent or "", ":".join(turn.key), by]
        rows.append([*place, _rewards(turn), line(turn.action.text, 60)])
    title, *shown = aligned(rows)
    lines = [f"sampled beside it: {count(len(others), 'turn')} that it did not go on with", f"  {title}"]
    for before, turn, reply in zip([others[0], *others], others, shown, strict=False):
        lines += [f"  {reply}"] if turn.session == before.session else ["", f"  {reply}"]
    return lines


def _score(of: Episode | Rerun) -> str:
    if of.score is None:
        return "not known"
    sides = "".join(f", {side} {outcome:g}" for side, outcome in of.outcomes.items())
    return f"score {of.score:g}{sides}, {'success' if of.success else 'no success'}"


def _answer(of: Episode | Rerun) -> str:
    reply = _clipped(of.answer) if isinstance(of.answer, str) else json.dumps(of.answer, ensure_ascii=False)
    return f"{'answer' if of.finished else 'would answer'} {'nothing yet' if of.answer is None else reply}"


def _clipped(text: str) -> str:
    if len(text) <= LONG:
        return text
    return f"{text[:HEAD]}\n[{len(text) - HEAD - TAIL} characters left out; --json has them]\n{text[-TAIL:]}"


def origin(file: EpisodeFile) -> str:
    """The origin of a file, e.g. "training step 12: workflow review, ..."."""
    header = file.header
    split = "training step" if header.split == "train" else "validation at step"
    parts = f"task set {header.task.name}, algorithm {header.algorithm.name}, sampler {header.sampler.name}"
    return f"{split} {header.step}: workflow {header.workflow.name}, {parts}"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def list_record(file: EpisodeFile) -> dict[str, Any]:
    """The content of a file as a JSON value."""
    header, names = file.header, ("id", "score", "success", "finished", "turns")
    episodes = [
        {**_fields(episode, *names), "task": episode.task.id, "off_path_turns": len(episode.off_path_turns)}
        for episode in file.episodes.values()
    ]
    return {
        **_fields(header, "step", "split"),
        **{part: getattr(header, part).name for part in ("workflow", "task", "algorithm", "sampler")},
        "episodes": episodes,
        "failures": [failure_record(failure) for failure in file.failures],
    }


def failure_record(failure: StoredFailure) -> dict[str, Any]:
    """A failed attempt as a JSON value."""
    return {"id": failure.id, "failure": failure.reason, **_fields(failure, "detail", "uid", "session", "task")}


def episode_record(file: EpisodeFile, episode: Episode, again: Rerun | None = None) -> dict[str, Any]:
    """One episode as a JSON value, with the result of its replay."""
    turns, effects = {turn.key: _turn(turn) for turn in episode.turns}, []
    for record in episode.journal:
        if isinstance(record, CallRecord):
            effects.append(encode_call(record))
        else:
            acted = turns.get(record.act.key) or {**_act_record(record.act), "action": record.action.text}
            effects.append({"effect": "act", **acted})
    whole = {
        "id": episode.id,
        "step": file.header.step,
        "workflow": file.header.workflow.name,
        "task": _fields(episode.task, "id", "prompt", "data"),
        "agents": {name: vars(agent) for name, agent in file.header.agents.items()},
        **_fields(episode, "finished", "answer", "score", "success"),
        **({"outcomes": episode.outcomes} if episode.outcomes else {}),
        "effects": effects,
        "off_path_turns": [_turn(turn) for turn in episode.off_path_turns],
    }
    if again is not None:
        whole["replay"] = {
            "finished": again.finished,
            "stands_at": [_act_record(act) for act in again.waiting],
            "answer" if again.finished else "proposal": again.answer,
            **_fields(again, "score", "success"),
        }
    return whole


def _fields(value: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _act_record(act: Act) -> dict[str, Any]:
    asked = {"parameters": act.parameters} if act.parameters else {}
    return {"agent": act.agent, "slot": act.slot, "observation": list(act.observation), **asked}


def _turn(turn: Turn) -> dict[str, Any]:
    shown: dict[str, Any] = {"observation": list(turn.observation), "action": turn.action.text}
    shown |= {"parameters": turn.parameters} if turn.parameters else {}
    shown |= {"tool_calls": turn.action.tool_calls} if turn.action.tool_calls else {}
    names = ("agent", "called", "policy", "slot", "turn", "session", "index", "node", "parent", "length", "invalid")
    return {**_fields(turn, *names), "rewards": turn.components, **shown}
