"""Recipes and overrides: the composed config, and the message for each user error."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.config import compose as composing
from marl_verl.config.compose import attention, choose_backend, compose, with_overrides
from marl_verl.config.parts import algorithm_of, samplers_of
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import created, marl_section, read_yaml, team_of
from marl_verl.config.verl_keys import verl_configs
from marl_verl.team import Named
from tests.batches import resolved

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
            *("marl.policies.one.frozen=true", "marl.policies.one.actor.optim.lr=1e-4"),
            *("marl.agents.asker.sampling.temperature=0.5", "marl.algorithm.name=at-grpo"),
            "marl.algorithm.options.rewards.alpha=0.5",
            *("actor_rollout_ref.rollout.engine_kwargs.vllm.max_loras=2", "+marl.agents.extra={policy: one}"),
            "trainer.total_training_steps=7",
        ],
        hardware="cpu",
    )
    assert config.marl.policies.one == {"tiny": {}, "frozen": True, "actor": {"optim": {"lr": 1e-4}}}
    assert config.marl.agents.asker == {"policy": "two", "sampling": {"temperature": 0.5}}
    assert config.marl.algorithm.options == {"rewards": {"alpha": 0.5}}
    assert config.marl.agents.extra.policy == "one"
    whole = resolve(config, team_of(config))
    assert whole.policies.one.actor_rollout_ref.actor.optim.lr == 1e-4
    assert whole.policies.two.actor_rollout_ref.actor.optim.lr == 1e-3
    assert whole.policies.one.actor_rollout_ref.rollout.name != whole.policies.two.actor_rollout_ref.rollout.name
    assert whole.policies.two.actor_rollout_ref.actor.optim.total_training_steps == 7
    in_turn = resolved(config, "marl.schedule.turns=[[one],[two]]", "marl.schedule.turn_steps=2").policies
    assert in_turn.two.actor_rollout_ref.actor.optim.total_training_steps == 3  # steps 3, 4 and 7
    assert whole.trainer.device == "cpu"

    config.actor_rollout_ref.actor.use_torch_compile = False  # a run of an older version has it
    # a continued run starts from the composed config: an override of the base must not become every policy's
    again = with_overrides(
        config, ["actor_rollout_ref.actor.optim.lr=1e-2", "marl.policies.two.actor.optim.clip_grad=0.5"]
    )
    whole = resolve(again, team_of(again))
    assert whole.policies.one.actor_rollout_ref.actor.optim.lr == 1e-4
    other = whole.policies.two.actor_rollout_ref.actor
    assert (other.optim.lr, other.optim.clip_grad) == (1e-3, 0.5)
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6  # a copy was changed


@pytest.mark.parametrize(
    ("overrides", "hardware", "of_recipe", "backend"),
    [
        ([], "cpu", "local", "local"),
        ([], "gpu", "local", "verl"),
        (["marl.run.backend=local"], "gpu", "verl", "local"),
        (["marl.run.backend=verl"], "cpu", "local", "verl"),
    ],
)
def test_whose_backend_it_is(recipe: Path, overrides: list[str], hardware: str, of_recipe: str, backend: str) -> None:
    recipe.write_text(RECIPE.replace("marl:", f"marl:\n  run: {{backend: {of_recipe}}}"))
    assert choose_backend(compose(recipe, overrides, hardware=hardware), overrides) == backend


@pytest.mark.parametrize(
    ("overrides", "training"),
    [
        ([], Named("independent", {"episodes": 4})),
        (
            ["marl.algorithm.name=at-grpo", "~marl.sampler.options", "marl.sampler.options.candidates=2"],
            Named("greedy-tree", {"candidates": 2, "partial_value": "proposal"}),
        ),
    ],
)
def test_each_sampler_has_its_own_options(recipe: Path, overrides: list[str], training: Named) -> None:
    recipe.write_text(f"{RECIPE}  sampler: {{options: {{episodes: 4}}}}\n")
    config = compose(recipe, overrides, hardware="cpu")
    samplers = samplers_of(algorithm_of(team_of(config)), marl_section(config))
    named = {section: Named(name, dataclasses.asdict(sampler)) for section, (name, sampler) in samplers.items()}
    assert named == {"sampler": training, "validation": Named("independent", {"episodes": 1})}


def test_a_gpu_config_has_what_verl_needs_to_start() -> None:
    """Without these, verl's workers stop at an assertion, or ask for a package that is not installed."""
    config = compose(Path(__file__).parents[1] / "recipes" / "quickstart" / "inventory.yaml", [], hardware="gpu")
    whole = resolve(config, team_of(config))
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
    whole = resolve(config, team_of(config))
    settings = [str(OmegaConf.select(part.actor_rollout_ref, key)) for part in whole.policies.values()]
    assert settings == ["flash_attention_2", "eager"]
    config = compose(QUICKSTART / "inventory.yaml", [precision.replace("bf16", "fp32")], hardware="gpu")
    for part in resolve(config, team_of(config)).policies.values():  # a reference computes as its policy
        assert part.actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype == "fp32"
    assert OmegaConf.select(config, f"actor_rollout_ref.{key}") == "sdpa"


ODD = "{a: {1: b, c: null}, d: '???', e: [[], {}, '${.0}', 1e-3], f: '${a.c} \\${x}', g: [~], h: {}}"


@pytest.mark.parametrize("content", ["verl's", ODD, "[1, {a: 2}]"])
def test_created_is_what_omegaconf_creates(content: str, tmp_path: Path) -> None:
    file = verl_configs() / composing.COMPOSED_BY_VERL
    if content != "verl's":
        file = tmp_path / "file.yaml"
        file.write_text(content)

    def nodes(node: Any) -> list[Any]:
        kept = {name: value for name, value in vars(node).items() if name in ("_metadata", "_val")}
        below = vars(node).get("_content", ())
        children = below.values() if isinstance(below, dict) else below
        assert all(child._get_parent() is node for child in children)
        return [type(node), kept, *map(nodes, children)]

    assert nodes(created(read_yaml(file))) == nodes(OmegaConf.create(read_yaml(file)))


@pytest.mark.parametrize("content", ["{a: '${b'}", "{null: 1}", "{a: {null: 1}}", "{a: !!set {b}}"])
def test_what_omegaconf_does_not_accept_is_not_created(content: str, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(content)
    for create in (OmegaConf.create, created):
        with pytest.raises(OmegaConfBaseException):
            create(read_yaml(tmp_path / "file.yaml"))


def test_defaults_and_overrides_are_those_of_hydra() -> None:
    lines = ["++trainer.total_training_steps=7", "+ray_kwargs.ray_init.extra={a: [1, b]}", "~trainer.logger"]
    lines += [
        "++actor_rollout_ref.actor.optim={lr: 1e-3}",
        "++data.shuffle=null",
        "++trainer.test_freq='${trainer.save_freq}'",
    ]
    config = composing.read_config(verl_configs() / composing.COMPOSED_BY_VERL)
    for change in composing.parse_overrides(lines):
        composing._apply(config, change)
    with initialize_config_dir(config_dir=str(verl_configs()), version_base=None):
        assert hydra_compose("ppo_trainer", lines) == {"model_engine": "dp", **config}
