"""The reference of the Python API: a page per public module, which mkdocstrings fills from the docstrings."""

import functools
import importlib
from pathlib import Path

CORE = (
    *(f"algo.{name}" for name in ("advantage", "algorithms", "credit", "rewards", "sampling")),
    *("episode", "errors", "options", "plugins", "tasks"),
)
MODULES = {**{name: f"marl_verl.{name}" for name in CORE}, "agents": "marl_verl_agents"}
MODULES |= {name: f"marl_verl_{name}" for name in ("agents.gateway", "baselines", "datasets", "sandbox")}
MODULES |= {name: f"marl_verl_{name}" for name in ("testing", "testing.real", "testing.rows", "testing.workflows")}
"""Page -> public module, besides marl_verl itself."""


def _module(name: str) -> str:
    module = importlib.import_module(name)
    files = (
        {path.stem for path in Path(str(module.__file__)).parent.glob("*.py")} if hasattr(module, "__path__") else set()
    )
    names = "\n".join(f"        - {each}" for each in module.__all__ if each not in files)
    page = f"# {name}\n\n::: {name}\n    options:\n      members:\n{names}\n"
    for each in sorted(files.intersection(module.__all__)):  # a function that has the name of its file
        page += f"\n::: {name}.{each}.{each}\n    options: {{show_root_heading: true}}\n"
    return page


def _top() -> str:
    """The names that `import marl_verl` has, each with a link to its module's page."""
    import marl_verl

    link = "| [`{name}`][marl_verl.{module}.{name}] | `marl_verl.{module}` |"
    lazy = marl_verl.lazy_names("marl_verl")
    modules = {name: lazy[name].partition(".")[2] for name in marl_verl.__all__ if name in lazy}
    added = {name: getattr(marl_verl, name).__module__ for name in marl_verl.ADDED}
    rows = [f"| [`{name}`][{module}.{name}] | `{module}` |" for name, module in added.items()]
    rows += [link.format(name=name, module=module) for name, module in modules.items()]
    members = "\n".join(f"        - {name}" for name, module in sorted(modules.items()) if module == "api")
    lines = ["# Python API", "", "The names of `import marl_verl`. Scripts use `train`, `evaluate`, `explain` and"]
    lines += ["`load_run` ([examples](../python.md)); plugins use the others ([examples](../plugins.md)).", ""]
    lines += ["| name | module |", "|---|---|", *sorted(rows, key=str.casefold), ""]
    listed = " · ".join(f"[`{module}`]({page}.md)" for page, module in MODULES.items())
    lines += [f"Public modules: {listed}.", "", "::: marl_verl.api", "    options:", "      members:", members, ""]
    lines += [f"::: {module}.{name}\n    options: {{show_root_heading: true}}\n" for name, module in added.items()]
    return "\n".join(lines)


PAGES = {"api/index.md": _top} | {
    f"api/{page}.md": functools.partial(_module, module) for page, module in MODULES.items()
}
