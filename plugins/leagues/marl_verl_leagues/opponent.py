"""The key `opponent` of an agent's section: the agent acts with past versions of a policy."""

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from marl_verl.errors import MarlError, check_known
from marl_verl.options import Positive, build
from marl_verl.team import PolicyConfig


@dataclass(frozen=True)
class Opponent:
    """Past versions of a policy, with which an agent acts: snapshots, of which each task meets one."""

    kind: ClassVar = "opponent"

    of: str  # the policy, which must be trained
    pool: Literal["latest", "uniform", "prioritised"] = "latest"  # how the snapshot of a task is chosen
    size: Positive = 8  # number of snapshots, the newest ones
    every: Positive = 20  # steps between two snapshots; the first one is the policy before training

    def described(self) -> str:
        """The snapshots in words."""
        which = {"latest": "the latest", "uniform": "one", "prioritised": "one, prioritised by win rates,"}[self.pool]
        return f"{which} of at most {self.size} snapshots of policy {self.of}, one every {self.every} steps"


def past_name(policy: str) -> str:
    """The name of the frozen policy that acts with past versions of a policy."""
    return f"{policy}-past"


def policy_of(section: Any, where: str, policies: Mapping[str, PolicyConfig]) -> PolicyConfig:
    """The frozen policy of an agent, with model, chat template and server settings of the policy whose past versions it
    acts with. MarlError unless that one is trained."""
    opponent = build(Opponent, section, where)
    check_known(f"policy in '{where}.of'", opponent.of, policies)
    of = policies[opponent.of]
    if not of.trained:
        raise MarlError(f"'{where}.of' is policy '{of.name}', which is not trained and has no past versions")
    override = {key: value for key, value in of.override.items() if key in ("model", "rollout")}
    if isinstance(model := override.get("model"), Mapping):
        override["model"] = {key: value for key, value in model.items() if not str(key).startswith("lora")}
    past: dict[str, Any] = {"name": past_name(of.name), "frozen": True, "past": opponent}
    past |= dict.fromkeys(("loss", "teacher", "base"))
    return dataclasses.replace(of, **past, override=override)


def __getattr__(name: str) -> Any:
    """What a run and its checkpoints need, imported when they do: it imports verl."""
    if name in ("Past", "Snapshots", "check", "read"):
        return getattr(importlib.import_module("marl_verl_leagues.opponents"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
