"""Check the file of a recipe before Hydra reads it, and find the config files that recipes extend."""

import importlib.util
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from marl_verl.errors import MarlError, missing, shown

HERE = Path(__file__).parent
FAST: Any = type("Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})  # Python's is quadratic in the depth
FAST.yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers  # 1e-3 is a number, as in OmegaConf
MOST_BYTES, MOST_ALIASES = 1 << 20, 20
"""Of a recipe: OmegaConf takes minutes for a larger file, and copies every alias (20 make at most 1,600 copies)."""


def check_recipe(recipe: Path) -> None:
    """MarlError for a file that is no recipe, or that would replace or be replaced by a config that it extends."""
    try:
        if not recipe.is_file():
            raise missing("recipe file", recipe, recipe.parent.glob("*.yaml"))
        if recipe.suffix != ".yaml" or recipe.stat().st_size > MOST_BYTES:
            raise MarlError(f"recipe '{recipe}' must be a .yaml file of at most {MOST_BYTES:,} bytes")
        text = recipe.read_text(encoding="utf-8")
        if count_aliases(text) > MOST_ALIASES:
            raise MarlError(f"recipe '{recipe}' has more than {MOST_ALIASES} aliases (*name): write the values out")
        content = yaml.safe_load(text)
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise MarlError(f"recipe {shown(str(recipe))} cannot be read: {' '.join(str(error).split())}") from error
    defaults = content.get("defaults") if isinstance(content, dict) else None
    names = defaults if isinstance(defaults, list) else []
    if "marl_trainer" not in names or "_self_" not in names[names.index("marl_trainer") :]:
        raise MarlError(f"recipe '{recipe}' must begin with 'defaults: [marl_trainer, _self_]', in this order")
    # Hydra looks beside the recipe first
    names = [file.relative_to(folder) for folder in search_path() for file in sorted(folder.rglob("*.yaml"))]
    for name in (Path("marl_defaults.yaml"), *names):
        if (recipe.parent / name).exists():
            problem = f"'{recipe.parent / name}' would replace the config file of that name, which recipes extend"
            raise MarlError(f"{problem}: rename it, or move recipe '{recipe.name}' to another folder")


def count_aliases(text: str) -> int:
    """The number of aliases in YAML. OmegaConf copies what each stands for, which may take minutes."""
    return sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=FAST))


def verl_configs() -> Path:
    """The folder of verl's config, found without importing verl (seconds)."""
    verl = importlib.util.find_spec("verl")
    if verl is None or verl.origin is None:
        raise MarlError("verl is not installed: pip install 'marl-verl[cpu]' or 'marl-verl[vllm]'")
    return Path(verl.origin).parent / "trainer" / "config"


def search_path() -> list[Path]:
    """The folders with the configs that recipes extend."""
    return [HERE, verl_configs()]
