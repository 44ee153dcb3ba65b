"""Mathematics for teams of agents: solver and verifier, reasoner and tool user."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("math", "marl_verl_math.tasks:MathTasks")
    registry.workflow("math-solver-verifier", "marl_verl_math.solver_verifier:SolverVerifier")
    registry.workflow("math-tool-user-reasoner", "marl_verl_math.tool_user:ToolUserReasoner")
    registry.workflow("math-one-reasoner", "marl_verl_math.tool_user:OneReasoner")
    registry.reward("math-own-answer", "marl_verl_math.tool_user:own_answer")
    registry.reward("math-solution", "marl_verl_math.solver_verifier:solution_right")
    registry.reward("math-verdict", "marl_verl_math.solver_verifier:verdict_right")
