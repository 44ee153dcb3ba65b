"""`marl-verl explain`: every golden file, the output, stored steps of a run, and user errors."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marl_verl_testing.rows import algorithm

from marl_verl import explain, hookimpl, plugins
from marl_verl.algo.advantage import AdvantageResult, Estimator, RowTable
from marl_verl.algo.advantage.rows import FloatArray
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.algo.credit import TableCredit
from marl_verl.cli.main import main
from marl_verl.config.parts import algorithm_named
from marl_verl.errors import MarlError
from marl_verl.run.run_dir import RunDir
from tests import batches

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "golden"
GOLDEN = sorted(SHARED.glob("*.json"))
RECORD = ["key", "agent", "padding", "group", "members", "reward", "return", "baseline", "scale", "advantage"]
RECORD += ["transforms"]
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
def printed(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command; returns its output. A document becomes a file."""

    def run(given: Document | str, *arguments: str) -> str:
        if not isinstance(given, str):
            Path("rows.json").write_text(json.dumps(given))
            given = "rows.json"
        code = main(["explain", given, *arguments])
        output = capsys.readouterr()
        assert (code, output.err) == (0, "")
        return output.out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command, which must fail; returns its one-line error message."""

    def run(*arguments: str) -> str:
        assert main(["explain", *arguments]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("marl-verl: ")
        assert output.err.count("\n") == 1
        assert "Traceback" not in output.err
        return output.err

    return run


# The golden files


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path: Path, printed: Command) -> None:
    golden = json.loads(path.read_text())
    records = json.loads(printed(str(path), "--json"))
    near = {"rtol": golden["rtol"], "atol": golden["atol"]}
    assert len(records) == len(golden["rows"])
    if golden["algorithm"] == "shapley":
        for what, expected in (("shapley", "expected"), ("leave_one_out", "expected_leave_one_out")):
            for record, shares in zip(records, golden[expected], strict=True):
                assert list(record) == ["shapley", "leave_one_out"]
                assert list(record[what]) == list(shares)
                np.testing.assert_allclose(list(record[what].values()), list(shares.values()), **near)
        return
    np.testing.assert_allclose([record["advantage"] for record in records], golden["expected"], **near)
    for record, given in zip(records, golden["rows"], strict=True):  # GiGPO compares once more, inside the group
        assert ("also" in record) == (golden["algorithm"] == "gigpo")
        for keys in record.get("also", {}).values():
            same = [r for r in golden["rows"] if (r["uid"], r["obs"]) == (given["uid"], given["obs"])]
            assert keys == [f"{r['uid']}_{r['session']}_{r['index']}" for r in same]
    _check_records(records, golden["rows"])


def _check_records(records: list[Document], rows: list[Document]) -> None:
    """What holds for every algorithm."""
    by_key = {record["key"]: record for record in records}
    for record, given in zip(records, rows, strict=True):
        assert [name for name in record if name != "also"] == RECORD
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
        mixed = [value for name, value in values.items() if name.startswith("mix: ")]
        assert mixed == [record["reward"]]
        assert record["transforms"][-1]["value"] == record["return"]


# Records


def test_a_record_in_full(printed: Command) -> None:
    given = document(row("q", 0, 0, team=1.0, role=0.5), row("q", 1, 0, team=0.0, role=0.5), weights={"team": 2.0})
    records = json.loads(printed({**given, "name": "other keys are ignored"}, "--json"))
    scale = 2 * np.sqrt(0.5) + 1e-6
    assert records[0] == {
        "key": "q_0_0",
        "agent": "a",
        "padding": False,
        "group": {"uid": "q"},
        "members": ["q_0_0", "q_1_0"],
        "reward": 2.0,
        "return": 2.0,
        "baseline": 1.0,
        "scale": pytest.approx(scale),
        "advantage": pytest.approx(1 / scale),
        "transforms": [
            {"name": "component: role", "value": 0.5},
            {"name": "component: team", "value": 1.0},
            {"name": "mix: weights", "value": 2.0},
            {"name": "returns: immediate", "value": 2.0},
        ],
    }


def test_every_transform_on_the_way_to_the_return() -> None:
    rows = [row("q", 0, 0, team=1.0), row("q", 0, 1, turn=1, team=3.0), row("q", 1, 0, team=0.0)]
    options = {"returns": "discounted", "gamma": 0.5, "overlong": {"L": 4, "C": 2}, "sample": "session_mean"}
    first = explain(document(*rows, **options))[0]
    assert first["transforms"] == [
        {"name": "component: team", "value": 1.0},
        {"name": "mix: weights", "value": 1.0},
        {"name": "returns: discounted", "value": 2.5},
        {"name": "overlong", "value": 1.5},
        {"name": "sample: session_mean", "value": 1.75},
    ]
    assert first["return"] == 1.75


def test_a_credit_computed_from_the_rows_is_shown() -> None:
    rows = [row("q", s, 0, team=s / 4) for s in range(2)]
    first = explain(document(*rows, credit="c3", norm_by_std=False))[0]
    assert {"name": "component: credit", "value": -0.25} in first["transforms"]
    assert first["reward"] == -0.25


def test_a_team_reward_of_an_episode_is_placed_by_the_returns() -> None:
    rows = [{**row("q", 0, index, turn=index, role=0.5), "team_reward": 2.0} for index in range(2)]
    options = {"returns": "discounted", "baseline": "none", "norm_by_std": False}
    assert [each["advantage"] for each in explain(document(*rows, **options))] == [3.0, 2.5]
    named = {"rewards": "weights", "weights": {"team": 1.0, "tool": 1.0}}
    with pytest.raises(MarlError, match="unknown reward component 'tool'"):
        explain(document(*rows, **named))
    declared = explain({**document(*rows, **named), "components": ["team", "tool"]})
    assert [each["reward"] for each in declared] == [2.0, 2.0]
    with pytest.raises(MarlError, match="the document, components: expected"):
        explain({**document(*rows), "components": "team"})


def test_padding_is_left_out_of_everything(printed: Command) -> None:
    padding = {**row("q", 0, 0, team=float("nan")), "padding": True}
    given = pair()
    given["rows"].insert(0, padding)
    records = json.loads(printed(given, "--json"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert records[1:] == explain(pair())
    zeros = dict.fromkeys(("reward", "return", "baseline", "advantage"), 0.0)
    shown = {"key": "q_0_0", "agent": "a", "padding": True, "group": None, "members": [], "scale": 1.0, **zeros}
    assert records[0] == {**shown, "transforms": []}
    assert printed(given).splitlines()[-3].endswith("padding")
    assert json.loads(printed(given, "--json", "--row", "q_0_0")) == records[1:2]  # the real row of that key
    given["rows"][0]["uid"] = "filler"
    assert "only fills a batch" in printed(given, "--row", "filler_0_0")


def test_one_row_with_its_numbers_filled_in(printed: Command) -> None:
    golden = json.loads((SHARED / "at_grpo_small.json").read_text())
    text = printed(golden, "--row", "q0_0_2")
    for message in (
        "row q0_0_2 of agent coder",
        "component: team",
        "mix: alpha (alpha 0.5)",
        "group uid=q0 turn=1 agent=coder: 2 rows",
        "->  q0_0_2     0.8   0.707105",
        "    q0_1_2     0.1  -0.707105",
        "advantage = (return - baseline) / scale = (0.8 - 0.45) / 0.494976 = 0.707105",
    ):
        assert message in text
    assert "q0_0_3" not in text
    assert json.loads(printed(golden, "--json", "--row", "q0_0_2")) == explain(golden)[2:3]


def test_a_standard_deviation_of_0_that_counts_as_1_is_shown(printed: Command) -> None:
    """Of returns without a baseline. Other constant groups have advantage 0 anyway."""
    rows = [row("q", session, 0, team=2.0) for session in range(2)]
    document = {"algorithm": "grpo", "options": {"baseline": "none", "group": ["uid"]}, "rows": rows}
    Path("rows.json").write_text(json.dumps(document))
    assert "a standard deviation of 0 counts as 1 in 2 rows" in printed("rows.json")
    assert "scale     1  (a standard deviation of 0 counts as 1)" in printed("rows.json", "--row", "q_0_0")
    Path("rows.json").write_text(json.dumps({**document, "options": {"group": ["uid"]}}))
    assert "counts as 1" not in printed("rows.json")


def test_names_cannot_command_the_terminal(printed: Command) -> None:
    given = document(row("q\n\x1b[2J", 0, 0, team=1.0), row("über", 0, 0, team=1.0))
    text = printed(given)
    assert "q\\n\\x1b[2J_0_0" in text
    assert "über_0_0" in text


def test_lines_are_cut_on_a_terminal_only(printed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    given = document(row("q" * 200, 0, 0, team=1.0))
    assert "…" not in printed(given)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert [len(line) for line in printed(given).splitlines()][-2:] == [60, 60]


# Mistakes


GAME = {"players": ["a", "b"], "values": {"": 0.0, "a": 1.0, "b": 2.0, "a,b": 4.0}}


def game(**changes: Any) -> Document:
    return {"algorithm": "shapley", "options": {}, "rows": [GAME, {**GAME, **changes}]}


def without(given: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}


SECOND = row("q", 1, 0, team=0.0)
TREE = {**row("q", 0, 0, team=1.0), "node": "n0", "parent": "n9"}
MISTAKES = [
    (pair(algorithm="grop"), "unknown algorithm 'grop': did you mean 'grpo'?"),
    (pair(groop=["uid"]), "unknown key 'options.groop'"),
    (document({**row("q", 0, 0, team=1.0), "paddng": True}), "unknown column 'paddng': did you mean 'padding'?"),
    (document(row("q", 0, 0, team=float("nan")), SECOND), "reward 'team' of row 'q_0_0' (agent 'a', task 'q') is nan"),
    (document(SECOND, without(SECOND, "agent")), "rows[1] lacks 'agent'"),
    (document({**SECOND, "session": "0"}), "rows[0], session: expected `int`"),
    (document({**SECOND, "rewards": {"team": "1"}}), "rows[0], rewards[...]: expected `float`, got `str`"),
    (document({**SECOND, "rewards": {}}), "row 'q_1_0' has no reward component"),
    (document({**SECOND, "length": 10**30}), "rows[0], length"),
    (document(SECOND, SECOND), "two rows have the key 'q_1_0'"),
    (document(), "there are no rows"),
    (document(TREE), "row 'q_0_0' has parent 'n9', which is not a node of task 'q'"),
    ({**pair(), "rows": {}}, "the document, rows: expected `array`, got `object`"),
    (without(pair(), "options"), "the document lacks 'options'"),
    ([pair()], "the document: expected `object`, got `array`"),
    ({**game(), "rows": [without(GAME, "players")]}, "row 0 lacks 'players'"),
    (game(players=["a", "b", "b"]), "row 1: player 'b' is named twice"),
    (game(players=["solver", "b"], values={"solvr": 1}), "has the unknown player 'solvr': did you mean 'solver'?"),
    (game(values=without(GAME["values"], "b")), "row 1: coalition 'b' has no value"),
    (game(values={**GAME["values"], "b,a": 4.0}), "row 1: two keys of 'values' are one coalition"),
    (game(values={**GAME["values"], "a": True}), "row 1, values[...]: expected `float`, got `bool`"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistaken_document(refused: Command, given: Any, message: str) -> None:
    Path("rows.json").write_text(json.dumps(given))
    printed = refused("rows.json")
    assert message in printed
    assert "'rows.json'" in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON: Expecting value"),
        (b"[" * 100_000, "is not JSON: maximum recursion depth"),
        (gzip.compress(json.dumps(pair()).encode())[:-20], "'rows.json' is damaged: it cannot be decompressed"),
    ],
)
def test_a_file_that_is_something_else(refused: Command, content: bytes, message: str) -> None:
    Path("rows.json").write_bytes(content)
    assert message in refused("rows.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no run or file is given"),
        (["row.json"], "no file 'row.json': did you mean 'rows.json'?"),
        (["a.json", "--step", "1"], "--step needs a run"),
        (["--run", "."], "run '.' has no stored steps"),
        (["a.json", "--rwo", "k"], "unknown option '--rwo': did you mean '--row'?"),
    ],
)
def test_a_mistaken_command(refused: Command, arguments: list[str], message: str) -> None:
    Path("rows.json").write_text("{}")
    assert message in refused(*arguments)


@dataclass(frozen=True)
class _Odd(Estimator):
    """A = r, by a way that leads nowhere."""

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        zeros = np.zeros(len(table))
        group = np.zeros(len(table), dtype=np.int64)
        stages = [("the detour", zeros * np.inf)]
        return AdvantageResult.of(reward, reward, zeros, zeros + 1, group, group, (), stages)


@dataclass(frozen=True)
class DifferenceRewards(TableCredit):
    """D_i = G(z) - G(z with i's default action)."""

    name = "difference"

    def compute(self, table: RowTable) -> FloatArray:
        return table.component("team") - table.component("default")


class _Plugin:
    @hookimpl
    def marl_register(self, registry: Any) -> None:
        registry.algorithm("mine", Algorithm(credit=(DifferenceRewards(),)))
        registry.algorithm("odd", Algorithm(advantage=_Odd()))
        registry.algorithm("no-algorithm", _Odd)


def test_algorithms_of_plugins(printed: Command, refused: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = plugins.assemble({"mine": _Plugin()})
    monkeypatch.setattr(plugins, "load", lambda: mine)
    rows = [row("q", s, 0, team=float(s), default=0.25) for s in range(2)]
    text = printed(document(*rows, algorithm="mine"))
    assert "credit     difference  D_i = G(z) - G(z with i's default action)." in text
    for name, message in (("odd", "'the detour' of row 'q_0_0' is nan"), ("no-algorithm", "must be an Algorithm")):
        Path("rows.json").write_text(json.dumps(document(*rows, algorithm=name)))
        assert message in refused("rows.json", "--json")


# What a run stores


def stored(folder: Path, step: int, given: Document | None = None) -> Document:
    """Store a step as the trainer does."""
    given = given or pair(algorithm="at-grpo")
    name = given["algorithm"]
    method, table = algorithm(name, **given["options"]), RowTable.from_rows(given["rows"])
    document = step_document(name, method, table, method.compute(table), step)
    folder.mkdir(exist_ok=True)
    RunDir(folder).rows(step, document)
    return document


@pytest.mark.parametrize("path", [path for path in GOLDEN if "shapley" not in path.name], ids=lambda path: path.stem)
def test_a_stored_step_gives_what_training_used(path: Path, printed: Command) -> None:
    """To the bit, from the options as stored; as a run's step, and as a file."""
    golden = json.loads(path.read_text())
    document = stored(Path("run"), 12, golden)
    records = json.loads(printed("--run", "run", "--step", "12", "--json"))
    assert [record["advantage"] for record in records] == document["advantage"]
    assert records == explain(golden)
    assert json.loads(printed("run/rows/step_00012.json.gz", "--json")) == records


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


def test_the_newest_step_and_steps_that_are_not_stored(printed: Command, refused: Command) -> None:
    for step in (10, 20, 30, 40, 41):
        stored(Path("run"), step)
    Path("run/rows/.writing-step_00050.json.gz").write_bytes(b"")  # of a run that was killed
    assert printed("--run", "run").startswith("run 'run', step 41\nat-grpo: group (uid, turn, agent, slot), ")
    assert "run 'run' has not stored step 3: it has 10, 20, 30, and 2 others" in refused("--run", "run", "--step", "3")
    assert json.loads(printed("--run", "run", "--step", "20", "--json", "--row", "q_1_0"))[0]["key"] == "q_1_0"


def test_a_difference_from_training_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    document = stored(Path("run"), 1)
    document["advantage"][1] = 0.5
    RunDir(Path("run")).rows(1, document)
    for form in ((), ("--json",)):
        assert main(["explain", "--run", "run", *form]) == 0
        output = capsys.readouterr()
        assert output.err.startswith(
            "marl-verl: run 'run', step 1: 1 of 2 advantages are not what training used, e.g. row 'q_1_0' had 0.5 and"
        )
        assert output.err.count("\n") == 1
        assert "q_1_0" in output.out


def test_a_damaged_step(refused: Command) -> None:
    document = stored(Path("run"), 1)
    path = RunDir(Path("run")).stored_rows()[1]
    path.write_bytes(path.read_bytes()[:-9])
    assert "run 'run', step 1 is damaged: it cannot be decompressed" in refused("--run", "run")
    RunDir(Path("run")).rows(1, {**document, "advantage": [1.0]})
    assert "run 'run', step 1: it lacks the advantage of each row" in refused("--run", "run")
    RunDir(Path("run")).rows(1, without(document, "rows"))
    assert "run 'run', step 1: the document lacks 'rows'" in refused("--run", "run")


# In a process of its own


def _python(*arguments: str, **others: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MARL_VERL_PLUGINS": ""}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, env=environment, check=False, **others
    )


HEAVY = ("torch", "ray", "verl", "vllm", "transformers", "hydra", "omegaconf", "matplotlib", "rich", "tensordict")


@pytest.mark.parametrize("arguments", [["--help"], ["rows.json", "--json"], ["rows.json", "--row", "q_0_0"]], ids=str)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    Path("rows.json").write_text(json.dumps(pair()))
    done = _python(
        "-c",
        "import sys\nfrom marl_verl.cli.main import main\n"
        f"try:\n    code = main(['explain', *{arguments!r}])\nexcept SystemExit as end:\n    code = end.code\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules], code)",
    )
    assert done.stdout.splitlines()[-1:] == ["HEAVY [] 0"], done.stderr


def test_a_reader_that_has_enough_is_no_error() -> None:
    rows = [row("q", session, 0, team=float(session % 2)) for session in range(500)]
    Path("rows.json").write_text(json.dumps(document(*rows)))
    command = f"'{sys.executable}' -m marl_verl.cli.main explain rows.json --json | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[\n", "")


PAGE = Path(__file__).parents[1] / "docs" / "explain.md"
EXAMPLES = re.findall(r"\$ marl-verl explain (examples/.*)\n((?s:.+?))```", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("arguments", "output"), EXAMPLES)
def test_the_examples_of_the_page_print_what_it_says(printed: Command, arguments: str, output: str) -> None:
    file, *options = arguments.split()
    found = printed(str(PAGE.parents[1] / file), *options)
    assert found.endswith(output)  # of the second one without the header
    assert found == output or "--row" in options
