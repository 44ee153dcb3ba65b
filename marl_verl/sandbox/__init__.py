"""Run programs that models write: limits on all they use, isolation from the machine, and scores they cannot forge.

docs/sandbox.md says what each tier promises.
"""

from marl_verl.sandbox.cases import Cases, check, read_cases
from marl_verl.sandbox.pool import Limits, SandboxError
from marl_verl.sandbox.runs import AUTO, TIERS, Outcome, Sandbox, current, unavailable, use, used, weak
from marl_verl.sandbox.tool import run_python

__all__ = ["AUTO", "TIERS", "Cases", "Limits", "Outcome", "Sandbox", "SandboxError"]
__all__ += ["check", "current", "read_cases", "run_python", "unavailable", "use", "used", "weak"]
