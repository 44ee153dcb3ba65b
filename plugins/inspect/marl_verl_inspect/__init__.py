"""Look at what a run has stored: explain advantages, replay episodes; and export its policies."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.command("explain", "marl_verl_inspect.explain", "show how each advantage was computed")
    registry.command("replay", "marl_verl_inspect.replay", "replay a stored episode without a model, and show it")
    about = "write a trained policy as a folder that transformers and vLLM load"
    registry.command("export", "marl_verl_inspect.export", about)
