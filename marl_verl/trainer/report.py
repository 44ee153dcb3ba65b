"""The results of a run: summary.json."""

import json
import math
import re
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
    first = validations[0] if validations[0]["step"] == 0 else {}  # {}: trainer.val_before_train was off
    tasks, saved = len(trainer.data.held_out), complete(folder / "checkpoints")
    timing = read_json(folder / "timing.json") if (folder / "timing.json").is_file() else {}
    durations = sorted(line["seconds/step"] for line in steps)
    summary = {
        **_success(first, tasks, "before"),
        **_success(validations[-1], tasks, "after"),
        "eval_tasks": tasks,
        "steps": int(steps[-1]["step"]) if steps else 0,
        "seconds_total": time.time() - timing["begun"] if "begun" in timing else None,
        "seconds_to_first_step": timing.get("seconds_to_first_step"),
        "seconds_per_step": durations[len(durations) // 2] if durations else None,
        "seconds": timing.get("phases", {}),
        "policies": {name: _policy(policy, trainer.config) for name, policy in trainer.team.policies.items()},
        "agents": _agents(steps[-1] if steps else {}, validations[-1]),
        "checkpoint": str(saved[-1].relative_to(folder)) if saved else None,
    }
    write_json(folder / "summary.json", summary, default=float)
    return summary


def _success(validation: dict[str, Any], tasks: int, when: str) -> dict[str, Any]:
    """Team success in a validation and, under "answer", what the task set measures of answers in its greedy pass."""
    success, prefix = validation.get("validation/success"), "validation/answer/"
    measured = [name for name in validation if name.startswith(prefix) and not name.endswith("_sampled")]
    return {
        f"success_{when}": success,
        f"success_{when}_interval": None if success is None else wilson(success * tasks, tasks),
        f"success_{when}_sampled": validation.get("validation/success_sampled"),
        f"answer_{when}": {name.removeprefix(prefix): validation[name] for name in measured},
    }


def _policy(policy: PolicyConfig, config: Any) -> dict[str, Any]:
    """Parameters of a policy's model, None if they are unknown; and whether it is frozen."""
    model = None if policy.external else local(str(config.policies[policy.name].actor_rollout_ref.model.path))
    return {"parameters": None if model is None else parameters(shapes(model)), "frozen": policy.frozen}


def _agents(step: dict[str, Any], validation: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Agent -> its final metrics, of the last training step and the last validation."""
    agents: dict[str, dict[str, float]] = {}
    for name, value in {**step, **validation}.items():
        if match := re.fullmatch(r"(validation/)?agent/([^/]+)/(.+)", name):
            agents.setdefault(match[2], {})[(match[1] or "") + match[3]] = value
    return agents
