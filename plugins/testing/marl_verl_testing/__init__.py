"""Test utilities for plugin authors: teams without models, and checks of plugin parts."""

from typing import TYPE_CHECKING

from marl_verl import lazy

if TYPE_CHECKING:
    from marl_verl_testing.algorithm import check_algorithm, row_of
    from marl_verl_testing.credit import check_credit
    from marl_verl_testing.determinism import check_workflow
    from marl_verl_testing.loss import check_loss
    from marl_verl_testing.sampler import check_sampler
    from marl_verl_testing.scripted import ScriptedContext, ScriptedPolicy, scripted_action, shown
    from marl_verl_testing.task import check_task

__all__ = ["ScriptedPolicy", "ScriptedContext", "row_of", "scripted_action", "shown"]
__all__ += ["check_algorithm", "check_credit", "check_loss", "check_sampler", "check_task", "check_workflow"]

__getattr__ = lazy(__name__)  # listing a package's commands imports the package
