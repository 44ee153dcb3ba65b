"""Every kind of policy in one team: shared by two agents, LoRA, another family with another tokenizer, frozen; two of
them colocated. Updates reach the policy that they are for and no other; rows and tokens are those that were sampled."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import WithPlugin
from tests.five import STOP, acts
from tests.served import turns_of

pytestmark = pytest.mark.e2e

TASKS, SESSIONS, STEPS = 8, 3, (1, 2, 3, 4, 5, 6)
POLICY = {"left": "full", "right": "full", "tuned": "lora", "foreign": "other", "judge": "still"}
TRAINED = ("full", "lora", "other")


class Seen:
    """What the process has noted, and the run's journals: what rollout workers say that they have sampled.

    Attributes:
        turns: step -> row key -> (turn, its action).
        tasks: step -> the digits of every episode.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        noted = json.loads((folder / "seen.json").read_text())
        self.stages: dict[str, Any] = noted["stages"]
        self.plain: dict[str, list[float]] = noted["plain"]
        self.models: dict[str, str] = noted["models"]
        self.lessons: list[dict[str, Any]] = noted["lessons"]
        self.slots: float = noted["slots"]
        self.turns: dict[int, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {}
        self.tasks: dict[int, list[list[str]]] = {}
        for step in STEPS:
            lines = (folder / "journals" / f"step_{step:05d}.jsonl").read_text().splitlines()
            episodes = [json.loads(line) for line in lines[1:]]
            self.tasks[step] = [episode["task"]["data"]["digits"] for episode in episodes]
            stored = [turn for episode in episodes for turn in turns_of(episode)]
            self.turns[step] = {key: (record["row"], record["action"]) for key, record in stored}

    def learnt(self, step: int, policy: str) -> list[dict[str, Any]]:
        """The rows that a policy's training workers were given in a step, without padding."""
        return [row for row in self.lessons if (row["step"], row["policy"]) == (step, policy) and not row["padding"]]


@pytest.fixture(scope="module")
def seen(five: WithPlugin) -> Seen:
    return Seen(five.folder)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two answers of a server come from the same weights."""
    return one["tokens"] == other["tokens"] and one["log_probs"] == pytest.approx(other["log_probs"], abs=1e-5)


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[tuple[str, str]]:
    """(policy, side) of all that is not as it was; a training worker's side is "base" or "adapter"."""
    sides = {(name, "server") for name in after if not same(before[name]["server"], after[name]["server"])}
    for name, now in after.items():
        then = before[name].get("trainer", {})
        sides |= {(name, part) for part, weights in now.get("trainer", {}).items() if then[part] != weights}
    return sides


def test_every_server_begins_with_the_model_of_its_policy(seen: Seen) -> None:
    for name, log_probs in seen.plain.items():
        assert seen.stages["start"][name]["server"]["log_probs"] == pytest.approx(log_probs, abs=1e-4), name


@pytest.mark.parametrize("policy", TRAINED)
def test_an_update_and_its_sync_change_one_policy_only(seen: Seen, policy: str) -> None:
    stages = list(seen.stages)
    place = stages.index(f"{policy} updated")
    before, updated, synced = (seen.stages[name] for name in stages[place - 1 : place + 2])
    assert changed(before, updated) == {(policy, "adapter" if policy == "lora" else "base")}
    assert changed(updated, synced) == {(policy, "server")}


def test_lora_trains_the_adapter_and_never_its_base(seen: Seen) -> None:
    parts = [stage["lora"]["trainer"] for stage in seen.stages.values()]
    assert len({part["base"] for part in parts}) == 1
    assert len({part["adapter"] for part in parts}) == 3  # at the start, after step 1, at the end
    assert all(set(stage["full"]["trainer"]) == {"base"} for stage in seen.stages.values())


def test_a_frozen_policy_has_no_training_worker_and_never_changes(seen: Seen) -> None:
    for stage in seen.stages.values():
        assert set(stage["still"]) == {"server"}
        assert stage["still"]["server"]["log_probs"] == pytest.approx(seen.plain["still"], abs=1e-4)
    assert changed(seen.stages["start"], seen.stages["end"]) == {
        *((name, "server") for name in TRAINED),
        *(("full", "base"), ("lora", "adapter"), ("other", "base")),
    }


@pytest.mark.parametrize("step", STEPS)
def test_rows_reach_the_policy_that_produced_them_each_once(seen: Seen, step: int) -> None:
    turns = seen.turns[step]
    wanted = sum((acts(digits) for digits in seen.tasks[step]), Counter())
    assert len(seen.tasks[step]) == TASKS * SESSIONS
    assert Counter(turn["agent"] for turn, _ in turns.values()) == wanted
    for agent, policy in POLICY.items():
        assert {turn["policy"] for turn, _ in turns.values() if turn["agent"] == agent} == {policy}
    for policy in TRAINED:
        sampled = Counter(key for key, (turn, _) in turns.items() if turn["policy"] == policy)
        assert Counter(row["key"] for row in seen.learnt(step, policy)) == sampled
    assert {row["policy"] for row in seen.lessons if row["step"] == step} == set(TRAINED)


def test_two_policies_were_on_one_slot(seen: Seen) -> None:
    assert seen.slots == len(POLICY) - 2  # four policies, two of them on the pool "both"


def test_the_policies_batches_are_of_different_sizes_and_filled_up_with_rows_that_teach_nothing(seen: Seen) -> None:
    sizes = {policy: [len(seen.learnt(step, policy)) for step in STEPS] for policy in TRAINED}
    assert len(set(map(tuple, sizes.values()))) == 3
    padding = [row for row in seen.lessons if row["padding"]]
    assert {row["policy"] for row in padding} == {"lora", "other"}
    assert not any(any(row["response_mask"]) for row in padding)


@pytest.mark.parametrize("policy", TRAINED)
def test_what_is_learnt_from_are_the_tokens_that_were_sampled(seen: Seen, policy: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(seen.models[policy])
    otherwise = 0
    for step in STEPS:
        for row in seen.learnt(step, policy):
            _, action = seen.turns[step][row["key"]]
            assert row["input_ids"] == action["prompt_ids"] + action["response_ids"]
            assert row["rollout_log_probs"] == pytest.approx(action["log_probs"], abs=1e-6)
            # the trainer's weights give these tokens the probabilities that the server sampled them with
            assert row["old_log_probs"] == pytest.approx(action["log_probs"], abs=1e-4)
            encoded = tokenizer.encode(action["text"], add_special_tokens=False)
            otherwise += action["response_ids"] not in (encoded, [*encoded, tokenizer.eos_token_id])
    assert otherwise  # else the test could not detect whether a text was encoded again


@pytest.mark.parametrize("agent", STOP)
def test_a_stop_string_ends_an_action_and_stays_in_its_tokens(seen: Seen, agent: str) -> None:
    from transformers import AutoTokenizer

    tokenizer, stop, stopped = AutoTokenizer.from_pretrained(seen.models[POLICY[agent]]), STOP[agent], 0
    for turns in seen.turns.values():
        for action in [action for turn, action in turns.values() if turn["agent"] == agent]:
            ids = action["response_ids"]
            assert len(action["log_probs"]) == len(ids)
            said, before = (tokenizer.decode(part, skip_special_tokens=True) for part in (ids, ids[:-1]))
            assert stop not in before  # no token is sampled after it
            assert action["text"] == said.partition(stop)[0]
            ended = stop in said or ids[-1] == tokenizer.eos_token_id
            assert action["stop_reason"] == ("stop" if ended else "length")
            stopped += stop in said
    assert stopped


def test_ctrl_c_ends_the_run_and_leaves_nothing_running(five: WithPlugin) -> None:
    assert five.code == 130, five.output
    assert "interrupted" in five.output
    assert five.left == []
