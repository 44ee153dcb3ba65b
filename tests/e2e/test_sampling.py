"""Every sampler and every credit scheme in a real training step, on a team with a joint move and calls."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import LIMIT, ROOT
from tests.e2e.tour import STAGES

pytestmark = pytest.mark.e2e
TASKS = 8

PLUGIN = '''
import random
from marl_verl import Task, TaskSet, Workflow, hookimpl

DIGITS = "0123456789"

class Relay(TaskSet):
    """One digit, to be said by everybody."""
    def generate(self, split, count, seed):
        rng = random.Random(f"{split}{seed}")
        first = 0 if split == "train" else 10**6
        return [Task(f"relay-{first + i}", "say the digit", {"digit": rng.choice(DIGITS)}) for i in range(count)]

    async def score(self, task, answer):
        return sum(said == task.data["digit"] for said in answer.split()) / 3

    def public_score(self, task, answer):
        return sum(said in DIGITS for said in answer.split()) / 3

    def vocabulary(self):
        return ["digit", "heard", "none", *DIGITS]

    def demonstrations(self, agent, count, seed, good):
        rng = random.Random(f"{agent}{seed}")
        pairs = []
        for _ in range(count):
            digit, other = rng.choice(DIGITS), rng.choice([*DIGITS, "none"])
            seen = f"digit {digit}" if rng.random() < 0.5 else f"digit {digit} heard {other}"
            pairs.append((seen, digit if rng.random() < good else rng.choice(DIGITS)))
        return pairs

def one_digit(said):
    if said not in DIGITS:
        raise ValueError(said)
    return said

def word(said):
    return said.strip() if said.strip() in DIGITS else "none"

class Around(Workflow):
    """The planner says it, both workers repeat it at once, the planner says it again."""
    async def run(self, task, team):
        digit = task.data["digit"]
        first = await team["planner"].act(f"digit {digit}")
        team.propose(f"{word(first.text)} none none")
        seen = f"digit {digit} heard {word(first.text)}"
        said = await team.act({"left": seen, "right": seen})
        for agent in ("left", "right"):
            try:
                await team[agent].call(one_digit, said[agent].text.strip())
            except ValueError:
                team.invalid(said[agent], "no digit")
        team.propose(" ".join([word(said["left"].text), word(said["right"].text), "none"]))
        last = await team["planner"].act(f"digit {digit} heard {word(said['left'].text)}")
        return " ".join([word(said["left"].text), word(said["right"].text), word(last.text)])

def said_it(task, turn, episode):
    return float(turn.action.text == task.data["digit"]) / 2

@hookimpl
def marl_register(registry):
    registry.task("relay", Relay)
    registry.workflow("around", Around)
    registry.reward("said-it", said_it)
'''

RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: relay, train_size: 256, test_size: 20}
  workflow: {name: around}
  algorithm: {name: at-grpo}
  agents:
    planner: {policy: planner, reward: said-it}
    left: {policy: worker, reward: said-it}
    right: {policy: worker, reward: said-it}
  policies:
    planner: {tiny: {steps: 60, good: 0.4}}
    worker: {tiny: {steps: 60, good: 0.4}}
  sampler: {options: {candidates: 3}}
  validation: {sampler: best-of, options: {episodes: 3}}
data: {train_batch_size: 8, max_prompt_length: 48, max_response_length: 8}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 8, optim: {lr: 1.0e-3}}
  rollout: {max_model_len: 64}
trainer: {test_freq: 1000, save_freq: 1000}
"""


class Tour:
    """The finished run, and what the commands say about it."""

    def __init__(self, folder: Path, output: str, variables: dict[str, str]) -> None:
        self.folder, self.output, self.variables = folder, output, variables
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.metrics = {line["step"]: line for line in lines if "train/success" in line}

    def step(self, stage: str) -> int:
        return list(STAGES).index(stage) + 1

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "marl_verl.cli.main", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.variables,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def explained(self, stage: str) -> list[dict[str, Any]]:
        step = str(self.step(stage))
        return json.loads(self.command("explain", "--run", str(self.folder), "--step", step, "--json"))

    def rows(self, stage: str) -> dict[str, list[dict[str, Any]]]:
        """Task -> the rows that the step stored."""
        path = self.folder / "rows" / f"step_{self.step(stage):05d}.json.gz"
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in json.loads(gzip.decompress(path.read_bytes()))["rows"]:
            found[row["uid"]].append(row)
        return found

    def stored(self, stage: str) -> list[dict[str, Any]]:
        path = self.folder / "journals" / f"step_{self.step(stage):05d}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("runs") / "tour"
    (site / "around_plugin.py").write_text(PLUGIN)
    info = site / "around_plugin-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: around-plugin\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[marl_verl]\naround = around_plugin\n")
    recipe = site / "around.yaml"
    recipe.write_text(RECIPE)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.tour", str(recipe), str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env=variables,
        cwd=ROOT,
    )
    log = folder / "train.log"
    output = done.stdout + done.stderr + (log.read_text(errors="replace")[-4000:] if log.is_file() else "")
    assert done.returncode == 0, output
    return Tour(folder, done.stdout, variables)


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_trains_and_is_explained(tour: Tour, stage: str) -> None:
    step = tour.step(stage)
    line = tour.metrics[step]
    assert line["train/failed_episodes"] == 0
    assert line["train/attempts"] > 0
    for policy in ("planner", "worker"):
        assert line[f"policy/{policy}/grad_norm"] > 0, line
    records = tour.explained(stage)
    assert {record["key"].split("_")[0] for record in records} == set(tour.rows(stage))
    assert len(tour.rows(stage)) == TASKS
    assert any(record["advantage"] for record in records)
    shown = tour.command("explain", "--run", str(tour.folder), "--step", str(step))
    assert shown.splitlines()[1].startswith(STAGES[stage]["name"])


