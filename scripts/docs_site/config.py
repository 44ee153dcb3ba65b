"""The reference of configuration keys: meaning, default and allowed values, from the schema and its comments."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from marl_verl_leagues.opponent import Opponent
from marl_verl_tiny.model import TinyModel

from docs_site.commands import cell
from marl_verl.config import compose, schema
from marl_verl.config.verl_keys import ALLOWED, PASS, verdict, verl_configs
from marl_verl.options import in_words
from marl_verl.team import AgentConfig, Endpoint, PolicyConfig, Sampling

TRAINER = Path(compose.__file__).with_name("marl_trainer.yaml")
KEY = re.compile(r"( *)(# )?([\w]+):(?: +([^#]*?))?(?: +# ?(.*))?$")
SECTIONS = {  # section of a recipe -> the dataclass that has its keys
    "marl": schema.Marl,
    "marl.agents.NAME": AgentConfig,
    "marl.agents.NAME.sampling": Sampling,
    "marl.agents.NAME.opponent": Opponent,
    "marl.policies.NAME": PolicyConfig,
    "marl.policies.NAME.endpoint": Endpoint,
    "marl.policies.NAME.tiny": TinyModel,
    "marl.pools.NAME": schema.Size,
    "marl.critic": schema.CriticKeys,
}
SET_BY_RUN = {
    "Run": schema.SET_BY_RUN,
    "Marl": ("agents", "policies", "pools", "critic"),
    "AgentConfig": ("name",),
    "PolicyConfig": ("name", "override", "made", "past"),
    "TinyModel": ("task", "agents", "task_options"),
}
"""Fields that no recipe sets under these names, or whose sections have classes of their own."""

VERL = {  # file of verl's config -> the sections whose keys it explains
    "ppo_trainer": ("",),
    "actor/actor": ("actor_rollout_ref.actor",),
    "actor/dp_actor": ("actor_rollout_ref.actor",),
    "ref/ref": ("actor_rollout_ref.ref",),
    "ref/dp_ref": ("actor_rollout_ref.ref",),
    "rollout/rollout": ("actor_rollout_ref.rollout",),
    "model/hf_model": ("actor_rollout_ref.model", "critic.model"),
    "optim/fsdp": ("actor_rollout_ref.actor.optim", "critic.optim"),
    "engine/fsdp": ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp"),
    "critic/critic": ("critic",),
    "critic/dp_critic": ("critic",),
    "data/legacy_data": ("data",),
    "algorithm/rollout_correction": ("algorithm.rollout_correction",),
    "reward/reward": ("reward",),
    "transfer_queue/transfer_queue": ("transfer_queue",),
}
SKIPPED = re.compile(r"(.*\.)?(_target_|megatron|veomni|torchtitan)(\..*)?|(distillation|skip|legacy_reward)(\..*)?")


@dataclasses.dataclass
class Key:
    """A configuration key: its path, meaning, default as YAML, and allowed values in words."""

    path: str
    meaning: str
    default: str
    allowed: str


def explained(text: str, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, meaning, default) of each key of a YAML file whose comments are above the keys or behind them."""
    path: list[tuple[int, str]] = []
    above: list[str] = []
    pending: tuple[str, list[str], str] | None = None
    behind = False  # the last key has a comment behind it
    for line in text.splitlines():
        match = KEY.match(line)
        if match and match[2] and (match[5] is None):  # a comment that looks like a key
            match = None
        stripped = line.strip()
        if behind and pending and stripped.startswith("#") and line.index("#") > path[-1][0] + 2:
            pending[1].append(stripped.lstrip("# "))
        elif match:
            if pending:
                yield pending[0], " ".join(pending[1]), pending[2]
            indent = len(match[1])
            path = [*((depth, name) for depth, name in path if depth < indent), (indent, match[3])]
            name = ".".join(filter(None, [prefix, *(name for _, name in path)]))
            default = "" if match[2] else (match[4] or "").strip()
            pending = name, [*above, match[5]] if match[5] else above, default
            behind, above = bool(match[5]), []
        elif stripped.startswith("#"):
            above.append(stripped.lstrip("# "))
        elif not stripped:
            above = []
    if pending:
        yield pending[0], " ".join(pending[1]), pending[2]


def of_schema() -> list[Key]:
    """The keys of the `marl` section, in its order, and those of its agents, policies and pools."""
    keys = [key for section, kind in SECTIONS.items() for key in of_class(section, kind)]
    order = [field.name for field in dataclasses.fields(schema.Marl)]
    return sorted(keys, key=lambda key: order.index(key.path.split(".")[1]))


