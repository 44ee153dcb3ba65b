"""Tree search: exact budget, posteriors that match the tree, preference for high scores."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import astuple
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_mars2 import tree_search
from marl_verl_mars2.bandit import Node, Posterior, Prior, Strategy
from marl_verl_mars2.tree_search import TreeSearch, descend
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.workflows import AGENTS, TASK, Hashed, Programmed, number, own_words, talkers, workflows

from marl_verl import MarlError
from marl_verl.algo.sampling import Candidate, Sample
from marl_verl.episode import Act, Team, Workflow, replay
from marl_verl.tasks import Task, TaskSet
from tests.loops import completed

BOTH_PRIORS = pytest.mark.parametrize("prior", ["normal", "beta"])
BOTH_STRATEGIES = pytest.mark.parametrize("strategy", ["bandit", "stack"])


def assert_saw(found: Posterior, scores: list[float]) -> None:
    """The posterior equals the update of its prior with these scores."""
    expected = type(found)()
    for score in scores:
        expected.observe(score)
    assert astuple(found) == pytest.approx(astuple(expected), rel=1e-9, abs=1e-9)


QUESTION = Task("t1", "0")


class Refine(Workflow):
    """One agent writes, and then refines what it sees, up to `rounds` times in all; "end" ends it."""

    rounds: int = 6

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for _ in range(self.rounds):
            text = (await team["a"].act(text)).text
            if text.startswith("end"):
                break
            team.propose(text)
        return text


class Worth(TaskSet):
    """An answer's first number is its score, its second one its public score."""

    def score(self, task: Task, answer: Any) -> float:
        return float(answer.split()[-1].split("/")[0])

    def public_score(self, task: Task, answer: Any) -> float:
        return float(answer.split()[-1].split("/")[1])


def sample(context: ScriptedContext, nodes: int, **options: Any) -> Sample:
    return completed(TreeSearch(nodes, **options).sample(context))


def refining(replies: dict[str, Any], rounds: int = 6, **options: Any) -> ScriptedContext:
    return ScriptedContext(Refine(rounds), QUESTION, ScriptedPolicy(replies), tasks=Worth(), **options)


def noise(*parts: Any) -> float:
    """From 0 to 1."""
    return number(*parts) % 1000 / 1000


def by_node(scores: list[float | str]) -> Callable[[Act, int, Candidate], str]:
    """What node n says."""
    return lambda act, session, candidate: str(scores[int(str(candidate))])


def watch(patch: pytest.MonkeyPatch) -> list[Node]:
    """The roots that searches descend from, one entry a step; their nodes are there to look at after a search."""
    found: list[Node] = []

    def watched(top: Node, rng: Random) -> tuple[Node, str]:
        found.append(top)
        return descend(top, rng)

    patch.setattr(tree_search, "descend", watched)
    return found


def scripted(patch: pytest.MonkeyPatch, steps: list[tuple[list[int], str]]) -> list[Node]:
    """Make a search follow the steps: descend through these children, then generate with this agent."""
    found: list[Node] = []

    def scripted_descend(top: Node, rng: Random) -> tuple[Node, str]:
        path, agent = steps[len(found)]
        found.append(top)
        return functools.reduce(lambda node, child: node.children[child], path, top), agent

    patch.setattr(tree_search, "descend", scripted_descend)
    return found


def all_nodes(top: Node) -> Iterator[Node]:
    """The nodes of a tree without its root."""
    for child in top.children:
        yield child
        yield from all_nodes(child)


@BOTH_PRIORS
@BOTH_STRATEGIES
def test_scores_go_along_edges_as_by_hand(monkeypatch: pytest.MonkeyPatch, strategy: Strategy, prior: Prior) -> None:
    # 0 and 1 at the root, 2 below 0, 3 below 2, 4 fails below 2, 5 below 1, 6 at the root
    steps = [([], "a"), ([], "b"), ([0], "b"), ([0, 0], "a"), ([0, 0], "b"), ([1], "b"), ([], "a")]
    tops = scripted(monkeypatch, steps)
    say = by_node([0.5, -0.25, 0.75, 1.0, "none", 0.0, 0.375])
    context = refining({"a": say, "b": say}, failing=lambda request: request[2] == "4")
    found = sample(context, 7, strategy=strategy, prior=prior, arms=["a", "b"])
    assert [turn.node for turn in found.turns] == ["0", "1", "2", "3", "5", "6"]
    assert [turn.index for turn in found.turns] == [0, 1, 2, 3, 5, 6]
    assert [turn.parent for turn in found.turns] == [None, None, "0", "2", "1", None]
    assert len(found.failures) == 1
    top = tops[0]
    below0 = top.children[0]
    (below2,) = below0.children
    missed = -0.25  # what the failure counts: the lowest so far
    saw: list[tuple[Posterior, list[float]]] = [
        (top.generate["b"], [-0.25]),
        (below0.posterior, [0.5, 0.75, 1.0, missed]),
        (below0.children[0].posterior, [0.75, 1.0, missed]),
        (below2.generate["b"], [missed]),
    ]
    if strategy == "bandit":
        saw += [(top.continuation[""], [0.75, 1.0, missed, 0.0]), (below0.continuation[""], [1.0, missed])]
    else:
        saw += [(top.continuation["a"], [0.75, 1.0, missed]), (top.continuation["b"], [0.0])]
        saw += [(top.of_agent["a"], [0.5, 0.75, 1.0, missed, 0.375]), (top.of_agent["b"], [-0.25, 0.0])]
        saw += [(below0.continuation["b"], [1.0, missed]), (below0.of_agent["b"], [0.75, 1.0, missed])]
    for posterior, scores in saw:
        assert_saw(posterior, scores)


