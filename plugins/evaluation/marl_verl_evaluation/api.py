"""`marl_verl.evaluate`: what the command `eval` does, for scripts and notebooks; docs/python.md.

Modules are imported in the function, so that `from marl_verl import evaluate` stays fast.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_verl.api import Backend, Overrides, StrPath, alone, override_lines, plan_of
from marl_verl.threads import outside_loop

if TYPE_CHECKING:
    from marl_verl.run.progress import Progress
    from marl_verl_evaluation.launch import Evaluation


def evaluate(
    run: StrPath,
    overrides: Overrides = (),
    *,
    step: int | None = None,
    tasks: int | None = None,
    episodes: int | None = None,
    k: Sequence[int] | None = None,
    swap: Sequence[tuple[str, str]] = (),
    untrained: Sequence[str] = (),
    seed: int | None = None,
    greedy_only: bool = False,
    at_once: int = 256,
    cross_play: bool | str = False,
    steps: Sequence[int] | None = None,
    edit: tuple[str, str, str] | None = None,
    plugins: Sequence[StrPath] = (),
    backend: Backend | None = None,
    progress: "Progress" = True,
) -> "Evaluation":
    """Evaluate a team on held-out tasks, as `marl-verl eval` does.

    Args:
        run: a run directory, or what `train` or `load_run` returned; or a YAML file with a recipe, whose team is
            evaluated without training.
        overrides: config that changes how the team acts, in the form of `train`; of a recipe, any.
        step: of the checkpoint; default: the latest; 0: before training.
        tasks: number of held-out tasks, the first ones; default: all.
        episodes: number of sampled episodes per task; default: 8.
        k: values of k for pass@k, each at most `episodes`.
        swap: pairs of agents that exchange their policies, one pair after the other.
        untrained: agents that act with their policy's untrained model.
        seed: sampling seed; default: that of the run.
        greedy_only: skip the sampled episodes.
        at_once: maximum number of episodes in flight; default: 256. With 1, times are those without load.
        cross_play: let steps of a team with two sides play each other, instead of evaluating one; with the name of an
            agent, let this agent act with its policy of each step, beside the team of the last one.
        steps: those of the cross-play; default: 0 and every checkpoint.
        edit: (episode, act, text): continue an episode of the run from an act such as "solver:0", with the text as its
            action and with its own: greedily, or in `episodes` > 1 sampled episodes each.
        plugins: plugin files in addition to the run's copies.
        backend: as in `train`; default: that of the run.
        progress: as in `train`.

    Raises: as `train`.
    """
    from marl_verl.run.prepare import make_run_directory
    from marl_verl.run.progress import Display
    from marl_verl.run.run_dir import locked, removed_on_error
    from marl_verl_evaluation.launch import launch, plan
    from marl_verl_evaluation.request import Options

    with alone():
        display = Display.of(progress)
        if recipe := Path(run).suffix in (".yaml", ".yml") and not Path(run).is_dir():
            made = outside_loop(lambda: plan_of(run, override_lines(overrides, backend), plugins))
            run, overrides, plugins, backend = make_run_directory(made, display), (), (), None
            step = 0 if step is None else step
        who: dict[str, Any] = {"step": step, "swap": tuple(swap), "untrained": tuple(untrained), "edit": edit}
        who |= {"cross_play": cross_play, "steps": steps, "seed": seed, "greedy_only": greedy_only}
        options = Options(**who, tasks=tasks, episodes=episodes, k=k, at_once=at_once)
        files = [Path(file) for file in plugins]
        with removed_on_error(Path(run) if recipe else None):
            checked = outside_loop(lambda: plan(Path(run), override_lines(overrides, backend), options, files))
        with locked(checked.run) as lock:
            return launch(checked, display, lock)
