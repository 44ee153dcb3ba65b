"""Judged workflows: replay in every order, what is asked, rewards by hand, and verdicts that are missing."""

import asyncio
import re
from typing import Any

import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_judges import judged
from marl_verl_judges.judged import Judged
from marl_verl_judges.rewards import Verdicts, judge_calibration, judge_score
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, check_workflow, shown
from marl_verl_testing.workflows import number

from marl_verl import MarlError, Task, TaskSet, Team, Workflow
from marl_verl.algo.sampling import Independent, Sample
from marl_verl.episode import Act, WorkflowError
from tests.sites import use_plugin

TASK = Task("t", "2 + 2?", {"answer": "4"})
PROMPTS = {"act": "{task} {data[answer]} {seen}: {text}", "pair": "{first} or {second}", "episode": "{transcript}"}
TWICE = {"a": lambda act: "4" if act.slot == "0" else "5", "b": "5"}  # four of five acts are equal


class Answer(TaskSet):
    quick = True

    def score(self, task: Task, answer: Any) -> float:
        return float(answer == task.data["answer"])


class Talk(Workflow):
    """`a` and `b` act, in a joint move or in turn; then `a` acts twice in parallel, and `b` after both."""

    joint: bool = True
    last: str = "b"

    async def run(self, task: Task, team: Team) -> str:
        assert team.agents == ("a", "b")
        seen = dict.fromkeys(team.agents, task.prompt)
        first = await team.act(seen) if self.joint else {agent: await team[agent].act(seen[agent]) for agent in seen}
        team.propose(first["a"].text)
        more = await asyncio.gather(*(team["a"].act("again", slot=slot) for slot in ("x", "y")))
        await (team["b"] if self.last == "b" else team.spawn("b")).act(" ".join(action.text for action in more))
        return first["a"].text


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = use_plugin(monkeypatch, lambda registry: registry.workflow("talk", Talk))
    monkeypatch.setattr(judged, "load", lambda: known)


def workflow(kind: Any = "act", judges: Any = ("judge",), **options: Any) -> Judged:
    return Judged(of="talk", judges=list(judges), **{"kind": kind, "prompt": PROMPTS[kind], **options})


def sampled(workflow: Judged, replies: dict[str, Any], episodes: int = 1) -> Sample:
    judges = dict.fromkeys(workflow.judges, judge_calibration if workflow.kind != "pair" else lambda *_: 0.0)
    rewards = {"a": judge_score, "b": judge_score, **judges}
    context = ScriptedContext(workflow, TASK, ScriptedPolicy({**TWICE, **replies}), Answer(), rewards=rewards)
    return asyncio.run(Independent(episodes).sample(context))


def rewards(sample: Sample) -> dict[str, float]:
    return {":".join(turn.key): turn.rewards["role"] for turn in sample.turns if turn.agent in "ab"}


@pytest.mark.parametrize(("kind", "early"), [("act", False), ("act", True), ("pair", False), ("episode", False)])
def test_a_judged_run_is_replayed_from_every_prefix_and_in_any_order(kind: str, early: bool) -> None:
    judges = dict.fromkeys(("judge", "other"), lambda act: str(number(act.agent, shown(act)) % 13))
    policy = ScriptedPolicy(
        {"a": lambda act: "0" if act.slot == "0" else "x", "b": lambda act: shown(act)[:1], **judges}
    )
    run = check_workflow(workflow(kind, judges, early=early, marks={"1": 0.5}), TASK, policy, orders=12)
    asked = [(act.agent, shown(act)) for act, _ in run.turns if act.agent in judges]
    distinct = {"act": 4, "pair": 3, "episode": 1}  # a's parallel acts are equal; both orders of "x or x" are
    assert len(asked) == len(set(asked)) == 2 * distinct[kind]


def test_the_rewards_of_acts_and_episodes_are_means_of_the_judges() -> None:
    def reply(act: Act) -> str:
        return "So: 8/10" if shown(act).endswith(": 4") else "2 out of 10."

    sample = sampled(workflow(judges=("judge", "other")), {"judge": reply, "other": "I give 4"})
    assert rewards(sample) == pytest.approx({"a:0": 0.6, "a:x": 0.3, "a:y": 0.3, "b:0": 0.3, "b:1": 0.3})
    # the judges' scores of the four other views of five: 0.2 and 0.4; y is 1
    metrics = {"judge/score": 0.36, "judge/accuracy": 0.36, "judge/agreement": (0.6 + 4 * 0.8) / 5}
    assert Verdicts().of_sample(sample) == pytest.approx(metrics)
    right = [turn.rewards["role"] for turn in sample.turns if turn.agent == "judge"]
    assert sorted(right) == pytest.approx([1 - 0.8**2] * 3 + [1 - 0.2**2])
    whole = sampled(workflow("episode", prompt="{transcript} {answer}"), {"judge": "3"})
    assert rewards(whole) == pytest.approx(dict.fromkeys(("a:0", "a:x", "a:y", "b:0", "b:1"), 0.3))


