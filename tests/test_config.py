"""Recipes and overrides: the composed config, and the message for each user error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from marl_verl.config.backend import choose_backend
from marl_verl.config.compose import attention, compose, parse_overrides, rollout_workers, with_overrides
from marl_verl.config.parts import algorithm_of, named_samplers
from marl_verl.config.resolve import resolve
from marl_verl.config.verl_keys import changed
from marl_verl.errors import MarlError
from marl_verl.team import Named, read_team

pytestmark = pytest.mark.slow  # whole configs are composed, a quarter of a second each

QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart"
RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: inventory}
  workflow: {name: inventory}
  agents: {holder: {policy: one}, asker: {policy: two}}
  policies: {one: {tiny: {}}, two: {actor: {optim: {lr: 1e-3}}, tiny: {}}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "it's a recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_overrides_reach_agents_policies_and_options_that_the_recipe_does_not_name(recipe: Path) -> None:
    config = compose(
        recipe,
        [
            "marl.policies.one.frozen=true",
            "marl.policies.one.actor.optim.lr=1e-4",
            "marl.agents.asker.sampling.temperature=0.5",
            "marl.algorithm.name=at-grpo",
            "marl.algorithm.options.rewards.alpha=0.5",
            "actor_rollout_ref.rollout.engine_kwargs.vllm.max_loras=2",
            "+marl.agents.extra={policy: one}",
            "trainer.total_training_steps=7",
        ],
        hardware="cpu",
    )
    assert config.marl.policies.one == {"tiny": {}, "frozen": True, "actor": {"optim": {"lr": 1e-4}}}
    assert config.marl.agents.asker == {"policy": "two", "sampling": {"temperature": 0.5}}
    assert config.marl.algorithm.options == {"rewards": {"alpha": 0.5}}
    assert config.marl.agents.extra.policy == "one"
    marl: Any = OmegaConf.to_container(config.marl)
    whole = resolve(config, read_team(marl))
    assert whole.policies.one.actor_rollout_ref.actor.optim.lr == 1e-4
    assert whole.policies.two.actor_rollout_ref.actor.optim.lr == 1e-3
    assert whole.policies.one.actor_rollout_ref.rollout.name != whole.policies.two.actor_rollout_ref.rollout.name
    assert whole.policies.two.actor_rollout_ref.actor.optim.total_training_steps == 7
    assert whole.trainer.device == "cpu"

    # a continued run starts from the composed config: an override of the base must not become every policy's
    again = with_overrides(
        config, ["actor_rollout_ref.actor.optim.lr=1e-2", "marl.policies.two.actor.optim.clip_grad=0.5"]
    )
    whole = resolve(again, read_team(OmegaConf.to_container(again.marl)))  # type: ignore[arg-type]
    assert whole.policies.one.actor_rollout_ref.actor.optim.lr == 1e-4
    other = whole.policies.two.actor_rollout_ref.actor
    assert (other.optim.lr, other.optim.clip_grad) == (1e-3, 0.5)
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6  # a copy was changed
    for line, message in (
        ("trainer.total_steps=3", "unknown key 'trainer.total_steps': did you mean"),
        ("marl.policies.tow.frozen=true", "unknown key 'marl.policies.tow.frozen': did you mean 'two'?"),
        ("marl.run.seed=x", "'marl.run.seed' must be a whole number"),
    ):
        with pytest.raises(MarlError) as error:
            with_overrides(config, [line])
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("foo", "'foo' is not of the form key=value"),
        ("=3", "'=3' is not of the form key=value"),
        ("trainer.logger=[console", "'trainer.logger=[console' is not of the form key=value"),
        ("trainer.test_freq=1,2", "has several values"),
        ("sampler=3", "unknown key 'sampler'"),
    ],
)
def test_an_invalid_override(recipe: Path, line: str, message: str) -> None:
    with pytest.raises(MarlError) as error:
        compose(recipe, [line], hardware="cpu")
    assert message in str(error.value)


RAY = "+ray_kwargs.ray_init.address=auto"


@pytest.mark.parametrize(
    ("overrides", "hardware", "of_recipe", "backend"),
    [
        ([], "cpu", "null", "verl"),
        ([], "cpu", "local", "local"),
        ([], "gpu", "local", "verl"),
        ([RAY], "cpu", "local", "verl"),
        (["marl.run.backend=local"], "gpu", "verl", "local"),
        (["marl.run.backend=local", RAY], "cpu", "null", "local"),  # which `check_local` refuses
        (["marl.run.backend=verl"], "cpu", "local", "verl"),
        (["marl.run.backend=null"], "cpu", "local", "verl"),
    ],
)
def test_the_backend_is_that_of_an_override_or_of_the_hardware_or_of_the_recipe(
    recipe: Path, overrides: list[str], hardware: str, of_recipe: str, backend: str
) -> None:
    recipe.write_text(RECIPE.replace("marl:", f"marl:\n  run: {{backend: {of_recipe}}}"))
    assert choose_backend(compose(recipe, overrides, hardware=hardware), overrides) == backend


def test_parsed_overrides_keep_their_values() -> None:
    values = [change.value() for change in parse_overrides(["a=1", "+b.c=[1,x]", "d='1,2'", "e={f: null}"])]
    assert values == [1, [1, "x"], "1,2", {"f": None}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.yaml", b"\xff\xfe\x00", "cannot be read"),
        ("recipe.yml", RECIPE, "must be a .yaml file"),
        ("ppo_trainer.yaml", RECIPE, "would replace the config file of that name"),
        ("recipe.yaml", RECIPE.replace("marl_trainer", "marl_trainer, nothing"), "Could not load 'nothing'"),
        ("recipe.yaml", RECIPE + "\ntrainer: {a: 1, a: 2}\n", "duplicate key"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(MarlError) as error:
        compose(tmp_path / name, [], hardware="cpu")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_recipe_offers_the_nearest() -> None:
    with pytest.raises(MarlError, match=r"no recipe file '.*inventry.yaml': did you mean '.*inventory.yaml'\?"):
        compose(QUICKSTART / "inventry.yaml", [])


VALID = {
    "trainer": {"steps": 1, "shuffle": True, "rate": 1.0, "free": None, "empty": {}, "target": "all", "refers": "${x}"},
}


def test_keys_and_types_are_those_of_the_defaults() -> None:
    for section, message in (
        ({"step": 1}, "unknown key 'trainer.step': did you mean 'steps'?"),
        (3, "'trainer' must be a mapping, got 3"),
        ({"steps": 1.5}, "'trainer.steps' must be a whole number, got 1.5"),
        ({"shuffle": 1}, "'trainer.shuffle' must be true or false, got 1"),
        ({"rate": None}, "'trainer.rate' must be a number, got None"),
    ):
        with pytest.raises(MarlError) as error:
            list(changed({"trainer": section}, VALID))
        assert message in str(error.value)
    right = {"steps": 3, "shuffle": False, "rate": 2, "free": {"a": 1}, "empty": {"b": 1}, "target": "x", "refers": 7}
    assert ("trainer.steps", "trainer.steps", 3) in changed({"trainer": right}, VALID)
    assert [*changed({"trainer": {"steps": "${y}"}}, VALID)] == [("trainer.steps", "trainer.steps", "${y}")]


@pytest.mark.parametrize(
    ("overrides", "training", "validation"),
    [
        ([], Named("independent", {"episodes": 4}), Named("independent", {"episodes": 1})),
        (["marl.validation.options.episodes=3"], None, Named("independent", {"episodes": 3})),
        (["marl.validation.sampler=best-of"], None, Named("best-of", {"episodes": 8})),
        (
            ["marl.algorithm.name=at-grpo", "~marl.sampler.options", "marl.sampler.options.candidates=2"],
            Named("greedy-tree", {"candidates": 2, "partial_value": "proposal"}),
            Named("independent", {"episodes": 1}),
        ),
        (
            ["marl.algorithm.name=at-grpo", "~marl.sampler.options"],
            Named("greedy-tree", {"candidates": 8, "partial_value": "proposal"}),
            Named("independent", {"episodes": 1}),
        ),
    ],
)
def test_each_sampler_has_its_own_options(
    recipe: Path, overrides: list[str], training: Named | None, validation: Named
) -> None:
    recipe.write_text(f"{RECIPE}  sampler: {{options: {{episodes: 4}}}}\n")
    marl: Any = OmegaConf.to_container(compose(recipe, overrides, hardware="cpu").marl)
    found = named_samplers(algorithm_of(read_team(marl)), marl)
    assert found["sampler"] == (training or Named("independent", {"episodes": 4}))
    assert found["validation"] == validation


def test_rollout_workers_on_gpu_machines_are_as_many_as_its_cores_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((None, 1), (31, 1), (32, 2), (256, 8)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert rollout_workers() == expected
    key = "actor_rollout_ref.rollout.agent.num_workers"
    assert OmegaConf.select(compose(QUICKSTART / "inventory.yaml", [], hardware="gpu"), key) == 8
    assert OmegaConf.select(compose(QUICKSTART / "inventory.yaml", [f"{key}=3"], hardware="gpu"), key) == 3


def test_a_gpu_config_has_what_verl_needs_to_start() -> None:
    """Without these, verl's workers stop at an assertion, or ask for a package that is not installed."""
    recipe = Path(__file__).parents[1] / "recipes" / "quickstart" / "inventory.yaml"
    config = compose(recipe, [], hardware="gpu")
    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    whole = resolve(config, read_team(marl))
    for policy in (each.actor_rollout_ref for each in whole.policies.values()):
        assert policy.actor.use_dynamic_bsz
        assert policy.rollout.log_prob_use_dynamic_bsz
        assert policy.actor.ppo_max_token_len_per_gpu
        assert policy.rollout.log_prob_max_token_len_per_gpu
        assert policy.model.override_config.attn_implementation == "sdpa"
        assert policy.rollout.free_cache_engine
    assert whole.trainer.device == "cuda"


def test_flash_attention_is_the_default_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl_verl.config.compose.flash_attention", lambda: True)
    assert (attention("fp32"), attention("bf16")) == ("sdpa", "flash_attention_2")  # its kernels are for 16 bits
    key = "model.override_config.attn_implementation"
    precision = "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: bf16}"
    lines = [precision, f"+marl.policies.asker.{key}=eager"]
    config = compose(QUICKSTART / "inventory.yaml", lines, hardware="gpu")
    whole = resolve(config, read_team(OmegaConf.to_container(config.marl, resolve=True)))
    settings = [str(OmegaConf.select(part.actor_rollout_ref, key)) for part in whole.policies.values()]
    assert settings == ["flash_attention_2", "eager"]
    config = compose(QUICKSTART / "inventory.yaml", [precision.replace("bf16", "fp32")], hardware="gpu")
    assert OmegaConf.select(config, f"actor_rollout_ref.{key}") == "sdpa"
