"""docs/results.md is what its generator makes of the stored cells, and the statistics on it are right."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from marl_verl_report.decide import quantile
from marl_verl_sharp.ledgers import WORKERS

from marl_verl.episode import Act, Action, Turn
from marl_verl.errors import MarlError
from marl_verl.run.reading import Run
from tests.benchmarks.results import cells, page
from tests.benchmarks.results.claim import Arm, Claim, Comparison
from tests.benchmarks.results.claims import CLAIMS
from tests.benchmarks.results.gradients import advantages, ratios
from tests.benchmarks.results.marginal import correlations, truths
from tests.benchmarks.results.measures import GREEDY, Measure, largest, log10, of, spikes

ROOT = Path(__file__).parents[1]
CLAIM = Claim(
    name="toy",
    title="Toy: it works",
    claim="a beats b.",
    setting="A toy.",
    arms=[Arm("a", ["a.yaml"]), Arm("b", ["b.yaml", "x=1"])],
    measures=[GREEDY, Measure("norm", "norm", of("norm"))],
    comparisons=[
        Comparison("a is better", "success", "a", "b"),
        Comparison("a has a smaller norm", "norm", "a", "b", "lower"),
        Comparison("a has a norm above 1", "norm", "a", than=1.0),
    ],
    settings=["steps=2"],
)


def cell(arm: str, seed: int, success: float, norm: float = 1.0) -> cells.Cell:
    return {
        **{"arm": arm, "seed": seed, "command": [], "version": "1", "commit": "c"},
        **{"machine": {"cpus": 2, "memory_gib": 4, "gpus": [], "python": "3"}, "packages": {}, "seconds": 10 + seed},
        "metrics": {"success": success, "norm": norm},
        "curve": {"step": [0, 2], "greedy": [0.0, success], "sampled": [0.0, success]},
    }


def test_the_page_is_generated_from_the_stored_cells() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(CLAIMS), "run make results"


def test_every_stored_cell_has_what_a_reader_needs_to_repeat_it() -> None:
    for claim in CLAIMS:
        for stored in cells.stored(claim):
            (arm,) = [arm for arm in claim.arms if arm.name == stored["arm"]]
            assert stored["command"] == claim.command(arm, stored["seed"])
            assert {measure.key for measure in claim.measures} == set(stored["metrics"])
            assert all(map(math.isfinite, stored["metrics"].values()))
            curve = stored["curve"]
            assert len(curve["step"]) == len(curve["greedy"]) == len(curve["sampled"]) <= 21
            assert all(stored[name] for name in ("seconds", "commit", "machine", "packages", "version"))
            assert (ROOT / arm.words[0]).is_file()
        seeds = [{cell["seed"] for cell in cells.stored(claim) if cell["arm"] == arm.name} for arm in claim.arms]
        assert all(have == set(range(len(have))) for have in seeds), "a seed is left out"
    assert {path.stem for path in cells.STORED.rglob("*.*")} <= {claim.name for claim in CLAIMS}


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ([0.9, 0.8, 0.9, 0.8] * 5, [0.5, 0.4, 0.5, 0.5] * 5, "replicates"),
        ([0.5, 0.4, 0.5, 0.5] * 5, [0.9, 0.8, 0.9, 0.8] * 5, "does not replicate"),
        ([0.51, 0.5, 0.49, 0.5] * 5, [0.5] * 20, "no effect larger than 5.0 points"),
        ([0.9, 0.1, 0.9, 0.1] * 5, [0.5, 0.49] * 10, "undecided: about 510 seeds would decide"),
        ([0.9, 0.8, 0.9], [0.5, 0.4, 0.5], "replicates, with 3 seeds only"),
        ([0.9], [0.5], "not measured"),
    ],
)
def test_a_verdict_is_that_of_the_paired_differences(first: list[float], second: list[float], word: str) -> None:
    both = [*(cell("a", i, x) for i, x in enumerate(first)), *(cell("b", i, x) for i, x in enumerate(second))]
    assert page.verdict(CLAIM, both, CLAIM.comparisons[0])[0] == word


def test_pairs_have_the_same_seed_and_lower_may_be_the_claim() -> None:
    both = [cell("a", seed, 0.5, seed) for seed in range(5)]
    both += [cell("b", seed, 0.5, seed + 2.0) for seed in range(1, 7)]
    word, why = page.verdict(CLAIM, both, CLAIM.comparisons[1])
    assert word == "replicates, with 4 seeds only"
    assert "-2.00 (-2.00 to -2.00)" in why
    word, why = page.verdict(CLAIM, [cell("a", seed, 0.5, 1.5 + seed % 2) for seed in range(5)], CLAIM.comparisons[2])
    half = quantile(4, 1 - 0.05 / 4) * math.sqrt(0.3 / 5)
    assert word == "undecided: about 6 seeds would decide, with 5 seeds only"
    assert why == f" (*norm* 1.90 ({1.9 - half:.2f} to {1.9 + half:.2f}), against 1.00)"


@pytest.mark.parametrize(("success", "word"), [(0.8, "agrees"), (0.1, "differs")])
def test_a_run_on_verl_is_compared_with_one_more_local_run(success: float, word: str, tmp_path: Path) -> None:
    cells.store(CLAIM, cell("a", 0, success), tmp_path)
    local = [cell("a", seed, value) for seed, value in enumerate((0.7, 0.8, 0.9))]
    *_, row, _ = page.on_verl([(CLAIM, local)], tmp_path)
    half = 4.302653 * 0.1 * math.sqrt(4 / 3)  # t of 2 degrees of freedom
    assert f"| {success:.1%} | 80.0% ({0.8 - half:.1%} to {0.8 + half:.1%}) |" in row
    assert word in row


def test_missing_cells_come_seed_by_seed(tmp_path: Path) -> None:
    cells.store(CLAIM, cell("b", 0, 0.5), tmp_path)
    names = [(arm.name, seed) for arm, seed in cells.missing(CLAIM, CLAIM.arms, (0, 1), tmp_path)]
    assert names == [("a", 0), ("a", 1), ("b", 1)]


def test_measures_of_a_run(tmp_path: Path) -> None:
    lines: list[dict[str, float]] = [
        {"step": 0, "validation/success": 0.1},
        *({"step": step, "policy/p/grad_norm": norm} for step, norm in enumerate((2.0, 1.0, 1.0, 8.0), 1)),
        {"step": 2, "validation/success": 0.3},
        {"step": 4, "validation/success": 0.6},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = Run(tmp_path)
    assert spikes("p")(run) == pytest.approx(8.0 / 1.5)
    assert largest("p")(run) == 8.0
    assert log10(largest("p"))(run) == pytest.approx(3 * math.log10(2))
    assert of("mean:policy/p/grad_norm")(run) == 3.0
    assert of("gain:validation/success")(run) == pytest.approx(0.5)
    assert of("validation/success")(run) == 0.6
    assert of("area:validation/success")(run) == pytest.approx(0.45)
    with pytest.raises(MarlError, match="unknown metric 'absent'"):
        of("absent")(run)


def test_the_true_contribution_of_a_worker_and_how_rewards_agree_with_it() -> None:
    """A planner that believes the reader with 0.8, and else the gossip with 0.6."""

    def probability(seen: str, right: str) -> float:
        _, _, _, *reports = seen.split()
        of = dict(zip(reports[::2], reports[1::2], strict=True))
        return 0.8 * (of["reader"] == right) + 0.2 * (of["gossip"] == right) + 0.1 * (of["gossip"] == "none")

    def episode(reader: str, gossip: str, score: float, *credit: float) -> Any:
        seen = [{"role": "user", "content": f"planner item red reader {reader} idler c gossip {gossip}"}]
        asked = [{"role": "user", "content": "planner item red beside blue"}]
        turns = [SimpleNamespace(agent="planner", observation=asked, rewards={})]
        turns += [SimpleNamespace(agent=a, rewards={"mc": c}) for a, c in zip(WORKERS, credit, strict=True)]
        turns.append(SimpleNamespace(agent="planner", observation=seen, rewards={}))
        task = SimpleNamespace(data={"item": "red", "ledgers": {"reader": {"red": "5"}}})
        return SimpleNamespace(turns=turns, task=task, score=score)

    full, without = episode("5", "7", 1.0, 1.0, 0.0, -1.0), episode("none", "none", 0.0, 0.0, 0.0, 0.0)
    assert truths(full, probability) == pytest.approx([0.8, 0.0, -0.1])
    assert truths(without, probability) == [0.0, 0.0, 0.0]
    credit, broadcast = correlations([full, without], probability)
    # truth (0.8, 0, -0.1, 0, 0, 0), credit (1, 0, -1, 0, 0, 0), score (1, 1, 1, 0, 0, 0)
    assert credit == pytest.approx(0.9 / math.sqrt(2 * (0.65 - 6 * (0.7 / 6) ** 2)))
    assert broadcast == pytest.approx(0.35 / math.sqrt(1.5 * (0.65 - 6 * (0.7 / 6) ** 2)))


def test_gradients_of_both_normalisations_on_the_same_rows() -> None:
    """Two rows whose gradients are orthogonal: (A global, A own) = (2, 1) and (0, 1), |g| = 3 and 4."""
    found = ratios(np.array([1.0, 1.0]), np.array([2.0, 0.0]), np.array([[3.0, 0.0], [0.0, 4.0]]))
    assert found == pytest.approx({"moment": 4 * 9 / (9 + 16), "norm": 6 / 5, "cosine": 3 / 5})


def test_the_two_advantages_are_those_of_the_two_algorithms() -> None:
    """A solver with 0 or 0.1 and a verifier with -5 or 5: only the shift is left to the solver by the global one."""
    turns = [
        Turn(Act(agent, "0", 0, index, ()), Action("x"), "q", session, agent, rewards=rewards, team_reward=0.1 * won)
        for session, (won, verdict) in enumerate([(1, -5.0), (0, -5.0), (1, 5.0), (0, -5.0)])
        for index, (agent, rewards) in enumerate([("solver", {}), ("verifier", {"role": verdict})])
    ]
    own, everyone = advantages(turns, {"penalty": 0.1, "weights": {"team": 1.0, "role": 1.0}})
    np.testing.assert_allclose(own[::2], [0.866, -0.866, 0.866, -0.866], atol=1e-3)
    rewards = np.array([0.1, -4.9, 0.0, -5.0, 0.1, 5.1, 0.0, -5.0])
    np.testing.assert_allclose(everyone, (rewards - rewards.mean()) / rewards.std(ddof=1), atol=1e-5)
