"""Teams of every kind of policy and agent, in this process: what is learnt from are the tokens that were sampled."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from marl_verl_testing.real import Finished
from omegaconf import OmegaConf

import marl_verl
from tests import five
from tests.chat_server import Reply, completion, models, serving
from tests.e2e.all_frameworks import TEAMS, framework
from tests.e2e.conftest import recorded
from tests.local.training import INVENTORY, RECIPES, check, episodes, train
from tests.served import turns_of

pytest.importorskip("verl")
pytestmark = pytest.mark.slow
HERE = Path(__file__).parents[1] / "e2e"

Lessons = list[tuple[int, str, str, dict[str, list[float]]]]
"""(version, policy, row, its fields) of all that training workers were given."""


@pytest.fixture
def lessons(monkeypatch: pytest.MonkeyPatch) -> Lessons:
    from marl_verl_local.session import TrainedPolicy

    call, learnt = TrainedPolicy.call, Lessons()

    def noted(self: Any, method: str, batch: Any, fields: Any, **options: Any) -> Any:
        if method == "update_actor":
            columns = self.store.get(batch.keys, ("input_ids", "old_log_probs", "rollout_log_probs"))
            for row, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
                if not tag.get("is_padding"):
                    values = {name: column.unbind()[row].tolist() for name, column in columns.items()}
                    learnt.append((self.server.version, self.name, key, values))
        return call(self, method, batch, fields, **options)

    monkeypatch.setattr(TrainedPolicy, "call", noted)
    return learnt


POLICY = {"left": "full", "right": "full", "tuned": "lora", "foreign": "other", "judge": "still"}


def test_every_kind_of_policy_in_one_team(tmp_path: Path, lessons: Lessons) -> None:
    """Shared by two agents, LoRA, another family, frozen, in one pool; with a critic, templates and stop strings."""
    from transformers import AutoTokenizer

    (tmp_path / "recipe.yaml").write_text(five.RECIPE)
    files = [Path(five.__file__)]
    overrides: dict[str, Any] = {"trainer.total_training_steps": 3, "trainer.test_freq": 3, "trainer.save_freq": 3}
    overrides |= {"marl.run.dir": str(tmp_path), "marl.run.name": "run"}
    marl_verl.train(tmp_path / "recipe.yaml", overrides, plugins=files, backend="local", progress=False)
    run = Finished(tmp_path / "run", 0, "")
    check(run, still={"still"})
    config: Any = OmegaConf.load(run.folder / "config.yaml")
    tokenizers = {
        name: AutoTokenizer.from_pretrained(policy.actor_rollout_ref.model.path)
        for name, policy in config.policies.items()
    }
    otherwise, stopped = 0, Counter[str]()
    for step in (1, 2, 3):
        sampled: dict[str, tuple[str, dict[str, Any]]] = {}
        for episode in episodes(run, step):
            turns = turns_of(episode)
            assert Counter(record["agent"] for _, record in turns) == five.acts(episode["task"]["data"]["digits"])
            for key, record in turns:
                assert record["row"]["policy"] == POLICY[record["agent"]]
                sampled[key] = (record["row"]["policy"], record["action"])
                if stop := five.STOP.get(record["agent"]):
                    ids, tokenizer = record["action"]["response_ids"], tokenizers[record["row"]["policy"]]
                    assert stop not in tokenizer.decode(ids[:-1], skip_special_tokens=True)
                    text = tokenizer.decode(ids, skip_special_tokens=True)
                    assert record["action"]["text"] == text.partition(stop)[0]
                    stopped[record["agent"]] += stop in text
        rows = [(policy, key, fields) for version, policy, key, fields in lessons if version == step - 1]
        trained = {(policy, key) for key, (policy, _) in sampled.items() if policy != "still"}
        assert Counter((policy, key) for policy, key, _ in rows) == Counter(trained)
        for policy, key, fields in rows:
            action = sampled[key][1]
            assert fields["input_ids"] == action["prompt_ids"] + action["response_ids"]
            assert fields["rollout_log_probs"] == pytest.approx(action["log_probs"], abs=1e-6)
            # the training worker gives these tokens the probabilities that they were sampled with
            assert fields["old_log_probs"] == pytest.approx(action["log_probs"], abs=1e-4)
            encoded = tokenizers[policy].encode(action["text"], add_special_tokens=False)
            otherwise += action["response_ids"] not in (encoded, [*encoded, tokenizers[policy].eos_token_id])
    assert otherwise  # else the test could not detect whether a text was encoded again
    assert set(stopped) == set(five.STOP)
    lines = run.lines("critic/team/vf_loss")
    assert lines[0]["critic/team/value"] == 0.0  # a new head
    assert all(0 < line["critic/team/cut"] < 1 for line in lines)


POLICIES, ROUNDS = ("holder", "asker"), 3
TALK = (
    f"marl.plugins=[{HERE / 'talk.py'}]",
    *("marl.workflow.name=talk", f"marl.workflow.options.rounds={ROUNDS}"),
    *("marl.agents.holder.reward=varied", "marl.agents.asker.reward=varied"),
    *(
        *("marl.sampler.options.episodes=4", "data.train_batch_size=2", "data.max_prompt_length=192"),
        "actor_rollout_ref.rollout.max_model_len=256",
    ),
    "actor_rollout_ref.rollout.temperature=1.5",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=600",  # several micro-batches an update
)
SHARED = {
    # two updates a batch, an entropy bonus, importance weights
    "updates": (
        *("marl.algorithm.name=reinforce++", "marl.algorithm.options.loss=ppo-clip-tis"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.entropy_coeff=0.01"),
    ),
    # adapters, whose reference is the base model, and the team's critic
    "adapters": (
        *(
            *("marl.algorithm.name=mappo", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
            *("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8"),
        ),
        *("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.1"),
        "actor_rollout_ref.actor.optim.lr=1.0e-2",
    ),
}


@pytest.mark.parametrize("case", ["adapters", pytest.param("updates", marks=pytest.mark.long)])
def test_rows_that_share_are_learnt_as_separate_rows(case: str, tmp_path: Path) -> None:
    """The updates differ by rounding, which changes no sampled token here. (`ppo_kl` is a mean over micro-batches.)"""
    both = [
        train(tmp_path / shared / "run", INVENTORY, *TALK, *SHARED[case], f"marl.run.share_prefixes={shared}", steps=2)
        for shared in ("true", "false")
    ]
    rows = [check(run) for run in both]
    assert [row["obs"] for row in rows[0]] == [row["obs"] for row in rows[1]]
    for policy in POLICIES:
        shared, plain = (run.lines(f"policy/{policy}/loss")[-1] for run in both)
        computed, unmerged = (
            [values[f"policy/{policy}/tokens/{name}"] for values in (shared, plain)]
            for name in ("computed", "unmerged")
        )
        assert unmerged == [computed[1]] * 2
        assert computed[0] < 0.6 * computed[1]
        for name in ("grad_norm", "loss", "pg_loss", "entropy"):
            metric = f"policy/{policy}/{name}"
            values = [[line[metric] for line in run.lines(metric)] for run in both]
            assert values[0] == pytest.approx(values[1], rel=2e-4), metric


def test_policies_on_one_base_are_those_of_separate_models(tmp_path: Path) -> None:
    lora = RECIPES / "teams" / "lora.yaml"
    entropy = "actor_rollout_ref.actor.entropy_coeff=0.01"  # they change even if no answer is right
    shared = [f"marl.policies.{name}.base=shared" for name in POLICIES]
    runs = [train(tmp_path / str(len(own)) / "run", lora, entropy, *own, steps=2) for own in ([], shared)]
    for run in runs:
        check(run)
    assert recorded(runs[0]) == recorded(runs[1])


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe of a framework, with the teams of all."""
    monkeypatch.setenv("FRAMEWORKS_FOLDER", str(RECIPES / "frameworks"))
    recipe: Any = OmegaConf.load(RECIPES / "frameworks" / "openai_agents.yaml")
    recipe.marl.plugins = [str(HERE / "all_frameworks.py")]
    recipe.marl.task = {"name": "mixed-digits", "train_size": 64, "test_size": 5}
    return recipe


