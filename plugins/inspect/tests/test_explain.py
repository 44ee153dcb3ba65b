"""`marl-verl explain`: every golden file, the output, stored steps of a run, and user errors."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marl_verl_testing.rows import algorithm

from marl_verl import explain, plugins
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.cli.main import main
from marl_verl.config.parts import algorithm_named
from marl_verl.errors import MarlError
from marl_verl.run.run_dir import RunDir
from tests import batches

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "golden"
GOLDEN = sorted(path for path in SHARED.glob("*.json") if "shapley" not in path.name)
RECORD = ["key", "agent", "group", "members", "reward", "return", "baseline", "scale", "advantage", "transforms"]
Document = dict[str, Any]
Command = Callable[..., str]


def row(uid: str, session: int, index: int, agent: str = "a", turn: int = 0, **rewards: float) -> dict[str, Any]:
    return {**batches.row(uid, session, index, turn, agent, **rewards), "length": 4}


def document(*rows: dict[str, Any], algorithm: str = "grpo", **options: Any) -> Document:
    return {"algorithm": algorithm, "options": options, "rows": list(rows)}


def pair(**options: Any) -> Document:
    return document(row("q", 0, 0, team=1.0), row("q", 1, 0, team=0.0), **options)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def printed(command: Command) -> Command:
    """Run the command; returns its output. A document becomes a file."""

    def run(given: Document | str, *arguments: str) -> str:
        if not isinstance(given, str):
            Path("rows.json").write_text(json.dumps(given))
            given = "rows.json"
        return command("explain", given, *arguments)

    return run


# The golden files


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path: Path, printed: Command) -> None:
    """As a file; and stored as a run's step it gives what training used, to the bit, from the options as stored."""
    golden = json.loads(path.read_text())
    records = json.loads(printed(str(path), "--json"))
    near = {"rtol": golden["rtol"], "atol": golden["atol"]}
    assert len(records) == len(golden["rows"])
    np.testing.assert_allclose([record["advantage"] for record in records], golden["expected"], **near)
    _check_records(records, golden["rows"])
    assert [record["advantage"] for record in records] == stored(Path("run"), 12, golden)["advantage"]
    for words in (("run", "--step", "12"), ("run/rows/step_00012.json.gz",)):
        assert json.loads(printed(*words, "--json")) == records == explain(golden)


def _check_records(records: list[Document], rows: list[Document]) -> None:
    """What holds for every algorithm."""
    by_key = {record["key"]: record for record in records}
    for record, given in zip(records, rows, strict=True):
        assert [*record] == RECORD
        assert record["key"] == f"{given['uid']}_{given['session']}_{given['index']}"
        assert record["agent"] == given["agent"]
        assert record["advantage"] == (record["return"] - record["baseline"]) / record["scale"]
        assert record["key"] in record["members"]
        assert record["group"] == {column: given[column] for column in record["group"]}
        for member in record["members"]:
            assert by_key[member]["members"] == record["members"]
            assert by_key[member]["group"] == record["group"]
        assert all(list(transform) == ["name", "value"] for transform in record["transforms"])
        values = {transform["name"]: transform["value"] for transform in record["transforms"]}
        for name, value in given["rewards"].items():
            assert values[f"component: {name}"] == value
        assert [value for name, value in values.items() if name.startswith("mix: ")] == [record["reward"]]
        assert record["transforms"][-1]["value"] == record["return"]


def test_a_team_reward_of_an_episode_is_placed_by_the_returns() -> None:
    rows = [{**row("q", 0, index, turn=index, role=0.5), "team_reward": 2.0} for index in range(2)]
    options = {"returns": "discounted", "baseline": "none", "norm_by_std": False}
    assert [each["advantage"] for each in explain(document(*rows, **options))] == [3.0, 2.5]
    named = {"rewards": "weights", "weights": {"team": 1.0, "tool": 1.0}}
    with pytest.raises(MarlError, match="unknown reward component 'tool'"):
        explain(document(*rows, **named))
    declared = explain({**document(*rows, **named), "components": ["team", "tool"]})
    assert [each["reward"] for each in declared] == [2.0, 2.0]
    with pytest.raises(MarlError, match=r"the document: Expected `array`, .* at `..components`"):
        explain({**document(*rows), "components": "team"})


def test_names_cannot_command_the_terminal(printed: Command) -> None:
    text = printed(document(row("q\n\x1b[2J", 0, 0, team=1.0), row("über", 0, 0, team=1.0)))
    assert "q\\n\\x1b[2J_0_0" in text
    assert "über_0_0" in text


