"""`marl-verl new-plugin NAME [--output FOLDER]`: write the package in `scaffold` under another name."""

import argparse
import importlib.util
import keyword
import re
import shlex
from pathlib import Path

from marl_verl import plugins
from marl_verl.errors import MarlError
from marl_verl.plugins.registry import KINDS
from marl_verl.run.terminal import show
from marl_verl.version import __version__

SCAFFOLD = Path(__file__).parent / "scaffold"
NAME, MODULE, VERSIONS = "my-method", "my_method", ">=0.1,<0.2"  # of the scaffold, replaced in the copy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write the package of a new plugin: an example of a team and of a method, tests and a recipe."
    parser.add_argument("name", metavar="NAME", help="name of the distribution, such as my-method")
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, help="folder to write (default: NAME in the working directory)"
    )


def run(options: argparse.Namespace) -> int:
    name = distribution(options.name)
    folder = options.output if options.output is not None else Path(name)
    write(name, folder)
    show(
        f"wrote {folder}: plugin '{name}', module {module(name)} with a team and a method\n"
        "next:\n"
        f"  cd {shlex.quote(str(folder))}\n"
        '  pip install -e ".[test]"                   # marl-verl finds the plugin by its entry point\n'
        "  python -m pytest                           # all tests pass\n"
        "  marl-verl train recipes/train.yaml         # two tiny models, on a CPU\n"
        f"then edit {module(name)}/, and delete what you do not need; see docs/plugins.md of marl-verl"
    )
    return 0


def distribution(text: str) -> str:
    """Normalise a distribution's name. MarlError where it, or the module name derived from it, is invalid or taken."""
    name = re.sub(r"[-_.]+", "-", text).lower()
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name):
        raise MarlError(f"'{text}' cannot be the name of a plugin: use a letter, then letters, digits and -")
    known, taken = plugins.discover(strict=False), name in ("tests", "recipes") or keyword.iskeyword(name)
    if taken or any(known.find(kind, name) for kind in KINDS) or importlib.util.find_spec(module(name)) is not None:
        problem = f"'{text}' cannot be the name of a plugin: a part, a module, a folder or a keyword has it"
        raise MarlError(f"{problem}. Try 'my-{name}'")
    return name


def module(name: str) -> str:
    return name.replace("-", "_")


def write(name: str, folder: Path) -> None:
    """Write the package for this minor version of marl-verl. MarlError if the folder exists."""
    major, minor = (int(part) for part in __version__.split(".")[:2])
    versions = f">={major}.{minor},<{major}.{minor + 1}"
    if folder.exists():
        raise MarlError(f"'{folder}' exists: choose another --output FOLDER")
    folder.mkdir(parents=True)
    for path in sorted(SCAFFOLD.rglob("*")):
        place = str(path.relative_to(SCAFFOLD))
        if path.is_dir() or place.startswith(".") or "__pycache__" in place:
            continue
        # a real .gitignore would take effect inside the scaffold
        file = folder / place.replace(MODULE, module(name)).replace("gitignore", ".gitignore")
        text = path.read_text(encoding="utf-8").replace(f"marl-verl{VERSIONS}", f"marl-verl{versions}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace(NAME, name).replace(MODULE, module(name)), encoding="utf-8")
