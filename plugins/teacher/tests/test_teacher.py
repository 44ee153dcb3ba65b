"""Teachers: what is refused, how they read rows, and verl's keys. Gradients of their losses are in test_losses.py."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from marl_verl_scripts.verl_script import translate
from marl_verl_teacher.teacher import Teacher
from marl_verl_tiny import factory
from marl_verl_tiny.model import Shape

from marl_verl import explain
from marl_verl.config.hardware import HARDWARE_VARIABLE
from marl_verl.errors import MarlError
from marl_verl.team import Endpoint, PolicyConfig, read_team
from tests.chat_server import Reply, models, serving

TEACHER = {"policy": "big"}
MARL: dict[str, Any] = {
    "agents": {"a": {"policy": "small"}},
    "policies": {"small": {"teacher": TEACHER}, "big": {"frozen": True}},
    **{part: {"name": part} for part in ("task", "workflow", "algorithm")},
}
ROWS = [torch.tensor(row) for row in ([3, 5, 8, 9], [4, 7])]


def test_a_teacher_is_used_by_its_student() -> None:
    team = read_team(MARL)
    assert team.policies["small"].teacher == Teacher("big")
    assert team.agents_of("big") == ["a"]  # a tiny model has the student's vocabulary


@pytest.mark.parametrize(
    ("small", "big", "message"),
    [
        ({"teacher": {"policy": "bgi"}}, None, "unknown teacher 'bgi': did you mean 'big'"),
        ({}, {}, r"teacher 'big' of policy 'small' is trained: set marl\.policies\.big\.frozen=true"),
        ({}, {"script": "human"}, "teacher 'big' of policy 'small' is a script, which has no log-probs"),
        ({"frozen": True}, None, "policy 'small' has a teacher, but is frozen"),
        ({"teacher": {**TEACHER, "form": "kl"}}, None, r"marl\.policies\.small\.teacher\.form"),
        (
            {"teacher": {**TEACHER, "reward": False}, "actor": {"entropy_coeff": 0.1}},
            None,
            "no effect without the reward",
        ),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(small: Any, big: Any, message: str) -> None:
    team = copy.deepcopy(MARL)
    team["policies"]["small"] |= small
    team["policies"]["big"] = {"frozen": True} if big is None else big
    with pytest.raises(MarlError, match=message):
        read_team(team)


def test_the_servers_of_a_teacher_have_room_for_rows_and_log_probs() -> None:
    def section(prompt: int, longest: int | None) -> Any:
        rollout = {"prompt_length": prompt, "response_length": 8, "max_model_len": longest, "engine_kwargs": {}}
        return {"actor_rollout_ref": {"rollout": rollout}}

    policies = {"small": section(40, None), "big": section(24, 30)}
    Teacher("big", "forward-topk", topk=7).serve("small", policies)
    rollout = policies["big"]["actor_rollout_ref"]["rollout"]
    assert (rollout["max_model_len"], rollout["engine_kwargs"]) == (49, {"vllm": {"max_logprobs": 7}})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    words = factory.make_tokenizer([f"w{number}" for number in range(20)])
    model = factory.make_model(Shape(hidden=16, head_dim=8, mlp=32), words, seed=0)
    model.folder = tmp_path_factory.mktemp("teacher")
    words.save_pretrained(model.folder)
    return model


def runtime(model: Any, endpoint: Endpoint | None = None) -> Any:
    return SimpleNamespace(name="big", policy=PolicyConfig("big", endpoint=endpoint), model=model)


def test_a_model_reads_a_row_as_alone(model: Any) -> None:
    pytest.importorskip("verl")
    from marl_verl_teacher.reading import read

    for top in (0, 4):
        for row, (log_probs, ids) in zip(ROWS, read(runtime(model), ROWS, top), strict=True):
            with torch.no_grad():
                expected = model(row[None]).logits[0].log_softmax(-1)
            assert log_probs.shape == ids.shape == (len(row), max(1, top))
            torch.testing.assert_close(log_probs, expected.gather(-1, ids), atol=1e-5, rtol=0)
            wanted = expected.topk(top).indices if top else row[1:, None]
            assert ids[: len(wanted)].tolist() == wanted.tolist()


def served(model: Any, tokenizer: Any) -> Any:
    """What vLLM's /completions returns of a model with a tokenizer."""

    def answer(request: dict[str, Any]) -> Reply:
        prompt = request["prompt"]
        row = torch.tensor(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        with torch.no_grad():
            log_probs = model(row[None]).logits[0].log_softmax(-1)
        positions: list[Any] = [None]
        for token, values in zip(row[1:].tolist(), log_probs[:-1], strict=True):
            ids = [token, *values.topk(request["prompt_logprobs"]).indices.tolist()]
            positions.append({str(likely): {"logprob": float(values[likely]), "rank": 1} for likely in ids})
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": positions}
        return Reply({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})

    return answer


def test_an_endpoint_reads_as_the_model_behind_it(model: Any) -> None:
    pytest.importorskip("verl")
    from marl_verl_teacher.reading import read, same_tokens
    from verl.utils import hf_tokenizer

    words = hf_tokenizer(str(model.folder))
    with serving(served(model, words), models("m")) as server:
        endpoint = Endpoint(server.url, "m")
        for top in (0, 4):
            alike = zip(read(runtime(None, endpoint), ROWS, top), read(runtime(model), ROWS, top), strict=True)
            for (log_probs, ids), (expected, tokens) in alike:
                torch.testing.assert_close(log_probs[:-1], expected[:-1])
                assert ids[:-1].tolist() == tokens[:-1].tolist()
        assert same_tokens("big", endpoint, words)
        assert not same_tokens("big", endpoint, factory.make_tokenizer([f"w{number}" for number in range(1, 20)]))
        choice = {"index": 0, "text": "", "finish_reason": "length"}
        for choices, problem in (([choice], "it returns no prompt_logprobs"), ([], "not a completion")):
            server.answer = lambda request, choices=choices: Reply({"choices": choices})
            with pytest.raises(MarlError, match=f"'big' at http.*: {problem}"):
                read(runtime(None, endpoint), ROWS, 0)


def test_another_vocabulary_is_refused(model: Any, tmp_path: Path) -> None:
    pytest.importorskip("verl")
    from omegaconf import OmegaConf

    factory.make_tokenizer(["other"]).save_pretrained(tmp_path)
    paths = {"small": tmp_path, "big": model.folder}
    part = {"tokenizer_path": None, "trust_remote_code": False}
    sections = {name: {"actor_rollout_ref": {"model": {**part, "path": str(path)}}} for name, path in paths.items()}
    teaching = Teacher("big").teaching(SimpleNamespace(name="small", numbered=False))
    with pytest.raises(MarlError, match="teacher 'big' of policy 'small' has another vocabulary"):
        teaching.begin({"big": runtime(model)}, OmegaConf.create({"policies": sections}))


SCRIPT = """
distillation.enabled=True distillation.nnodes=1 distillation.n_gpus_per_node=2
distillation.teacher_models.teacher_model.model_path=Qwen/Qwen3-8B
distillation.teacher_models.teacher_model.inference.gpu_memory_utilization=0.8
distillation.distillation_loss.loss_mode=k1 distillation.distillation_loss.use_policy_gradient=True
distillation.distillation_loss.use_task_rewards=False
"""


def test_verls_keys_are_a_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HARDWARE_VARIABLE, "gpu")
    recipe = translate(SCRIPT.split())[0]
    assert "distillation" not in recipe
    teacher = {"policy": "teacher", "form": "reverse-kl", "topk": 32, "clamp": None}
    teacher |= {"weight": 1.0, "reward": False}
    assert recipe["marl"]["policies"]["solver"]["teacher"] == teacher
    policy = recipe["marl"]["policies"]["teacher"]
    assert (policy["frozen"], policy["pool"], policy["model"]) == (True, "teacher", {"path": "Qwen/Qwen3-8B"})
    assert policy["rollout"] == {"gpu_memory_utilization": 0.8, "tensor_model_parallel_size": 2}
    assert recipe["marl"]["pools"] == {"teacher": {"gpus": 2, "nodes": 1}}
    default = translate(["distillation.enabled=True"])[0]["marl"]["policies"]["solver"]["teacher"]
    assert (default["form"], default["reward"]) == ("k3", True)
    with pytest.raises(MarlError, match=r"loss_mode=abs.* is no form of a teacher"):
        translate(["distillation.enabled=True", "distillation.distillation_loss.loss_mode=abs"])
    assert "distillation.nnodes=0" in translate(["distillation.nnodes=0"])[2]  # dropped: it is switched off


@pytest.mark.slow
def test_a_student_learns_in_one_process_and_explain_names_its_teacher(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    from tests.local.training import check, train

    run = train(
        tmp_path / "run", "teams/distilled", "marl.policies.student.model={lora_rank: 4, lora_alpha: 8}", tiny=20
    )
    check(run, still={"big"})
    assert run.lines("policy/student/distillation/loss")
    assert "the loss of policy student also has teacher big (forward-topk, weight 1)" in explain(run.folder).text()
