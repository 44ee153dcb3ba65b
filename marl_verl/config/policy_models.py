"""The model of each policy: a local folder, a name on the hub, a model to make, or an external endpoint."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.config.stored import is_local
from marl_verl.episode import Act
from marl_verl.errors import MarlError, check, missing, user_error
from marl_verl.extensions import extension, names, required
from marl_verl.models.chat import Chat, with_template
from marl_verl.models.count import on_hub, shapes
from marl_verl.models.parsers import Parsers, restricts
from marl_verl.models.sources import ModelToMake, Pretrained, Source, pretrained
from marl_verl.tasks.base import SCORED
from marl_verl.team import Named, PolicyConfig, TeamConfig, acting

DEFAULT_MODEL = "~/models/deepseek-llm-7b-chat"  # verl's default, which counts as not set
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def made_models(config: DictConfig, team: TeamConfig, marl: dict[str, Any]) -> dict[str, ModelToMake]:
    """Policy -> its model to make. MarlError where another policy has no existing model or valid endpoint."""
    made: dict[str, ModelToMake] = {}
    for name, policy in team.policies.items():
        if policy.endpoint is not None:
            required("client", "endpoint", f"'marl.policies.{name}.endpoint'", "endpoints").check(name, policy.endpoint)
        elif policy.script is not None:
            plugins.load().get("scripts", policy.script)
        elif policy.made is None:
            _check_model(name, model_of(policy, config))
        elif policy.past is not None:
            made[name] = made[policy.past.of]
        else:
            path = model_of(policy, None).get("path")
            agents = list(dict.fromkeys(agent for other in team.alike(name) for agent in team.agents_of(other)))
            made[name] = made_model(f"marl.policies.{name}", policy.made, path, team, agents, marl["run"]["seed"])
    return made


@check
def check_scripts(config: DictConfig, team: TeamConfig, training: bool) -> Iterator[str]:
    """MarlError for a script that is unknown or whose `check(training, local)` raises it, and if nothing is trained."""
    if training and all(policy.frozen for policy in team.policies.values()):
        frozen = f"all policies are frozen ({', '.join(map(repr, team.policies))}): nothing would be trained"
        yield f"{frozen}. Set frozen=false for one, or measure the team: marl-verl eval RECIPE."
    for name, policy in team.policies.items():
        if policy.script is not None:
            with user_error(f"policy '{name}'"):
                script = plugins.load().get("scripts", policy.script)
                if hasattr(script, "check"):
                    script.check(training, is_local(config))


def pretrained_models(config: DictConfig, team: TeamConfig) -> dict[str, Pretrained]:
    """Name -> model that a distribution has, of policies and critic."""
    policies = [policy for policy in team.policies.values() if policy.made is None and not policy.external]
    paths = {model_of(policy, config).get("path") for policy in policies}
    paths.add(OmegaConf.select(config, "marl.critic.model.path"))
    return {path: model for path in sorted(filter(None, paths)) if (model := pretrained(path)) is not None}


def made_model(where: str, made: Named, path: Any, team: TeamConfig, agents: list[str], seed: int) -> ModelToMake:
    """The model to make of section `where`. MarlError: an invalid option, or a `path` besides."""
    if path:
        raise MarlError(f"both {where}.{made.name} and {where}.model.path are set: set one of them to null")
    task = team.task
    if task.name == SCORED:  # the task set that it wraps
        task = Named(str(task.options.get("task")), task.options.get("options", {}))
    source: Source = extension("model", made.name)
    return source.describe(made.options, f"{where}.{made.name}", task, agents, seed)


def model_of(policy: PolicyConfig, config: DictConfig | None) -> dict[str, Any]:
    """The `model` part of a policy: its own keys, over those of `actor_rollout_ref` where a config is given."""
    base: Any = {} if config is None else OmegaConf.to_container(config.actor_rollout_ref.model)
    return {**base, **(policy.override.get("model") or {})}


def _check_model(policy: str, model: dict[str, Any]) -> None:
    """MarlError for a local folder without the files that training and serving read; hub names are not checked."""
    path, whose = model.get("path"), f"model of policy '{policy}'"
    if not path or path == DEFAULT_MODEL:
        keys = [f"marl.policies.{policy}.{key}" for key in ("model.path", *names("model"))]
        raise MarlError(f"policy '{policy}' has no model: set {' or '.join(keys)}")
    if (packaged := pretrained(path)) is not None:
        path = packaged.folder()
        if not path.is_dir():
            packaged.check()  # it is converted before the run starts
            return
    folder = local_model(f"policy '{policy}'", path)
    if folder is not None:
        check_files(folder, whose, Path(str(model.get("tokenizer_path") or folder)).expanduser())
        shapes(folder)  # MarlError for damaged weights


def check_templates(
    resolved: DictConfig, team: TeamConfig, acts: Sequence[Act], made: Mapping[str, ModelToMake]
) -> None:
    """Render what each agent sends in a rehearsal. MarlError where the chat template of its policy, or the backend,
    refuses it.

    A model on the hub that is not on this machine yet is checked when the rollout worker starts.
    """
    for name, policy in team.policies.items():
        if policy.external:
            continue
        where, part = f"marl.policies.{name}", resolved.policies[name]
        model, agents = part.actor_rollout_ref.model, [agent for agent in team.agents.values() if agent.policy == name]
        asked = [act for act in acts if acting(team.agents, act).policy == name and act.parameters]
        if is_local(resolved):
            check_unrestricted(name, asked)
        if name in made and not (model.custom_chat_template or part.data.apply_chat_template_kwargs or asked):
            continue  # its own template takes all messages, and loading transformers takes seconds
        try:
            chat = chat_of(name, part, made, local_files_only=True)
        except OSError:
            continue
        parsers = Parsers(chat.tokenizer, policy.tool_parser, policy.reasoning_parser, chat.whose)
        chat.check_options(policy.apply_chat_template_kwargs or (), f"{where}.apply_chat_template_kwargs")
        for agent in agents:
            chat.check(agent, [act.observation for act in acts if act.role == agent.name])
        for act in asked:
            parameters = act.parameters or {}
            chat.check(team.agents[act.role], [act.observation], parameters.get("tools"))
            parsers.check(parameters)


@check
def check_unrestricted(policy: str, acts: Sequence[Act]) -> Iterator[str]:
    """MarlError for an act whose completion a grammar restricts."""
    if any(restricts(act.parameters or {}) for act in acts):
        problem = f"policy '{policy}': the local backend does not restrict sampling (response_format, tool_choice)"
        yield f"{problem}: use the verl backend (marl.run.backend=verl)"


def chat_of(name: str, part: DictConfig, made: Mapping[str, ModelToMake], **where: Any) -> Chat:
    """The chat of policy `name`, of its resolved section; `where` as in `Chat.load`, which may raise."""
    model, options, whose = part.actor_rollout_ref.model, part.data.apply_chat_template_kwargs, f"policy '{name}'"
    if name in made:
        return Chat(with_template(made[name].tokenizer(), model), options, f"{whose} ({made[name].label})")
    return Chat.load(model, options, whose, **where)


@check
def check_files(folder: Path, whose: str, words: Path | None = None) -> Iterator[str]:
    """MarlError unless a model's folder has config and weights, and folder `words` a tokenizer."""
    needed = [(folder, "config.json", ("config.json",)), (folder, "weights (*.safetensors)", WEIGHTS)]
    for place, kind, patterns in [*needed, (words, "tokenizer", TOKENIZERS)]:
        if place is not None and not any(path for pattern in patterns for path in place.glob(pattern)):
            yield f"{whose}: no {kind} in '{place}'"


def local_model(whose: str, path: Any) -> Path | None:
    """The folder of a local model (MarlError if missing); None for one on the hub or in a remote store."""
    folder = Path(str(path)).expanduser()
    if (on_hub(str(path)) and not folder.parent.is_dir()) or "://" in str(path):
        return None
    if not folder.is_dir():
        raise missing(f"model folder of {whose}:", folder, folder.parent.glob("*/"))
    return folder