def without(given: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}


def test_a_mistaken_document(refused: Command) -> None:
    second = row("q", 1, 0, team=0.0)
    tree = {**row("q", 0, 0, team=1.0), "node": "n0", "parent": "n9"}
    for given, message in (
        (pair(algorithm="grop"), "unknown algorithm 'grop': did you mean 'grpo'?"),
        (document(second, without(second, "agent")), "rows: Object missing required field `agent` - at `$[1]`"),
        (document(tree, algorithm="mars2"), "row 'q_0_0' has parent 'n9', which is not a node of task 'q'"),
    ):
        Path("rows.json").write_text(json.dumps(given))
        assert f"'rows.json': {message}" in refused("explain", "rows.json")


# What a run stores


def stored(folder: Path, step: int, given: Document | None = None) -> Document:
    """Store a step as the trainer does."""
    given = given or pair(algorithm="at-grpo")
    method = algorithm(given["algorithm"], **given["options"])
    table = RowTable.from_rows(given["rows"])
    document = step_document(given["algorithm"], method, table, method.compute(table), step)
    folder.mkdir(exist_ok=True)
    RunDir(folder).rows(step, document)
    return document


@pytest.mark.parametrize("name", plugins.load().names("algorithms"))
def test_options_survive_being_stored(name: str) -> None:
    tried = 0
    for options in (
        {},
        {"returns": "discounted", "gamma": 0.5},
        {"group": [], "overlong": {"L": 8, "C": 4}},
        {"baseline": "leave-one-out", "std": "population", "scale_group": ["agent"]},
        {"rewards": "weights", "weights": {"team": 2}},
        {"credit": "c3"},
        {"credit": "step-groups"},
        {"advantage": "marl_verl_magrpo.algorithm:JointAdvantage", "mode": "rloo"},
    ):
        try:
            method = algorithm(name, **options)
        except MarlError:
            continue  # these do not go with this algorithm
        tried += 1
        again = algorithm_named(name, json.loads(json.dumps(method.options())), "options")
        assert again == method
        assert again.options() == method.options()
    assert tried >= 4


def test_a_difference_from_training_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    document = stored(Path("run"), 1)
    document["advantage"][1] = 0.5
    RunDir(Path("run")).rows(1, document)
    for form in ((), ("--json",)):
        assert main(["explain", "run", *form]) == 0
        output = capsys.readouterr()
        assert output.err.startswith(
            "marl-verl: 'run/rows/step_00001.json.gz': 1 of 2 advantages are not what training used, e.g. row 'q_1_0'"
        )
        assert output.err.count("\n") == 1
        assert "q_1_0" in output.out


def test_a_row_is_found_in_the_step_that_stored_it(command: Command, refused: Command) -> None:
    for step in (1, 2, 3):
        stored(Path("run"), step, document(row(f"s{step}t00000", 0, 0, team=1.0)))
    assert "row s2t00000_0_0 of agent a" in command("explain", "run", "--row", "s2t00000_0_0")
    (found,) = json.loads(command("explain", "run", "--row", "s2t00000_0_0", "--json"))
    assert found["key"] == "s2t00000_0_0"
    assert "'run/rows/step_00002.json.gz': unknown row 's2t00000_0_9': did you mean 's2t00000_0_0'?" in refused(
        "explain", "run", "--row", "s2t00000_0_9"
    )


def test_a_damaged_step(refused: Command) -> None:
    document = stored(Path("run"), 1)
    path = RunDir(Path("run")).stored("rows")[1]
    path.write_bytes(path.read_bytes()[:-9])
    assert f"'{path}' is damaged: it cannot be decompressed" in refused("explain", "run")
    RunDir(Path("run")).rows(1, without(document, "rows"))
    assert f"'{path}': the document: Object missing required field `rows`" in refused("explain", "run")


# In a process of its own


PAGE = Path(__file__).parents[3] / "docs" / "explain.md"
EXAMPLES = re.findall(r"\$ marl-verl explain (examples/.*)\n((?s:.+?))```", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("arguments", "output"), EXAMPLES)
def test_the_examples_of_the_page_print_what_it_says(printed: Command, arguments: str, output: str) -> None:
    file, *options = arguments.split()
    found = printed(str(PAGE.parents[1] / file), *options)
    assert found.endswith(output)  # of the second one without the header
    assert found == output or "--row" in options