def scores_below(node: Node) -> list[float]:
    return [each.score for each in all_nodes(node)]


def assert_follows(node: Node) -> None:
    """The posteriors of a node equal the update of the prior with its subtree's scores."""
    by: dict[str, list[Node]] = {agent: [] for agent in node.generate}
    for child in node.children:
        assert (child.agent, bool(child.agents)) == (child.state.turn.agent, bool(child.state.acts))
        assert_saw(child.posterior, [child.score, *scores_below(child)])
        by[child.agent].append(child)
    for agent, children in by.items():
        own, below = [child.score for child in children], [s for child in children for s in scores_below(child)]
        assert_saw(node.generate[agent], own)
        if node.strategy == "stack":
            assert_saw(node.continuation[agent], below)
            assert_saw(node.of_agent[agent], own + below)
    if node.strategy == "bandit":
        assert_saw(node.continuation[""], [score for child in node.children for score in scores_below(child)])


STRATEGY, PRIOR = st.sampled_from(["bandit", "stack"]), st.sampled_from(["normal", "beta"])
UNFINISHED = st.sampled_from(["proposal", "latest", "rollout", "zero"])


@given(workflows(), st.integers(0, 5), STRATEGY, PRIOR, UNFINISHED, st.lists(st.sampled_from(AGENTS), unique=True))
@settings(max_examples=30, deadline=None)
def test_on_any_workflow_the_tree_is_whole_and_its_posteriors_follow_from_its_scores(
    workflow: Programmed, seed: int, strategy: Strategy, prior: Prior, partial_value: Any, arms: list[str]
) -> None:
    context = ScriptedContext(workflow, TASK, talkers(seed), tasks=Hashed(), seed=seed, rewards={"solver": own_words})
    with pytest.MonkeyPatch.context() as patch:
        tops = watch(patch)
        found = sample(context, 8, strategy=strategy, prior=prior, partial_value=partial_value, arms=arms)
    top = tops[0]
    nodes = {node.name: node for node in all_nodes(top)}
    assert [turn.node for turn in found.turns] == [str(number) for number in range(8)]  # the budget, each once
    assert [turn.index for turn in found.turns] == list(range(8))
    assert not found.failures
    for node in (top, *nodes.values()):
        assert_follows(node)
        assert node.state.acts or not node.children  # nothing below an end
    for turn in found.turns:
        above = top if turn.parent is None else nodes[turn.parent]
        act = above.state.acts[0]
        assert turn.parent is None or int(turn.parent) < int(turn.node or "")
        assert (turn.key, turn.observation) == (act.key, act.observation)
        assert turn.agent in (arms if act.agent in arms else [act.agent])
        assert turn.policy == turn.role
        assert nodes[turn.node].score == pytest.approx(sum(turn.rewards.values()))
    leaves = [node for node in sorted(nodes.values(), key=lambda node: int(node.name or "")) if not node.children]
    assert [episode.turns[-1].node for episode in found.episodes] == [leaf.name for leaf in leaves]
    for episode, leaf in zip(found.episodes, leaves, strict=True):
        assert episode.finished is not bool(leaf.state.acts)
        assert not episode.off_path_turns
        assert [turn.parent for turn in episode.turns] == [None, *(turn.node for turn in episode.turns[:-1])]
    sampled = sum(len(action.response_ids) for action in context.given)
    assert sampled == sum(len(turn.action.response_ids) for turn in found.turns) + found.extra_tokens.get("rollout", 0)