@pytest.mark.parametrize("kind", PROMPTS)
def test_agents_that_are_spawned_are_judged_as_their_role(kind: str) -> None:
    sample = sampled(workflow(kind, agents=["a", "b"], options={"last": "spawned"}), {"judge": "B" * (kind == "pair")})
    roles = {":".join(turn.key): turn.rewards["role"] for turn in sample.turns}
    assert roles["b#1:0"] == roles["b:0"] == (0.5 if kind == "pair" else 0.0)


def test_a_pair_is_judged_in_both_orders() -> None:
    def longer(act: Act) -> str:
        first, _, second = shown(act).partition(" or ")
        return "A" if len(first) > len(second) else "B"

    replies = {"a": lambda act: {"0": "long"}.get(act.slot, "c"), "b": ["s", "text"]}
    sample = sampled(workflow("pair"), {**replies, "judge": longer})
    # a's acts in order are 0, x, y, those of b 0, 1: a's last one has no opponent
    assert rewards(sample) == {"a:0": 1.0, "a:x": 0.0, "a:y": 0.5, "b:0": 0.0, "b:1": 1.0}
    assert Verdicts().of_sample(sample) == {"judge/score": 0.5, "judge/consistency": 1.0}
    biased = sampled(workflow("pair"), {**replies, "judge": "A"})
    assert set(rewards(biased).values()) == {0.5}
    assert Verdicts().of_sample(biased) == {"judge/score": 1.0, "judge/consistency": 0.0}
    run = check_workflow(workflow("pair", agents=["b"]), TASK, ScriptedPolicy({**replies, "judge": "B"}))
    assert sorted(shown(act) for act, _ in run.turns if act.agent == "judge") == ["s or text", "text or s"]


def test_a_verdict_without_a_score_has_the_value_of_the_option() -> None:
    for reply in ("", "eleven", "11", "-1", "8, or rather 12/10"):
        sample = sampled(workflow(unparsed=0.25), {"judge": reply})
        assert set(rewards(sample).values()) == {0.25}
        assert all(turn.invalid == "no score" and turn.rewards["role"] == 0 for turn in sample.turns[5:])
        assert Verdicts().of_sample(sample) == {}
    assert workflow(worst=5, best=1, marks={}).score("Grade: 2") == 0.75
    assert set(rewards(sampled(workflow("pair", unparsed=0.25), {"judge": "Both"})).values()) == {0.25, 0.5}


def test_a_tree_scores_its_states_with_early_verdicts() -> None:
    """A frozen judge's acts are parts of transitions, and every candidate has its own verdict."""
    agents = dict.fromkeys("ab", lambda act, session, candidate: str(number(act.key, candidate) % 9))
    policy = ScriptedPolicy({**agents, "judge": shown})
    options: Any = {"tasks": Answer(), "rewards": {"a": judge_score, "b": judge_score}, "untrained": ["judge"]}
    early = workflow(prompt="{text}", early=True, options={"joint": False})
    sample = check_sampler(GreedyTree(candidates=3), early, TASK, policy, **options)
    assert all(turn.agent in "ab" for turn in sample.turns)
    assert all(turn.rewards["role"] == pytest.approx(int(turn.action.text) / 10) for turn in sample.turns)
    late = ScriptedContext(workflow(prompt="{text}"), TASK, policy, **options)
    (failure, *_) = asyncio.run(GreedyTree(candidates=3).sample(late)).failures
    assert re.search("no judge has judged act a:0.*early: true", failure.detail)


def test_what_cannot_be_judged_is_refused_before_an_act() -> None:
    for options, message in (
        ({"judges": []}, "'judges' must name"),
        ({"agents": ["judge"]}, "not in 'agents'"),
        ({"marks": {True: 1.0}}, "'marks' must be words, got True"),
        ({"worst": 10}, "must differ, got 10.0"),
        ({"kind": "pair", "early": True}, "'early' is for kind 'act'"),
    ):
        with pytest.raises(MarlError, match=message):
            workflow(**options)
    for options, message in (
        ({"prompt": "{txt}"}, "unknown field .*'txt': did you mean 'text'"),
        ({"prompt": "{data[anser]}"}, "'anser': did you mean 'answer'"),
        ({"judges": ["jugde"]}, "did you mean 'judge'"),
    ):
        with pytest.raises(WorkflowError, match=f"before any act: .*{message}"):
            check_workflow(workflow(**options), TASK, ScriptedPolicy({**TWICE, "judge": "5"}))
