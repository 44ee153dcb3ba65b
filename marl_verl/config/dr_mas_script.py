"""Scripts of Dr. MAS's code as teams of marl-verl-dr-mas: `agent.*`, `env.*`, and keys of `actor` and `algorithm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_verl.config.translation import Translation, set_key
from marl_verl.config.verl_keys import PASS, verdict
from marl_verl.errors import MarlError, nearest

ARR, ACTOR = "actor_rollout_ref", "actor_rollout_ref.actor"
SPECIFIC = "agent.agent_specific_parameters."
IDS, MODELS, KIND, SHARING = (f"agent.{name}" for name in ("agent_ids", "model_ids", "orchestra_type", "model_sharing"))
ROLES: Mapping[str, Mapping[str, str]] = {  # `agent.orchestra_type` -> id of an agent -> its name in the workflow
    "math": {"Solver Agent": "solver", "Verifier Agent": "verifier"},
    "search": {"Verifier Agent": "verifier", "Search Agent": "searcher", "Answer Agent": "answerer"},
}
ANSWER = {"math": "reward_model.ground_truth", "search": "reward_model.ground_truth.target"}  # column of its files
COMMON = {
    "env.rollout.n": ("sampler.options.episodes", 1),
    "env.rollout.val_n": ("validation.options.episodes", 1),
    "env.seed": ("run.seed", 0),
}
OPTIONS: Mapping[str, Mapping[str, tuple[str, Any]]] = {  # kind -> key -> (place in a recipe, the code's default)
    "math": {**COMMON, "agent.orchestra.math.max_loop_num": ("workflow.options.rounds", 3)},
    "search": {
        **COMMON,
        "env.max_steps": ("workflow.options.steps", 50),
        "env.search.topk": ("workflow.options.found", 3),
        "env.search.search_url": ("workflow.options.source", "http://127.0.0.1:8000/retrieve"),
    },
}
UNUSED = ("env.env_name", "env.max_steps", "env.history_length", "env.search.log_requests", "env.resources_per_worker")
ENVIRONMENTS = {"alfworld", "sokoban", "webshop", "search", "math"}
FIXED = {"agent.multi_agent": True, "agent.use_agent_memory": False}
NO_STEP = "gigpo compares rewards of single steps, which these teams lack: the recipe has adv_estimator=grpo"


def add_dr_mas(script: Translation) -> None:
    """Set team, tasks and algorithm from a script of Dr. MAS. MarlError for a team that has no workflow here."""
    if not any(key.startswith("agent.") for key in script.values):
        return
    if "agents" in script.recipe["marl"]:
        raise MarlError("'agent.agent_ids' and 'marl.agents' (or --agents 2) both set the team: remove one of the two")
    kind = str(script.values.get(KIND, "math"))
    if kind not in ROLES:
        raise MarlError(f"'{KIND}={kind}' has no workflow here: {nearest(kind, ROLES)}")
    _set_team(script, kind)
    for part in ("task", "workflow"):
        script.put(f"marl.{part}.name", f"dr-mas-{kind}")
    script.note(KIND, f"marl.workflow.name=dr-mas-{kind}")
    script.put("marl.task.options.fields", {"prompt": "extra_info.question", "answer": ANSWER[kind]})
    for split, key in {"train": "data.train_files", "test": "data.val_files"}.items():
        if isinstance(script.values.get(key), str):
            script.become(key, f"marl.task.{split}_file", script.values[key])
    for key, (place, default) in OPTIONS[kind].items():
        script.become(key, f"marl.{place}", script.values.get(key, default))
    adaptive, updates = (f"{ACTOR}.{name}" for name in ("use_adaptive_ppo_mini_batch_size", "ppo_mini_update_num"))
    if script.values.get(adaptive):  # a number of updates per batch
        size = max(1, round(script.number("data.train_batch_size", 1024) / script.number(updates, 10)))
        script.add(f"{ACTOR}.ppo_mini_batch_size", size)
    for key in (adaptive, updates):
        script.note(key, f"{ACTOR}.ppo_mini_batch_size={script.values.get(f'{ACTOR}.ppo_mini_batch_size')}")
    _set_algorithm(script)
    steps = script.recipe["marl"]["workflow"]["options"].get("steps", 0)
    for key in [key for key in script.values if key.startswith(("agent.", "env."))]:
        value = script.values[key]
        if value != FIXED.get(key, value) or (key == "env.env_name" and value != kind):
            script.refuse(key, f"a team of '{KIND}={kind}' has {key}={FIXED.get(key, kind)}")
        elif key == "env.history_length" and script.number(key) < steps:
            script.refuse(key, "agents see all searches of an episode")
        elif key in FIXED or key.startswith(UNUSED) or key.split(".")[1] in ("orchestra", *ENVIRONMENTS - {kind}):
            script.drop(key)


def _set_team(script: Translation, kind: str) -> None:
    """Agents and policies: a policy each, or with `model_sharing` one for all agents that have the same model."""
    ids, models = script.values.get(IDS), script.values.get(MODELS)
    if not isinstance(ids, list) or sorted(map(str, ids)) != sorted(ROLES[kind]):
        raise MarlError(f"'{KIND}={kind}' has the agents {', '.join(ROLES[kind])}, got {IDS}={ids}")
    if not isinstance(models, list) or len(models) != len(ids):
        raise MarlError(f"'{MODELS}' must be a list of {len(ids)} models, one for each of {IDS}, got {models}")
    groups: dict[str, list[int]] = {}  # the agents of each policy
    for place in range(len(ids)):
        groups.setdefault(str((models if script.values.get(SHARING) else ids)[place]), []).append(place)
    roles = [ROLES[kind][str(name)] for name in ids]
    policies = {"-".join(roles[place] for place in places): places for places in groups.values()}
    for policy, places in policies.items():
        set_key(script.recipe, f"marl.policies.{policy}", {})
        for place in places:
            set_key(script.recipe, f"marl.agents.{roles[place]}.policy", policy)
    for key in [MODELS, *(key for key in script.values if key.startswith(SPECIFIC))]:
        setting = "model.path" if key == MODELS else key.removeprefix(SPECIFIC)
        values = script.values[key]
        alike = isinstance(values, list) and len(values) == len(ids)
        if (reason := verdict(f"{ARR}.{setting}")) != PASS or not alike:
            script.refuse(key, reason if alike else f"lists of one value for each of the {len(ids)} agents")
        elif any(values[place] != values[places[0]] for places in policies.values() for place in places):
            script.refuse(key, "agents of one policy, which share its settings")
        elif all(value == values[0] for value in values):
            script.add(f"{ARR}.{setting}", values[0])
            script.note(key, f"{ARR}.{setting}={values[0]}")
        else:
            for policy, places in policies.items():
                set_key(script.recipe, f"marl.policies.{policy}.{setting}", values[places[0]])
            script.take(f"{ARR}.{setting}")
            script.note(key, f"marl.policies.NAME.{setting}")
    for key in (IDS, SHARING):
        script.note(key, f"policies {', '.join(policies)}")
    memory = f"{ARR}.rollout.gpu_memory_utilization"  # of each server; here of all on a GPU, of which each has its part
    if len(policies) > 1:
        script.add(memory, round(min(0.8, script.number(memory) * len(policies)), 3))


def _set_algorithm(script: Translation) -> None:
    """Set the advantage, with means of an agent's rows or of whole episodes, and the penalty for invalid actions."""
    estimator, by_agent = "algorithm.adv_estimator", "algorithm.group_by_agent_id"
    used, coefficient = (f"{ACTOR}.{name}" for name in ("use_invalid_action_penalty", "invalid_action_penalty_coef"))
    penalty = script.values.get(coefficient, 0.1) if script.values.get(used, True) else 0.0
    options: dict[str, Any] = {"rewards": {"name": "marl_verl_dr_mas.algorithm:PenaltyMix", "penalty": penalty}}
    advantage: dict[str, Any] = {}
    for key in (used, coefficient):
        script.note(key, f"marl.algorithm.options.rewards.penalty={penalty}")
    if (name := str(script.values.get(estimator, "gae"))) == "gigpo":
        for key in [key for key in script.values if key.startswith((estimator, "algorithm.gigpo.", "algorithm.gamma"))]:
            script.refuse(key, NO_STEP)
    if name in ("grpo", "rloo", "gigpo"):
        algorithm = "dr-mas" if script.values.get(by_agent) else "grpo-trajectory-mean"
        norm = "algorithm.norm_adv_by_std_in_grpo"
        advantage |= {"baseline": "leave-one-out"} if name == "rloo" else {}
        advantage |= {"norm_by_std": False} if name == "rloo" or script.values.get(norm) is False else {}
        script.put("marl.algorithm.name", algorithm)
        for key in (estimator, by_agent, norm):
            script.note(key, f"marl.algorithm.name={algorithm}")
    elif script.values.get(by_agent):
        script.refuse(by_agent, f"groups of an agent's rows: set {estimator}=grpo or rloo")
    else:
        script.drop(by_agent)
    script.put("marl.algorithm.options", {**options, **({"advantage": advantage} if advantage else {})})