@given(workflows(failing=True), st.integers(0, 5), st.integers(1, 12), STRATEGY, st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_the_budget_is_exact(workflow: Programmed, seed: int, nodes: int, strategy: Strategy, every: int) -> None:
    context = ScriptedContext(workflow, TASK, talkers(seed), tasks=Hashed(), seed=seed)
    context.failing = lambda request: number(seed, request[2]) % every == 0
    found = sample(context, nodes, strategy=strategy, arms=["solver", "critic"])
    assert len(found.turns) + len(found.failures) == nodes == found.attempts
    names = [turn.node for turn in found.turns]
    assert len(set(names)) == len(names)
    assert set(names) <= {str(number) for number in range(nodes)}
    assert {turn.parent for turn in found.turns} <= {None, *names}  # nothing hangs on a failed node
    assert {failure.reason for failure in found.failures} <= {"policy-error", "workflow-error"}


@pytest.mark.parametrize(("nodes", "arms", "late"), [(2, "", "c"), (3, "", None), (1, "abc", None), (1, "ac", "b")])
def test_too_few_nodes_for_an_agent_are_refused(nodes: int, arms: str, late: str | None) -> None:
    refused = pytest.raises(MarlError, match=f"ends before agent '{late}' acts")
    with contextlib.nullcontext() if late is None else refused:
        TreeSearch(nodes, arms=[*arms]).warning(Worth(), [["a"], ["b"], ["a", "c"]])


def depths(found: Sample) -> list[int]:
    depth: dict[str | None, int] = {None: 0}
    for turn in found.turns:
        depth[turn.node] = depth[turn.parent] + 1
    return [depth[turn.node] for turn in found.turns]


@BOTH_PRIORS
@BOTH_STRATEGIES
def test_it_goes_deep_where_refining_helps_and_wide_where_it_does_not(strategy: Strategy, prior: Prior) -> None:
    def better(act: Act, session: int, candidate: Candidate) -> str:
        return str(min(1.0, float(act.observation[0]["content"]) + 0.15))

    def worse(act: Act, session: int, candidate: Candidate) -> str:
        return str(0.05 * noise(candidate) if act.turn else 0.6 + 0.3 * noise(candidate))

    deep, wide = [], []
    for seed in range(4):
        how = {"strategy": strategy, "prior": prior}
        deep += depths(sample(refining({"a": better}, rounds=12, seed=seed), 40, **how))
        wide += depths(sample(refining({"a": worse}, rounds=12, seed=seed), 40, **how))
    assert sum(deep) / len(deep) >= 1.9
    assert max(deep) >= 4
    assert deep.count(1) <= 60
    assert wide.count(1) >= 130  # of 160: a new draft is always better


def test_another_agent_takes_an_act_with_its_own_policy_and_the_journal_replays() -> None:
    replies = {agent: by_node([f"{agent}{n} {n / 16}" for n in range(16)]) for agent in ("a", "b")}
    tree = sample(refining(replies, rounds=2), 16, arms=["b", "a"])
    taken = [turn for turn in tree.turns if turn.agent == "b"]
    assert taken
    assert len(taken) < 16
    for turn in tree.turns:
        assert turn.policy == turn.agent
        assert turn.action.text.startswith(turn.agent)
        assert turn.called == (None if turn.agent == "a" else "a")
        assert turn.key == ("a", str(turn.turn))
    finished = [episode for episode in tree.episodes if episode.finished and any(turn.called for turn in episode.turns)]
    assert finished
    for episode in finished:
        again = asyncio.run(replay(Refine(2), QUESTION, ("a", "b"), episode.journal))
        assert (again.answer, again.journal) == (episode.answer, episode.journal)


def test_a_state_is_scored_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = watch(monkeypatch)

    class Silent(Refine):
        """Never calls `propose`."""

        async def run(self, task: Task, team: Team) -> str:
            await team["a"].act("1")
            return (await team["a"].act("2")).text

    def run(workflow: Workflow, partial_value: Any) -> tuple[Sample, list[float]]:
        trees.clear()
        say = lambda act, session, candidate: "0.25" if act.turn == 0 else "0.75"  # noqa: E731
        context = ScriptedContext(workflow, QUESTION, ScriptedPolicy({"a": say}), tasks=Worth())
        return sample(context, 6, partial_value=partial_value), sorted({node.score for node in all_nodes(trees[0])})

    found, scores = run(Refine(2), "proposal")
    assert scores == [0.25, 0.75]
    assert not found.extra_tokens
    found, scores = run(Silent(), "proposal")
    assert scores == [0.75]
    first = [turn for turn in found.turns if turn.turn == 0]
    assert found.extra_tokens == {"rollout": 4 * len(first)}  # "0.75", for every node that is no end
    assert run(Refine(2), "zero")[1] == [0.0, 0.75]


@given(workflows(), st.integers(0, 5), STRATEGY)
@settings(max_examples=20, deadline=None)
def test_the_public_choice_is_the_best_and_no_turn_is_lost(workflow: Programmed, seed: int, strategy: Strategy) -> None:
    context = ScriptedContext(workflow, TASK, talkers(seed), tasks=Hashed(), seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        tops = watch(patch)
        found = sample(context, 8, guide="public", strategy=strategy)
    public = {node.name: Hashed().public_score(TASK, node.state.episode.answer) for node in all_nodes(tops[0])}  # type: ignore[union-attr]
    assert {node.name: node.score for node in all_nodes(tops[0])} == public
    assert all(node.state.turn.rewards["team"] == node.state.episode.score for node in all_nodes(tops[0]))  # type: ignore[union-attr]
    (episode,) = found.episodes
    assert episode.turns[-1].node == min(public, key=lambda name: (-public[name], int(name or "")))
    assert sorted(int(turn.node or "") for turn in (*episode.turns, *episode.off_path_turns)) == list(range(8))