def test_agents_of_every_framework(frameworks: Any, tmp_path: Path, lessons: Lessons) -> None:
    """With counterfactual credit. Each row has the tokens of an action."""
    frameworks.marl.algorithm = {"name": "grpo", "options": {"credit": "marl_verl_sharp.counterfactual:Counterfactual"}}
    frameworks.marl.sampler = {"options": {"episodes": 2}}
    frameworks.marl.workflow = {"name": "every-framework"}
    frameworks.marl.policies.first.tiny.good = 0.9  # most of its demonstrations call a tool
    OmegaConf.save(frameworks, tmp_path / "recipe.yaml")
    options = ("marl.run.journal_tokens=true", "marl.run.share_prefixes=false", "data.train_batch_size=24")
    run = train(tmp_path / "run", tmp_path / "recipe.yaml", *options, tiny=100)
    rows = check(run)
    assert {row["agent"] for row in rows} == {"first", "second"}
    assert {"credit"} <= {name for row in rows for name in row["rewards"]}
    called, sampled = Counter[str](), Counter[str]()
    for episode in episodes(run, 1):
        actions = [record["action"] for record in episode["journal"]["records"] if record["effect"] == "act"]
        called[framework(episode["task"]["id"])] += sum(bool(action.get("tool_calls")) for action in actions)
        sampled.update(str(action["prompt_ids"] + action["response_ids"]) for action in actions)
    assert Counter(str(fields["input_ids"]) for *_, fields in lessons) == sampled
    assert set(called) == set(TEAMS)
    assert called["openai_agents_team"]  # handoffs
    assert called["pydantic_ai_team"] + called["smolagents_team"]


