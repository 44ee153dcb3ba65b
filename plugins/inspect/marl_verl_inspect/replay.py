"""`marl-verl replay RUN|FILE`: replay a stored episode without model requests or calls: each act gets its recorded
action, and the answer is scored; show it as a conversation with its rewards, or list the episodes."""

import argparse
import asyncio
import json
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from marl_verl import plugins
from marl_verl.algo.sampling.context import by_side, judged
from marl_verl.cli.arguments import add_backend_argument, add_plugin_argument, at_least
from marl_verl.episode import Act, ActRecord, Episode, Journal, ReplayMismatch, Run, Turn, Workflow
from marl_verl.episode.codec import plain, shared_messages
from marl_verl.episode.engine import replayed
from marl_verl.episode.journal import CallRecord
from marl_verl.episode.messages import Observation, message_text
from marl_verl.errors import MarlError, user_error
from marl_verl.extensions import use_run_options
from marl_verl.options import build
from marl_verl.run.reading import load_run, run_of
from marl_verl.run.terminal import harmless, indented, show
from marl_verl.tasks import TaskSet
from marl_verl.tasks.base import name_of
from marl_verl.team import Named
from marl_verl_inspect.episodes import EpisodeFile, Header, file_of_episode
from marl_verl_inspect.files import add_file_arguments, use_plugin_files
from marl_verl_inspect.text import count, line, table

EXAMPLES = """
FILE is a file of a run's journals/ (one per training step) or episodes/ (some episodes of each validation): JSON lines,
optionally compressed. The workflow runs again with the recorded actions and call results; no model is queried and no
call is executed. The answer is scored again. Exit code 2 where the result differs from the stored one.

  marl-verl replay runs/inventory-1 --step 12              the episodes of a step; default: the latest
  marl-verl replay runs/inventory-1 --episode s7t00000_1   one episode: observations, actions and rewards
  marl-verl replay runs/inventory-1 --episode g20t00000_0  the id has the step; this one is of a validation
  marl-verl replay FILE --episode s12t00000_0 --stored     the stored episode, without a replay or its plugin
  marl-verl replay runs/paths --episode s12t00000_0 --edit mover:0 b4      what if the mover had said b4?
"""

Key = tuple[str, str]  # (agent that the workflow called, slot)
Seen = dict[str, tuple[str, Observation]]  # agent -> (name, observation) of its latest act


@dataclass
class Rerun:
    """The result of a replay; without a score if the stored score is that of a rollout."""

    waiting: tuple[Act, ...] = ()  # pending acts, which have no recorded action
    finished: bool = False
    answer: Any = None  # as a JSON value; if unfinished, the latest proposal or None
    invalid: dict[Key, str] = field(default_factory=dict)
    score: float | None = None
    outcomes: dict[str, float] = field(default_factory=dict)  # side -> its score
    success: bool | None = None


def replay(header: Header, episode: Episode) -> Rerun:
    """Replay an episode. MarlError for a part that is not registered, and an episode that cannot be replayed."""
    with user_error(f"episode '{episode.id}' cannot be replayed (--stored shows it without running it)"):
        workflow, tasks = _built("workflows", header.workflow), _built("tasks", header.task)
        return asyncio.run(rerun(workflow, tasks, header.agents, episode))


def _built(kind: str, part: Named) -> Any:
    return build(plugins.load().get(kind, part.name), part.options, f"{kind} '{part.name}'")


