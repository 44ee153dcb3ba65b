"""Variants of recipes: named lists of overrides in the table variants.yaml beside a recipe.

shared:
  about: One policy for both agents.
  base: grpo                     # a variant above, whose overrides come first; may be left out
  overrides: [key=value, ...]    # for each recipe of the folder, or {"plan_path, math": [key=value, ...], ...}
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from marl_verl.errors import check_known

TABLE = "variants.yaml"


class Variant(NamedTuple):
    """One line on its meaning, and overrides in Hydra's grammar, those of its base first."""

    about: str
    overrides: list[str]


def variants_of(recipe: Path) -> dict[str, Variant]:
    """Name -> variant, of the variants that a recipe has."""
    table, variants = recipe.parent / TABLE, dict[str, Variant]()
    if recipe.is_dir() or not table.is_file():
        return {}
    from marl_verl.config.stored import read_yaml  # here: OmegaConf takes time, and most commands do not need it

    for name, entry in read_yaml(table).items():
        lists = entry["overrides"]
        lists = {recipe.stem: lists} if isinstance(lists, list) else lists
        lists = [lines for recipes, lines in lists.items() if recipe.stem in recipes.split(", ")]
        if lists:
            base = variants[entry["base"]].overrides if "base" in entry else []
            variants[str(name)] = Variant(entry["about"], sum(lists, base))
    return variants


def variant_overrides(recipe: Path, names: Sequence[str]) -> list[str]:
    """The overrides of several variants of a recipe, in the given order. MarlError for an unknown name."""
    variants = variants_of(recipe) if names else {}
    for name in names:
        check_known("variant", name, variants)
    return [line for name in names for line in variants[name].overrides]


def run_name(recipe: Path) -> str:
    """The name of a recipe's runs: in a folder with a table of variants, FOLDER_RECIPE."""
    return f"{recipe.resolve().parent.name}_{recipe.stem}" if (recipe.parent / TABLE).is_file() else recipe.stem
