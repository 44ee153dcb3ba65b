"""The results of a run: summary.json."""

import json
import math
import time
from typing import TYPE_CHECKING, Any

from marl_verl.files import read_json, read_text, write_json
from marl_verl.models.count import parameters, shapes
from marl_verl.run.checkpoint.folders import complete
from marl_verl.run.checkpoint.weights import local
from marl_verl.team import PolicyConfig

if TYPE_CHECKING:
    from marl_verl.trainer.loop import Trainer


def wilson(successes: float, tasks: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of a share, (low, high) in [0, 1]; (0, 1) without tasks.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)    (Wilson 1927)
    """
    if tasks == 0:
        return 0.0, 1.0
    share = successes / tasks
    middle = share + z * z / (2 * tasks)
    spread = z * math.sqrt(share * (1 - share) / tasks + z * z / (4 * tasks * tasks))
    scale = 1 + z * z / tasks
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def write_summary(trainer: "Trainer") -> dict[str, Any]:
    """Write summary.json to the run directory and return its content."""
    folder = trainer.run_dir.folder
    lines = [json.loads(line) for line in read_text(folder / "metrics.jsonl").splitlines()]
    steps = [line for line in lines if "train/success" in line]
    validations = [line for line in lines if "validation/success" in line]
    last = validations[-1]
    first = validations[0] if validations[0]["step"] == 0 else {}  # {}: trainer.val_before_train was off
    tasks, durations = len(trainer.data.held_out), [line["seconds/step"] for line in steps]
    saved = complete(folder / "checkpoints")
    policies = {name: _policy(policy, trainer.config) for name, policy in trainer.team.policies.items()}
    timing = read_json(folder / "timing.json") if (folder / "timing.json").is_file() else {}
    summary = {
        "success_before": first.get("validation/success"),
        "success_after": last["validation/success"],
        "success_before_interval": wilson(first["validation/success"] * tasks, tasks) if first else None,
        "success_after_interval": wilson(last["validation/success"] * tasks, tasks),
        "success_before_sampled": first.get("validation/success_sampled"),
        "success_after_sampled": last["validation/success_sampled"],
        "answer_before": _answer(first),
        "answer_after": _answer(last),
        "eval_tasks": tasks,
        "steps": int(steps[-1]["step"]) if steps else 0,
        "seconds_total": time.time() - timing["begun"] if "begun" in timing else None,
        "seconds_to_first_step": timing.get("seconds_to_first_step"),
        "seconds_per_step": sorted(durations)[len(durations) // 2] if durations else None,
        "seconds": timing.get("phases", {}),
        "policies": policies,
        "agents": _agents(steps[-1] if steps else {}, last),
        "checkpoint": str(saved[-1].relative_to(folder)) if saved else None,
    }
    write_json(folder / "summary.json", summary, default=float)
    return summary


def _answer(validation: dict[str, Any]) -> dict[str, float]:
    """What the task set measures of answers in a validation's greedy pass; {} if it measures nothing."""
    prefix = "validation/answer/"
    names = [name for name in validation if name.startswith(prefix) and not name.endswith("_sampled")]
    return {name.removeprefix(prefix): validation[name] for name in names}


def _policy(policy: PolicyConfig, config: Any) -> dict[str, Any]:
    """Parameters of a policy's model, None if they are unknown; and whether it is frozen."""
    model = None if policy.external else local(str(config.policies[policy.name].actor_rollout_ref.model.path))
    return {"parameters": None if model is None else parameters(shapes(model)), "frozen": policy.frozen}


def _agents(step: dict[str, Any], validation: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Agent -> its final metrics, of the last training step and the last validation."""
    agents: dict[str, dict[str, float]] = {}
    for source, prefix, mark in ((step, "agent/", ""), (validation, "validation/agent/", "validation/")):
        for name, value in source.items():
            if name.startswith(prefix):
                agent, metric = name.removeprefix(prefix).split("/", 1)
                agents.setdefault(agent, {})[mark + metric] = value
    return agents