async def rerun(workflow: Workflow, tasks: TaskSet, agents: Collection[str], episode: Episode) -> Rerun:
    """Replay an episode. ReplayMismatch or WorkflowError: the workflow departs from the journal or fails. MarlError:
    the answer cannot be scored."""
    recorded = episode.journal
    calls = Journal(tuple(recorded.calls()), recorded.seed)
    async with Run(workflow, episode.task, list(agents), calls, sealed=True) as run:
        waiting = await replayed(run, recorded)
        reached = run.journal
        missed = [record.act for record in recorded.acts() if reached.act(*record.act.key) is None]
        problem = ""
        if waiting and (episode.finished or missed):
            problem = f"it continues to {waiting[0]}, which is not in the journal"
        elif missed:
            problem = f"it ends without {missed[0]}, which is in the journal"
        elif run.finished and not episode.finished:
            problem = "it ends, and the stored episode was unfinished"
        if problem:
            label = f"workflow '{type(workflow).__name__}' on task '{episode.task.id}'"
            raise ReplayMismatch(f"{label}: {problem}")
        answer = run.answer if run.finished else (run.proposals or [None])[-1]
        again = Rerun(waiting, run.finished, plain(answer), dict(run.invalid))
    if again.finished or _same(again.answer, episode.answer):  # the answer that was scored
        failed = f"{name_of(tasks.score)} fails on the answer to task '{episode.task.id}'"
        with user_error(failed, Exception, line=True):
            score, again.success = await judged(tasks, episode.task, answer) if answer is not None else (0.0, False)
            again.score, again.outcomes = by_side(score)
    return again


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal (NaN equals NaN)."""
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def differences(episode: Episode, again: Rerun) -> list[str]:
    """How a replay with the same observations differs from the stored episode."""
    pairs = [("the answer", again.answer, episode.answer)] if again.finished else []
    if again.score is not None:
        pairs.append(("the score", again.score, episode.score))
        pairs.append(("the score of each side", again.outcomes, episode.outcomes))
        pairs.append(("success", again.success, episode.success))
    turns = [turn for turn in episode.turns if turn.node is None]  # in a tree a later act may set the mark
    pairs += [(f"the mark on act {':'.join(turn.key)}", again.invalid.get(turn.key), turn.invalid) for turn in turns]
    return [f"{label} is {now!r}, stored is {then!r}" for label, now, then in pairs if not _same(now, then)]


def list_text(file: EpisodeFile) -> str:
    """The episodes of a file with totals, and its failed attempts."""
    episodes = list(file.episodes.values())
    lines = [_origin(file.header), f"{count(len(episodes), 'episode')}, {count(len(file.failures), 'failed attempt')}"]
    if episodes:
        mean = sum(episode.score for episode in episodes) / len(episodes)
        lines.append(f"{sum(episode.success for episode in episodes)} solved, mean score {mean:.3g}")
        rows = [["episode", "score", "turns", "beside", "", "task"]]
        for episode in episodes:
            state = ("solved" if episode.success else "") if episode.finished else "unfinished"
            counted = [str(len(episode.turns)), str(len(episode.off_path_turns) or "")]
            rows.append([episode.id, f"{episode.score:g}", *counted, state, line(episode.task.id, 60)])
        lines += ["", *table(rows), "", f"each act and its rewards: --episode {episodes[0].id}"]
    for failure in file.failures:
        lines += ["", f"{failure.id} failed: {failure.failure}", *indented(failure.detail, 2)]
    return harmless("\n".join(lines))


def episode_text(header: Header, episode: Episode, again: Rerun | None) -> str:
    """An episode as a conversation: observations, actions and rewards of the agents; then the result. `again` is the
    result of its replay, if it was replayed."""
    lines = [f"episode {episode.id}, {_origin(header)}", "", f"task {line(episode.task.id, 100)}"]
    if episode.task.prompt != episode.task.id:
        lines += indented(episode.task.prompt, 2)
    for name, agent in header.agents.items():
        if instructions := agent["instructions"]:
            lines += [f"instructions of {name}", *indented(instructions, 2)]
    turns, seen = {turn.key: turn for turn in episode.turns}, Seen()
    marks = {turn.key: turn.invalid for turn in episode.turns if turn.invalid} | (again.invalid if again else {})
    for record in episode.journal:
        if isinstance(record, CallRecord):
            lines += ["", _call(record)]
        else:
            lines += ["", *_act(record, turns.get(record.act.key), marks, seen, header)]
    lines += ["", *_end(episode, again)]
    if beside := sorted(episode.off_path_turns, key=lambda turn: (turn.session, turn.index)):
        lines += ["", f"sampled beside it: {count(len(beside), 'turn')}"]
        lines += [f"  {':'.join(turn.key)}   {_place(turn, header)}: {line(turn.action.text, 60)}" for turn in beside]
    return harmless("\n".join(lines))


def _origin(header: Header) -> str:
    split = "training step" if header.split == "train" else "validation at step"
    parts = f"task set {header.task.name}, algorithm {header.algorithm.name}, sampler {header.sampler.name}"
    return f"{split} {header.step}: workflow {header.workflow.name}, {parts}"


def _act(record: ActRecord, turn: Turn | None, marks: dict[Key, str], seen: Seen, header: Header) -> list[str]:
    act, name = record.act, ":".join(record.act.key)
    agent = act.agent if turn is None else turn.agent
    lines = [name if turn is None else f"{name}   {_place(turn, header)}"]
    lines += ["  sees", *indented(_news(act.observation, *seen.get(agent, ("", ()))), 4)]
    lines += ["  says", *indented(message_text(record.action.message) or "(nothing)", 4)]
    seen[agent] = (name, act.observation)
    return lines + ([f"  invalid: {marks[act.key]}"] if act.key in marks else [])


def _place(turn: Turn, header: Header) -> str:
    """The turn's row, agent, policy, position in a tree, and rewards. Turns of a validation are no rows."""
    parts = [f"row {turn.row}"] if header.split == "train" and not turn.transition else []
    if turn.called is not None:
        parts.append(f"acted by {turn.agent}")
    if turn.policy != turn.agent:
        parts.append(f"policy {turn.policy}")
    if turn.node is not None and not turn.transition:
        parts.append(f"node {turn.node}" + (f" under {turn.parent}" if turn.parent is not None else " at the root"))
    if turn.transition:
        return ", ".join([*parts, f"of the transition after {turn.node or 'the root'}"])
    rewards = [f"{name} {value:g}" for name, value in sorted(turn.components.items())]
    return ", ".join([*parts, *(rewards or ["no reward"])])


