"""Checks of a machine: what is installed (`marl-verl doctor`), and real runs of the stack (`marl-verl selftest`)."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    doctor, selftest = "marl_verl_diagnose.doctor.command", "marl_verl_diagnose.selftest.command"
    registry.command("doctor", doctor, "check this machine, and suggest a fix for each problem")
    registry.command("selftest", selftest, "run the whole stack on this machine, and write a report")
