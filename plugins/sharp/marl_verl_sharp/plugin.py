"""What this distribution registers. Everything is lazy: listing plugins imports none of it."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


@hookimpl
def marl_register_tasks(register: Register) -> None:
    register("three-ledgers", "marl_verl_sharp.ledgers:ThreeLedgers")
    register("multi-hop-paragraphs", "marl_verl_sharp.multi_hop:MultiHopParagraphs")


@hookimpl
def marl_register_workflows(register: Register) -> None:
    register("three-ledgers", "marl_verl_sharp.ledger_team:PlannerAndWorkers")
    register("multi-hop-paragraphs", "marl_verl_sharp.multi_hop_team:PlannerAndSearchers")


@hookimpl
def marl_register_credits(register: Register) -> None:
    register("counterfactual", "marl_verl_sharp.counterfactual:Counterfactual")
    register("shapley", "marl_verl_sharp.sampled_shapley:SampledShapley")


@hookimpl
def marl_register_mixes(register: Register) -> None:
    register("sharp", "marl_verl_sharp.algorithm:SharpMix")


@hookimpl
def marl_register_metrics(register: Register) -> None:
    register("worker-calls", "marl_verl_sharp.worker_calls:WORKER_CALLS")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("sharp", "marl_verl_sharp.algorithm:SHARP")