def test_programs_are_trained(tmp_path: Path) -> None:
    options = (
        *(f"marl.plugins=[{HERE / 'outside.py'}]", "marl.workflow.name=programs", "marl.run.journal_tokens=true"),
        *("marl.task.name=inventory-by-programs", "marl.sampler.options.episodes=3"),
        *("marl.agents.holder.reward=returned", "marl.agents.asker.reward=returned"),
    )
    run = train(tmp_path / "run", INVENTORY, *options)
    rows = check(run)
    assert len(rows) == 4 * 3 * 2
    assert {row["rewards"]["role"] for row in rows if row["agent"] == "asker"} == {0.25}
    actions = [record["action"] for episode in episodes(run, 1) for record in episode["journal"]["records"]]
    assert len(actions) == len(rows)
    assert all(len(action["log_probs"]) == len(action["response_ids"]) > 0 for action in actions)


KEY = "a-key-that-nobody-may-see"
REWARD = """
def score(data_source, solution_str, ground_truth, extra_info):
    return 0.25 * (sum(map(ord, solution_str)) % 2)
"""


def test_an_agent_of_another_server_and_a_function_that_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDER_KEY", KEY)
    (tmp_path / "my_reward.py").write_text(REWARD)

    def answer(request: dict[str, Any]) -> Reply:
        digits = [word for word in request["messages"][-1]["content"].split() if word.isdigit()]
        return completion(" ".join(digits[:4]), tokens=4)

    with serving(answer, models("holder")) as server:
        options = (
            "marl.policies.holder.tiny=null",
            f"marl.policies.holder.endpoint={{url: '{server.url}', model: holder, key_variable: HOLDER_KEY}}",
            f"marl.task.reward='{tmp_path / 'my_reward.py'}:score'",
        )
        run = train(tmp_path / "run", INVENTORY, *options)
        rows = check(run, still={"holder"})
        assert len(server.asked) == len(rows) // 2 + 2 * 2 * 4  # validations: greedy and sampled, before and after
        assert all(KEY in headers["authorization"] for headers in server.headers)
    assert [row["length"] for row in rows if row["policy"] == "holder"] == [4] * (len(rows) // 2)
    assert 0.0 < run.lines("agent/asker/reward")[0]["agent/asker/reward"] < 0.25
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
