"""The typed `marl` section of a config: agents, policies, and the names of task, workflow and algorithm."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval

from marl_verl.episode.turn import Act, role_of
from marl_verl.errors import MarlError, check, check_known, nearest
from marl_verl.extensions import extension, names, required
from marl_verl.options import Positive, build, check_type

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


@dataclass(frozen=True)
class Named:
    """A registered part with its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """Sampling options of an agent; None keeps the value of verl's `rollout`."""

    temperature: Annotated[float, Ge(0)] | None = None  # of a trained policy: only its own one
    top_p: Annotated[float, Interval(gt=0, le=1)] | None = None  # share of the probability from which tokens are drawn
    top_k: Literal[-1] | Positive | None = None  # number of most likely tokens that are drawn; -1 for all
    min_p: Annotated[float, Interval(ge=0, le=1)] | None = None  # least probability, relative to the likeliest token's
    max_tokens: Positive | None = None  # of a response; data.max_response_length is the most
    stop: list[str] | None = None  # texts that end an action; None for those of the policy


@dataclass(frozen=True)
class AgentConfig:
    """A role."""

    name: str
    policy: str  # name of the policy that acts for the agent
    instructions: str = ""  # system message; none if empty
    reward: str | None = None  # registered role reward
    side: str | None = None  # the side of a team whose agents compete
    sampling: Sampling = field(default_factory=Sampling)  # over the settings of verl's `rollout`
    algorithm: Named | None = None  # advantage and loss of its rows: a name, or name and options (docs/algorithms.md)

    def conversation(self, observation: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages of a request: an observation after the agent's instructions."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return [*system, *observation]


@dataclass(frozen=True)
class Endpoint:
    """An external endpoint: a server outside the run with OpenAI's chat completions API."""

    url: str  # base URL, e.g. "http://localhost:8000/v1"
    model: str  # model name on the server
    key_variable: str | None = None  # environment variable with the API key; None if none is needed


@dataclass(frozen=True)
class PolicyConfig:
    """A model with its own optimiser and servers."""

    name: str
    frozen: bool = False  # acts, but is never updated
    made: Named | None = None  # key and options of a model that is made for the run; None with a `model.path`
    endpoint: Endpoint | None = None  # the external endpoint that acts; such a policy is frozen
    script: str | None = None  # the registered function that acts; such a policy is frozen
    loss: str | None = None  # registered loss; None for the algorithm's loss
    teacher: Any = None  # another policy that it learns from, beside or instead of rewards (marl-verl-teacher)
    base: Literal["shared"] | None = None  # shared: one base model in trainer and servers for all policies that set it
    pool: str | None = None  # shared pool of `marl.pools`; None for a dedicated pool
    stop: list[str] | None = None  # texts that end an action, for agents that have none of their own
    apply_chat_template_kwargs: dict[str, Any] | None = None  # over those of verl's `data`
    tool_parser: str | None = None  # vLLM's parser of tool calls; None for that of the chat template's family
    reasoning_parser: str | None = None  # vLLM's parser of reasoning; None leaves reasoning in the text
    override: dict[str, Any] = field(default_factory=dict)  # a partial `actor_rollout_ref`
    past: Any = None  # of a policy that acts with past versions of policy `past.of`: the settings of its kind

    @property
    def trained(self) -> bool:
        return not self.frozen

    @property
    def external(self) -> bool:
        """Whether no model of this run acts: an external endpoint or a script."""
        return self.endpoint is not None or self.script is not None


OWN_KEYS = tuple(
    key.name for key in dataclasses.fields(PolicyConfig) if key.name not in ("name", "made", "override", "past")
)
ALL_KEYS = (*OWN_KEYS, *names("model"))
"""Keys of a policy's section that are not keys of verl's `actor_rollout_ref`; distributions add sources of models."""


@dataclass(frozen=True)
class TeamConfig:
    """The typed `marl` section."""

    agents: dict[str, AgentConfig]
    policies: dict[str, PolicyConfig]
    task: Named
    workflow: Named
    algorithm: Named

    @property
    def trained(self) -> tuple[str, ...]:
        """The policies that are updated."""
        return tuple(name for name, policy in self.policies.items() if policy.trained)

    @property
    def explored(self) -> frozenset[str]:
        """The policies of whose acts a sampler makes alternatives: the trained ones. In an evaluation, where all
        are frozen, those of this run; all if each is external."""
        internal = [name for name, policy in self.policies.items() if not policy.external]
        return frozenset(self.trained or internal or self.policies)

    def agents_of(self, policy: str) -> list[str]:
        """The agents that act with a model: with the policy, with past versions of it, or with one that it teaches."""
        model = policy if (past := self.policies[policy].past) is None else past.of
        names = {model, *(name for name, past in self.past.items() if past.of == model)}
        names |= {name for name, other in self.policies.items() if other.teacher and other.teacher.policy == model}
        return [agent.name for agent in self.agents.values() if agent.policy in names]

    @property
    def sharing(self) -> tuple[str, ...]:
        """The policies with `base: shared`; the processes of the first one serve and train them all."""
        return tuple(name for name, policy in self.policies.items() if policy.base is not None)

    def alike(self, policy: str) -> tuple[str, ...]:
        """The policies whose processes are those of a policy, which is one of them."""
        return self.sharing if self.policies[policy].base is not None else (policy,)

    @property
    def past(self) -> dict[str, Any]:
        """Policy that acts with past versions of another -> its settings; `of` is the other policy."""
        return {name: policy.past for name, policy in self.policies.items() if policy.past is not None}


def acting(agents: Mapping[str, AgentConfig], act: Act, agent: str | None = None) -> AgentConfig:
    """The settings of the agent that takes an act (default: the one that the workflow called): those of its role, with
    the policy that it was spawned with. MarlError (with the nearest name) for an unknown policy."""
    settings, policy = agents[role_of(agent or act.agent)], (act.parameters or {}).get("policy")
    if policy is None:
        return settings
    policies = {other.policy for other in agents.values()}
    check_known("policy", policy, policies)
    return dataclasses.replace(settings, policy=policy)


def sides_of(agents: Mapping[str, AgentConfig]) -> tuple[str, ...]:
    """The sides of a team, in the order of its agents."""
    return tuple(dict.fromkeys(agent.side for agent in agents.values() if agent.side is not None))


def check_sides(label: str, scored: Iterable[str], sides: Collection[str]) -> None:
    """MarlError unless a task set's score is for exactly the sides of a team; `label` begins the message."""
    named = list(scored)
    if set(named) != set(sides):
        have = f"the agents have {_listed(sides)}" if sides else "no agent has a side"
        raise MarlError(f"{label} for the sides {_listed(named) or 'none'}, but {have} (marl.agents.NAME.side)")


def read_team(marl: Mapping[str, Any], evaluation: bool = False) -> TeamConfig:
    """Read the team of a plain `marl` section. `evaluation`: accept policies without an agent (cross-play)."""
    policies = {str(name): _policy(str(name), values) for name, values in (marl.get("policies") or {}).items()}
    added: dict[str, PolicyConfig] = {}
    sections = (marl.get("agents") or {}).items()
    agents = {str(name): _agent(str(name), values, policies, added) for name, values in sections}
    policies |= added
    _check_team(agents, policies, evaluation)
    return TeamConfig(agents, policies, *(_named(marl, kind) for kind in ("task", "workflow", "algorithm")))


@check
def _check_team(
    agents: Mapping[str, AgentConfig], policies: Mapping[str, PolicyConfig], evaluation: bool
) -> Iterator[str]:
    for name, policy in policies.items():
        where, override = f"marl.policies.{name}", policy.override
        if policy.external and override:
            yield f"{_listed(override)} of '{where}' has no effect on an endpoint or a script: remove it"
        trained = {"model.lora_rank": (override.get("model") or {}).get("lora_rank"), "base": policy.base}
        for key in (key for key in trained if trained[key] and policy.frozen and policy.past is None):
            yield f"policy '{name}' is frozen, but has {where}.{key}={trained[key]}, for training: remove it"
        if policy.teacher and not evaluation:
            yield from policy.teacher.problems(policy, policies)
    if not agents:
        yield "'marl.agents' is empty: a team needs at least one agent, e.g. agents: {solver: {policy: base}}"
    teachers = {policy.teacher.policy for policy in policies.values() if policy.teacher}
    unused = policies.keys() - {agent.policy for agent in agents.values()} - teachers
    if unused and not evaluation:
        remedy = f"assign it to one of the agents {_listed(agents)}, or remove it"
        yield f"policy {_listed(unused)} is used by no agent: {remedy}"


def _named(marl: Mapping[str, Any], kind: str) -> Named:
    name = marl[kind].get("name")
    if not name or name == "???":
        raise MarlError(f"'marl.{kind}.name' is missing: `marl-verl plugins` lists the registered ones")
    return Named(str(name), dict(marl[kind].get("options") or {}))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def _check_name(where: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        rule = "must consist of letters, digits and '-' and begin with a letter"
        raise MarlError(f"'{where}': a name {rule}, got '{name}'")


def _agent(name: str, values: Any, policies: Mapping[str, PolicyConfig], added: dict[str, PolicyConfig]) -> AgentConfig:
    """An agent. A policy of a kind that a distribution adds, which the agent's section has a key for, is `added`."""
    where = f"marl.agents.{name}"
    _check_name(where, name)
    check_type(values, Mapping | None, where)
    section = {key: value for key, value in (values or {}).items() if value is not None}
    for kind in names("policy"):
        if kind not in section:
            continue
        if "policy" in section:
            raise MarlError(f"agent '{name}' has both {where}.policy and {where}.{kind}: remove one of the two")
        policy = extension("policy", kind).policy_of(section.pop(kind), f"{where}.{kind}", policies)
        if policy.name in policies or added.setdefault(policy.name, policy) != policy:
            raise MarlError(f"policy '{policy.name}' of '{where}.{kind}' has other settings elsewhere: make them equal")
        section["policy"] = policy.name
    if (own := section.get("algorithm")) is not None:  # without a name: that of the team, with other options
        section["algorithm"] = {"name": "", **own} if isinstance(own, Mapping) else {"name": own}
    agent = build(AgentConfig, {"policy": "", **section, "name": name}, where)
    if agent.policy not in {**policies, **added}:
        problem = f"has unknown policy '{agent.policy}'" if agent.policy else f"has no policy ({where}.policy)"
        raise MarlError(f"agent '{name}' {problem}: {nearest(agent.policy, policies)}")
    if agent.side is not None:
        _check_name(f"{where}.side", agent.side)
    return agent


def source_of(section: Mapping[str, Any], where: str) -> Named | None:
    """The key of a section that describes a model to make, with its options; None without one."""
    keys = [key for key in names("model") if section.get(key) is not None]
    if len(keys) > 1:
        raise MarlError(f"both {where}.{keys[0]} and {where}.{keys[1]} are set: set one of them to null")
    for key in keys:
        check_type(section[key], Mapping, f"{where}.{key}")
        return Named(key, dict(section[key]))
    return None


def _policy(name: str, values: Any) -> PolicyConfig:
    where = f"marl.policies.{name}"
    _check_name(where, name)
    check_type(values, Mapping | None, where)
    section = values or {}
    set_keys = {key: section[key] for key in OWN_KEYS if key in section}
    override = {key: value for key, value in section.items() if key not in ALL_KEYS}
    policy = build(PolicyConfig, {**set_keys, "name": name, "override": override}, where)
    if policy.teacher is not None:
        module = required("teacher", "teacher", f"{where}.teacher", "teacher")
        policy = dataclasses.replace(policy, teacher=module.settings_of(policy.teacher, f"{where}.teacher"))
    made = None if policy.external else source_of(section, where)
    return dataclasses.replace(policy, frozen=policy.frozen or policy.external, made=made)