@pytest.mark.parametrize("stage", STAGES)
def test_every_stored_episode_is_replayed_without_a_model(tour: Tour, stage: str) -> None:
    path = tour.folder / "journals" / f"step_{tour.step(stage):05d}.jsonl"
    episodes = [line["id"] for line in tour.stored(stage) if "journal" in line]
    assert len(episodes) >= TASKS
    for episode in (episodes[0], episodes[-1]):
        assert "digit" in tour.command("replay", str(path), "--episode", episode)


def siblings(rows: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["parent"], row["agent"], row["turn"]].append(row)
    return found


def test_the_greedy_tree_has_all_candidates_of_every_act(tour: Tour) -> None:
    for rows in tour.rows("greedy-tree").values():
        assert len(rows) == 4 * 3  # planner, left, right, planner; three candidates each
        for group in siblings(rows).values():
            assert len(group) == 3
            assert len({row["obs"] for row in group}) == 1
    records = tour.explained("greedy-tree")
    assert {len(record["members"]) for record in records} == {3}
    assert list(records[0]["group"]) == ["uid", "turn", "agent", "slot"]


def test_the_joint_tree_branches_at_every_joint_move(tour: Tour) -> None:
    for rows in tour.rows("joint-tree").values():
        assert Counter(row["agent"] for row in rows) == {"planner": 2 + 8, "left": 4, "right": 4}
    for record in tour.explained("joint-tree"):
        assert len(record["members"]) == 2
        assert "parent" in record["group"]


def test_the_crossed_tree_joins_every_completion_with_every_other(tour: Tour) -> None:
    for rows in tour.rows("joint-tree, crossed").values():
        assert Counter(row["agent"] for row in rows) == {"planner": 2 + 16, "left": 4, "right": 4}
        for row in rows:
            assert row["node"].count("+") == (row["agent"] != "planner")


@pytest.mark.parametrize("stage", ["tree-search", "tree-search, stack"])
def test_the_search_makes_exactly_its_budget_of_nodes(tour: Tour, stage: str) -> None:
    agents: set[str] = set()
    for rows in tour.rows(stage).values():
        assert [row["node"] for row in rows] == [str(node) for node in range(6)]
        agents |= {row["agent"] for row in rows}
    assert "planner" in agents
    assert len({len(record["members"]) for record in tour.explained(stage)}) == 1  # the whole tree is one group


def test_the_search_let_either_worker_take_the_acts_of_the_other(tour: Tour) -> None:
    taken = [turn for line in tour.stored("tree-search") for turn in line.get("turns", ()) if turn["called"]]
    assert {turn["agent"] for turn in taken} in ({"left"}, {"right"}, {"left", "right"})
    assert all(turn["called"] != turn["agent"] for turn in taken)


def test_the_best_of_all_sessions_is_the_episode_and_every_session_trains(tour: Tour) -> None:
    for rows in tour.rows("best-of").values():
        assert len(rows) == 3 * 4
        assert {row["session"] for row in rows} == {0, 1, 2}
    assert sum("journal" in line for line in tour.stored("best-of")) == TASKS


@pytest.mark.parametrize("mode", ["", ", full", ", rescore"])
def test_workers_have_their_marginal_credit(tour: Tour, mode: str) -> None:
    stage = f"counterfactual{mode}"
    for rows in tour.rows(stage).values():
        for row in rows:
            assert ("mc" in row["rewards"]) == (row["agent"] != "planner")
            assert ("tool" in row["rewards"]) == (row["agent"] != "planner")
    tokens = tour.metrics[tour.step(stage)].get("train/extra_tokens/credit", 0.0)
    assert tokens > 0 if mode != ", rescore" else tokens == 0


def test_shapley_values_are_on_every_turn_and_cost_tokens(tour: Tour) -> None:
    for rows in tour.rows("shapley").values():
        assert all("credit" in row["rewards"] for row in rows)
    assert tour.metrics[tour.step("shapley")]["train/extra_tokens/credit"] > 0


def test_the_validation_chose_the_best_of_three(tour: Tour) -> None:
    summary = json.loads((tour.folder / "summary.json").read_text())
    assert summary["eval_tasks"] == 20
    assert 0 <= summary["success_after_sampled"] <= 1
