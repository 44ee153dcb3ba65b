"""What this distribution registers. Everything is lazy: listing plugins imports nothing but this file and `watch`."""

from __future__ import annotations

from marl_verl import hookimpl
from marl_verl.hookspecs import Register

from my_method.watch import marl_episode_finished as marl_episode_finished
from my_method.watch import marl_step_finished as marl_step_finished


@hookimpl
def marl_register_tasks(register: Register) -> None:
    register("my-method-numbers", "my_method.numbers:Numbers")


@hookimpl
def marl_register_workflows(register: Register) -> None:
    register("my-method-call-out", "my_method.workflow:CallOut")


@hookimpl
def marl_register_rewards(register: Register) -> None:
    register("my-method-digits-right", "my_method.reward:digits_right")


@hookimpl
def marl_register_samplers(register: Register) -> None:
    register("my-method-saving", "my_method.sampler:Saving")


@hookimpl
def marl_register_credits(register: Register) -> None:
    register("my-method-step-forward", "my_method.credit:StepForward")


@hookimpl
def marl_register_mixes(register: Register) -> None:
    register("my-method-mix", "my_method.mix:TeamAndTurn")


@hookimpl
def marl_register_returns(register: Register) -> None:
    register("my-method-sooner", "my_method.returns:Sooner")


@hookimpl
def marl_register_groups(register: Register) -> None:
    register("my-method-same-act", "my_method.group:SAME_ACT")


@hookimpl
def marl_register_baselines(register: Register) -> None:
    register("my-method-median", "my_method.baseline:Median")


@hookimpl
def marl_register_scales(register: Register) -> None:
    register("my-method-distance", "my_method.scale:Distance")


@hookimpl
def marl_register_advantages(register: Register) -> None:
    register("my-method-advantage", "my_method.advantage:ADVANTAGE")


@hookimpl
def marl_register_losses(register: Register) -> None:
    register("my-method-clip-higher", "my_method.loss:CLIP_HIGHER")


@hookimpl
def marl_register_metrics(register: Register) -> None:
    register("my-method-sessions", "my_method.metric:Sessions")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("my-method", "my_method.algorithm:ALGORITHM")
