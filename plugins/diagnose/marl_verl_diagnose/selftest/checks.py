"""The checks in their order. Later ones use the models and runs of earlier ones, and make what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from marl_verl.errors import unknown
from marl_verl_diagnose.selftest import Check

HERE = "marl_verl_diagnose.selftest"
CHECKS = (
    Check("versions", "no error of `marl-verl doctor`; torch, vLLM and verl load", f"{HERE}.versions:check", 300),
    Check(
        "log-probs",
        "verl's engine gives the log-probs of transformers in float32, however rows are batched: mean difference below "
        "2e-2 in bf16, largest below 1e-4 in float32; the gradient is finite; "
        "on a GPU, the peak memory is at most 1.25 times "
        "the estimate",
        f"{HERE}.log_probs:check",
        300,
    ),
    Check(
        "colocated",
        "two policies on one pool train; sampled and recomputed log-probs differ by less than 0.02; on a GPU, the "
        "memory in use while the servers sleep stays within 256 MiB",
        f"{HERE}.runs:colocated",
        600,
    ),
    Check(
        "resume", "the run continues from its checkpoint, and log-probs agree as before", f"{HERE}.runs:resumed", 600
    ),
    Check("lora", "an adapter trains beside a frozen policy, and reaches the servers", f"{HERE}.runs:lora", 600),
    Check("mappo", "a critic trains beside the adapter", f"{HERE}.runs:mappo", 600),
    Check("async", "a policy trains while sampling continues", f"{HERE}.runs:asynchronous", 600),
    Check(
        "export-eval",
        "transformers loads an exported policy, whose weights have changed; `marl-verl eval` repeats the run's own "
        "validation: equal in float32, within 2 tasks in bf16",
        f"{HERE}.runs:exported",
        600,
    ),
    Check("throughput", "at least 0.8 of the tokens a second of stock verl", f"{HERE}.throughput:check", 900),
)


def choose(names: Sequence[str]) -> list[Check]:
    """The named checks in their order, all for no names. MarlError for an unknown name."""
    known = [check.name for check in CHECKS]
    for name in names:
        if name not in known:
            raise unknown("check", name, known)
    return [check for check in CHECKS if not names or check.name in names]