def of_class(section: str, kind: type) -> Iterator[Key]:
    """The keys of a section that a dataclass has, and of its sections; meanings are the comments behind the fields."""
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        if dataclasses.is_dataclass(base):
            comments |= _comments(base)
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in SET_BY_RUN.get(kind.__name__, ()):
            continue
        path, hint = f"{section}.{field.name}", hints[field.name]
        parts = [part for part in (hint, *get_args(hint)) if isinstance(part, type)]
        nested = next((part for part in parts if dataclasses.is_dataclass(part)), None)
        known = field.default is not dataclasses.MISSING and field.default != schema.MISSING
        if nested is None or field.default is None:
            yield Key(path, comments.get(field.name, ""), _yaml(field.default) if known else "", in_words(hint))
        if nested is not None and path not in SECTIONS:
            yield from of_class(path, nested)


def _comments(kind: type) -> dict[str, str]:
    """Field -> its meaning in the docstring's "Attributes:", or the comment behind it."""
    attributes = inspect.getdoc(kind).partition("Attributes:\n")[2]  # type: ignore[union-attr]
    described = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    source = textwrap.dedent(inspect.getsource(kind))
    lines, found = source.splitlines(), {name: " ".join(text.split()) for name, text in described}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno:
            _, _, comment = lines[node.end_lineno - 1].partition("  # ")
            found[node.target.id] = comment or found.get(node.target.id, "")
    return found


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=1000)).removesuffix("\n...\n").strip()


def of_verl() -> list[Key]:
    """The keys of verl that have an effect on a team. Meanings are verl's own comments."""
    folder = verl_configs()
    meanings: dict[str, str] = {}
    for name, sections in VERL.items():
        text = (folder / f"{name}.yaml").read_text(encoding="utf-8")
        for section in sections:
            meanings |= {path: meaning for path, meaning, _ in explained(text, section) if meaning}
    defaults = dict(_leaves(yaml.safe_load((folder / compose.COMPOSED_BY_VERL).read_text(encoding="utf-8"))))
    trainer = yaml.safe_load(TRAINER.read_text(encoding="utf-8"))
    defaults |= {path: value for path, value in _leaves(trainer) if path.partition(".")[0] in VERL_SECTIONS}
    return [
        Key(path, meanings.get(path, ""), _yaml(value), in_words(ALLOWED[path]) if path in ALLOWED else "")
        for path, value in sorted(defaults.items())
        if path.partition(".")[0] in VERL_SECTIONS and not SKIPPED.fullmatch(path) and verdict(path) == PASS
    ]


VERL_SECTIONS = (
    *("actor_rollout_ref", "algorithm", "critic", "data", "reward", "trainer", "ray_kwargs", "transfer_queue"),
)


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _tables(keys: list[Key], depth: int) -> Iterator[str]:
    """A heading and a table per section: the first `depth` names of the keys."""
    sections: dict[str, list[Key]] = {}
    for key in keys:
        names = key.path.split(".")
        sections.setdefault(".".join(names[: min(depth, len(names) - 1)]), []).append(key)
    for section, mine in sections.items():
        yield f"\n## {section}\n\n| key | meaning | default | allowed |\n|---|---|---|---|"
        for key in mine:
            name, default = key.path.removeprefix(f"{section}."), cell(f"`{key.default}`" if key.default else "")
            yield f"| `{name}` | {cell(key.meaning)} | {default} | {cell(key.allowed)} |"


def marl_page() -> str:
    title = """# Configuration keys

The keys of section `marl` of a recipe, generated from the schema. [The keys of verl](config-verl.md) can be set in the
same recipe, those of `actor_rollout_ref` also in a policy's section. `marl-verl train RECIPE --dry-run` checks every
key and value, and suggests the nearest valid one.
"""
    return "\n".join([title, *_tables(of_schema(), 2)]) + "\n"


def verl_page() -> str:
    title = """# Keys of verl

The keys of verl's configuration that have an effect on a team, generated from the installed verl: meanings are verl's
comments; a default is that of a marl-verl recipe. [From a verl script](from-verl.md#keys) lists the keys that have no
effect on a team, and what to use instead. [The keys of section `marl`](config.md) are those of marl-verl itself.
"""
    keys = of_verl()
    deep = [key for key in keys if key.path.startswith("actor_rollout_ref.")]
    return "\n".join([title, *_tables(deep, 2), *_tables([key for key in keys if key not in deep], 1)]) + "\n"


PAGES = {"config.md": marl_page, "config-verl.md": verl_page}
