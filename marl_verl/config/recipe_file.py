"""Check the file of a recipe before Hydra reads it, which would take minutes or raise errors of its own."""

import functools
import importlib.util
from pathlib import Path
from typing import Any

import yaml

from marl_verl.errors import MarlError, missing, shown

HERE = Path(__file__).parent
MOST_BYTES, MOST_VALUES, MOST_LEVELS = 1 << 20, 100_000, 50
"""Of a recipe: OmegaConf copies every alias, and takes minutes for a large file."""


def check_recipe(recipe: Path) -> None:
    """MarlError for a file that is no recipe, or that would replace or be replaced by a config that it extends."""
    try:
        if not recipe.is_file():
            raise missing("recipe file", recipe, recipe.parent.glob("*.yaml"))
        if recipe.suffix != ".yaml":
            raise MarlError(f"recipe '{recipe}' must be a .yaml file")
        if (size := recipe.stat().st_size) > MOST_BYTES:
            raise MarlError(f"recipe '{recipe}' has {size:,} bytes: more than {MOST_BYTES:,} are no recipe")
        content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    except OSError as error:
        raise MarlError(f"recipe {shown(str(recipe))} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise MarlError(f"recipe '{recipe}' is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:  # a number of thousands of digits, a date that does not exist
        raise MarlError(f"recipe '{recipe}' is not YAML: {' '.join(str(error).split())}") from error
    check_size(content, f"recipe '{recipe}'")
    defaults = content.get("defaults") if isinstance(content, dict) else None
    if not isinstance(defaults, list) or "marl_trainer" not in defaults:
        raise MarlError(f"recipe '{recipe}' must begin with 'defaults: [marl_trainer, _self_]'")
    if "_self_" not in defaults[defaults.index("marl_trainer") :]:
        what = "in 'defaults', '_self_' must come after 'marl_trainer', which replaces what comes before it"
        raise MarlError(f"recipe '{recipe}': {what}. Write 'defaults: [marl_trainer, _self_]'.")
    if any((folder / recipe.name).exists() for folder in search_path()):
        raise MarlError(f"recipe '{recipe}' has the name of a config file that it extends: rename the recipe")
    for name in _config_files():
        if (recipe.parent / name).exists():
            what = f"'{recipe.parent / name}' would replace the config file of that name, which recipes extend"
            raise MarlError(f"{what}: rename it, or move recipe '{recipe.name}' to another folder")


def check_size(content: Any, source: str, most: int = MOST_VALUES) -> None:
    """MarlError for YAML that is nested too deeply, or that becomes too large or endless by its aliases."""
    counts: dict[int, int] = {}

    def count(node: Any, depth: int) -> int:
        """The number of values below a node, each alias counted as often as it is used."""
        if not isinstance(node, dict | list):
            return 1
        if depth > MOST_LEVELS:
            raise MarlError(f"{source} is nested too deeply: more than {MOST_LEVELS} levels")
        if id(node) not in counts:
            values = node.values() if isinstance(node, dict) else node
            counts[id(node)] = 1 + sum(count(each, depth + 1) for each in values)
        return counts[id(node)]

    if (total := count(content, 0)) > most:
        raise MarlError(f"{source} has {total:.0e} values, because of its aliases: at most {most:,}")


@functools.cache
def _config_files() -> tuple[Path, ...]:
    """The config files that recipes extend, relative to their folder: Hydra looks beside the recipe first."""
    return tuple(file.relative_to(folder) for folder in search_path() for file in sorted(folder.rglob("*.yaml")))


def verl_configs() -> Path:
    """The folder of verl's config, found without importing verl (seconds)."""
    verl = importlib.util.find_spec("verl")
    if verl is None or verl.origin is None:
        raise MarlError("verl is not installed: pip install 'marl-verl[cpu]' or 'marl-verl[vllm]'")
    return Path(verl.origin).parent / "trainer" / "config"


def search_path() -> list[Path]:
    """The folders with the configs that recipes extend."""
    return [HERE, verl_configs()]
