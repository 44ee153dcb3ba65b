"""Run programs that models write: limits on all they use, isolation from the machine, and scores they cannot forge.

docs/sandbox.md says what each tier promises.
"""

from typing import TYPE_CHECKING

from marl_verl import lazy

if TYPE_CHECKING:
    from marl_verl_sandbox.pool import Limits, Megabytes, SandboxError, Seconds
    from marl_verl_sandbox.runs import AUTO, TIERS, Outcome, Sandbox, current, program_in, run_program, run_python
    from marl_verl_sandbox.runs import unavailable as unavailable
    from marl_verl_sandbox.runs import use as use
    from marl_verl_sandbox.runs import used as used

__all__ = ["AUTO", "TIERS", "Limits", "Megabytes", "Outcome", "Sandbox", "SandboxError", "Seconds", "current"]
__all__ += ["program_in", "run_program", "run_python", "unavailable", "use", "used"]

__getattr__ = lazy(__name__)  # listing a package's commands imports the package
