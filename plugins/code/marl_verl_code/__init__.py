"""Programs written and tested by teams of agents."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("code-with-tests", "marl_verl_code.code_tests:CodeWithTests")
    registry.task("joint-code", "marl_verl_code.joint_code:JointCode")
    registry.task("small-programs", "marl_verl_code.small_programs:SmallPrograms")
    registry.workflow("small-programs", "marl_verl_code.small_programs:TinyCoderTester")
    registry.workflow("refine-code", "marl_verl_code.refine_code:RefineCode")
    registry.workflow("two-coders", "marl_verl_code.joint_code:TwoCoders")
    registry.workflow("coder-tester", "marl_verl_code.coder_tester:CoderTester")
    registry.reward("code-coder", "marl_verl_code.coder_tester:coder_reward")
    registry.reward("code-tester", "marl_verl_code.coder_tester:tester_reward")
