"""Every generator of reasoning-gym as a task set."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from marl_verl_games.entries import decoded, encoded
from marl_verl_games.reasoning_gym import ReasoningGym
from marl_verl_testing import check_task
from reasoning_gym.factory import DATASETS

from marl_verl import Task
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.options import build

WHERE = "marl.task.options"
OPTIONS: dict[str, dict[str, Any]] = {
    "composite": {"datasets": [{"name": "chain_sum", "weight": 1.0, "config": {"min_terms": 2, "max_terms": 2}}]},
    "knight_swap": {"max_nodes": 7, "max_pieces": 2, "impossible_ratio": 1.0},
}
NO_ANSWER = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")  # entries without a solution
BY_THE_CLOCK = ("knight_swap",)  # another entry when asked again
BY_THE_HASH = ("isomorphic_strings", "polynomial_multiplication", "ransom_note", "word_ladder")
UNSTABLE = (*BY_THE_CLOCK, *BY_THE_HASH)  # the second: other entries with another PYTHONHASHSEED
LENIENT = ("game_of_life_halting",)  # "no idea" begins with a right answer


def made(name: str, **options: Any) -> ReasoningGym:
    return build(ReasoningGym, {"dataset": name, **OPTIONS.get(name, {}), **options}, WHERE)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_every_generator_is_a_task_set(name: str) -> None:
    tasks = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = tasks.generate("train", 2, 0)
    for task in found:
        stored = Task(**json.loads(json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data})))
        entry = decoded(stored.data["entry"])
        assert task.prompt.startswith(entry["question"])
        assert repr(encoded(entry)) == repr(stored.data["entry"])
        if name not in NO_ANSWER:
            assert tasks.score(stored, f"So: <answer>{entry['answer']}</answer>") == 1.0
            assert tasks.score(stored, entry["answer"]) == 1.0
        for bad in ("", "no idea", "[[1, 2], [3", "9" * 400):
            assert 0.0 <= tasks.score(stored, bad) <= (1.0 if name in LENIENT else 0.99)
    if name not in BY_THE_CLOCK:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert made(name).generate("train", 2, 0) == found


LONG = pytest.mark.long
QUICK = {"chain_sum", "word_sorting", "maze", "family_relationships", "simple_integration"}
KIT = [name if name in QUICK else pytest.param(name, marks=LONG) for name in sorted({*DATASETS} - {*UNSTABLE})]


@pytest.mark.parametrize("name", KIT)
def test_the_kit_accepts_it(name: str) -> None:
    tasks = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_task(tasks, lambda task: [str(decoded(task.data["entry"])["answer"]), "7", ""], count=3)


def test_options_reach_the_generator() -> None:
    tasks = made("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    for task in tasks.generate("test", 5, 0):
        assert len(decoded(task.data["entry"])["metadata"]["expression"].split()) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "unknown marl.task.options.dataset 'chain_sums'.*did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "min_term": 2}, "unknown key 'marl.task.options.min_term'.*did you mean 'min_terms'"),
        ({"dataset": "chain_sum", "min_terms": 0}, "'chain_sum' refuses these options: min_terms must be positive"),
        ({"dataset": "chain_sum", "size": 5}, "use marl.task.train_size and marl.task.test_size"),
        ({"dataset": "composite"}, "Must specify at least one dataset"),
    ],
)
def test_mistakes_in_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MarlError, match=message) as raised:
        build(ReasoningGym, options, WHERE)
    assert "\n" not in str(raised.value)


def test_a_small_space_is_an_error_and_repeats_are_counted() -> None:
    tasks = made("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    with pytest.raises(
        MarlError, match=r"made only \d+ of 400 different test tasks \(\d+ repeats\). Set marl.task.test"
    ):
        tasks.generate("test", 400, 0)
    with pytest.warns(
        MarlWarning, match=r"'chain_sum': \d+ of \d+ train entries repeated a question and were left out"
    ):
        assert len(tasks.generate("train", 90, 0)) == 90


def test_no_test_task_is_in_training_whatever_the_seed_and_seeds_differ() -> None:
    tasks = made("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MarlWarning)
        found = {
            split: [{task.prompt for task in tasks.generate(split, 150, seed)} for seed in (0, 1)]
            for split in ("train", "test")
        }
    assert not (found["train"][0] | found["train"][1]) & (found["test"][0] | found["test"][1])
    assert found["train"][0] != found["train"][1]


def test_a_task_set_travels_to_another_process() -> None:
    tasks = pickle.loads(pickle.dumps(made("chain_sum", min_terms=2)))
    assert (tasks.dataset, tasks.min_terms) == ("chain_sum", 2)


def test_values_that_json_lacks_come_back() -> None:
    value = {"a": (1, [2, {3: "x"}]), "b": {4, 5}, (1, 2): frozenset({"q"}), "c": None}
    assert decoded(json.loads(json.dumps(encoded(value)))) == value
    assert encoded(np.int64(3)) == 3
    assert decoded(encoded(np.array([[1, 2]]))).tolist() == [[1, 2]]
    with pytest.raises(MarlError, match="a object in the entry"):
        encoded(object())