def _news(observation: Observation, name: str, old: Observation) -> str:
    """An observation without the messages that begin the agent's latest one, that of the act `name`."""
    shared = shared_messages(old, observation)
    if 0 < shared == len(old) == len(observation):
        return f"(the same as {name})"
    if shared == 0 and len(observation) == 1 and observation[0]["role"] == "user":
        return message_text(observation[0])
    lines = [f"({count(shared, 'message')} as {name})"] if shared else []
    return "\n".join([*lines, *(f"{message['role']}: {message_text(message)}" for message in observation[shared:])])


def _call(record: CallRecord) -> str:
    caller = "call" if record.agent is None else f"{record.agent} calls"
    call = f"{caller} {record.function.partition(':')[2]}({line(record.arguments[1:-1], 200)})"
    if record.raised is not None:
        return f"{call} raises {record.raised.kind}: {line(record.raised.message, 200)}"
    return f"{call} -> {line(record.value or '', 300)}"


def _end(episode: Episode, again: Rerun | None) -> list[str]:
    lines = []
    if not episode.finished:
        blocked = ", ".join(":".join(act.key) for act in again.waiting) if again is not None else ""
        lines.append(f"blocked at {blocked}" if blocked else "unfinished")
    answer = episode.answer if isinstance(episode.answer, str) else json.dumps(episode.answer, ensure_ascii=False)
    verb = "answer" if episode.finished else "would answer"
    lines.append(f"{verb} {'nothing yet' if episode.answer is None else answer}")
    if again is not None and again.score is not None:
        return [*lines, _score(again)]
    return [*lines, f"{_score(episode)} (as stored)"]


def _score(result: Episode | Rerun) -> str:
    sides = "".join(f", {side} {outcome:g}" for side, outcome in result.outcomes.items())
    return f"score {result.score:g}{sides}, {'success' if result.success else 'no success'}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plugin_argument(parser)
    add_file_arguments(parser, "a file of journals/ or episodes/ of a run")
    parser.add_argument("--episode", metavar="ID", help="id of the episode (default: list all, or show the only one)")
    parser.add_argument("--stored", action="store_true", help="show the stored episode without a replay")
    edit = "continue from an act such as mover:0 with this text as its action, and with its own, by the run's models"
    parser.add_argument("--edit", nargs=2, metavar=("ACT", "TEXT"), help=edit)
    continuations = "of --edit: sampled ones (default: 1, greedy)"
    parser.add_argument("--continuations", type=at_least(1), metavar="N", help=continuations)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of --edit, as of `marl-verl eval`")
    add_backend_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Exit code 2 also where the replay differs from the stored episode."""
    if options.edit is None:
        of_edit = {"--continuations": options.continuations, "--local": options.backend}
        for word in [*options.overrides, *(name for name, value in of_edit.items() if value is not None)]:
            raise MarlError(f"'{word}' has no effect without --edit: leave it out")
    else:
        from marl_verl.cli.main import load_command  # of a distribution that imports Hydra

        if options.episode is None:
            raise MarlError("--edit changes an act of one episode: name it with --episode ID")
        how = {"edit": (options.episode, *options.edit), "episodes": options.continuations, "step": options.step}
        options.source = load_command("eval").evaluated(options.source, options.overrides, options, **how)
        options.episode, options.stored, options.step = "edited_0", True, None  # the first edited continuation
    use_plugin_files(run_of(options.source), options.plugin)
    file, name = file_of_episode(options.source, options.episode, options.step), options.episode
    if name is None and len(file.episodes) == 1 and not file.failures:
        (name,) = file.episodes
    if name is None:
        show(list_text(file))
        return 0
    episode = file.episode(name)
    if not options.stored and (folder := run_of(options.source)) and (folder / "config.yaml").is_file():
        from marl_verl.config.stored import marl_section  # imports OmegaConf

        use_run_options(marl_section(load_run(folder).config)["run"])
    again = None if options.stored else replay(file.header, episode)
    show(episode_text(file.header, episode, again))
    changes = [] if again is None else differences(episode, again)
    if changes:
        problem = harmless(f"episode '{name}' is not what is stored: {'; '.join(changes)}")
        print("marl-verl:", " ".join(problem.split()), file=sys.stderr)
    return 2 if changes else 0
