"""Check the file of a recipe before Hydra reads it, and find the config files that recipes extend."""

import importlib.util
from pathlib import Path

import yaml

from marl_verl.errors import MarlError, missing, shown, user_error

HERE = Path(__file__).parent


def check_recipe(recipe: Path) -> None:
    """MarlError for a file that is no recipe."""
    with user_error(f"recipe {shown(str(recipe))} cannot be read", OSError, yaml.YAMLError, ValueError):
        if not recipe.is_file():
            raise missing("recipe file", recipe, recipe.parent.glob("*.yaml"))
        content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    defaults = content.get("defaults") if isinstance(content, dict) else None
    names = defaults if isinstance(defaults, list) else []
    if "marl_trainer" not in names or "_self_" not in names[names.index("marl_trainer") :]:
        raise MarlError(f"recipe '{recipe}' must begin with 'defaults: [marl_trainer, _self_]', in this order")


def verl_configs() -> Path:
    """The folder of verl's config, found without importing verl (seconds)."""
    verl = importlib.util.find_spec("verl")
    if verl is None or verl.origin is None:
        raise MarlError("verl is not installed: pip install 'marl-verl[cpu]' or 'marl-verl[vllm]'")
    return Path(verl.origin).parent / "trainer" / "config"


def search_path() -> list[Path]:
    """The folders with the configs that recipes extend."""
    return [HERE, verl_configs()]
