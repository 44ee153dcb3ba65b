"""Environments of PettingZoo as task sets: turns of AEC environments, and parallel ones as simultaneous moves.

An agent sees its observation as text: a text as it is, numbers as JSON. Its action is the first integer in its text, or
the whole text where the action space is one of texts.
"""

import importlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from marl_verl.errors import MarlError
from marl_verl_environments.seats import OwnRandom, Seated, SeatedTasks, required


class PettingZooGame:
    """A game in progress. MarlError if the environment does not have this number of players."""

    def __init__(self, env: str, arguments: Mapping[str, Any], seed: int, seats: int | None = None) -> None:
        self._random = OwnRandom(seed)
        with self._random.used():
            self._env, self._parallel = _made(env, arguments)
            first = self._env.reset(seed=seed)
        self._players = list(self._env.possible_agents)
        if seats not in (None, len(self._players)):
            raise MarlError(f"pettingzoo '{env}' has {len(self._players)} players; the team has {seats} seats")
        self._seen = first[0] if self._parallel else {}
        self._rewards = dict.fromkeys(self._players, 0.0)

    def to_move(self) -> Mapping[int, str]:
        if self._parallel:
            return {self._players.index(player): self._text(player) for player in self._env.agents}
        while self._env.agents:
            player = self._env.agent_selection
            if not (self._env.terminations[player] or self._env.truncations[player]):
                return {self._players.index(player): self._text(player)}
            self._step(None)
        return {}

    def _text(self, player: str) -> str:
        return as_text(self._observed(player), int(getattr(self._env.action_space(player), "start", 0)))

    def _observed(self, player: str) -> Any:
        return self._seen[player] if self._parallel else self._env.observe(player)

    def play(self, moves: Mapping[int, str]) -> Mapping[int, str]:
        refused: dict[int, str] = {}
        actions = {self._players[seat]: self._action(seat, text, refused) for seat, text in moves.items()}
        self._step(actions if self._parallel else next(iter(actions.values())))
        return refused

    def outcomes(self) -> list[float]:
        return [self._rewards[player] for player in self._players]

    def _step(self, action: Any) -> None:
        with self._random.used():
            result = self._env.step(action)
        if self._parallel:
            self._seen, rewards, *_ = result
        else:
            rewards = self._env.rewards  # of this step, for all players
        for player, reward in rewards.items():
            self._rewards[player] += float(reward)

    def _action(self, seat: int, text: str, refused: dict[int, str]) -> Any:
        """The action that a text names; an illegal one is noted in `refused`."""
        if not hasattr(self._env.action_space(self._players[seat]), "n"):  # a space of texts
            return text
        legal = self._actions(seat, self._mask(self._players[seat]))
        number = re.search(r"-?\d+", text)
        action = None if number is None else int(number[0])
        if action in legal:
            return action
        refused[seat] = f"{text!r:.40} names no legal action: {', '.join(map(str, legal[:20]))}"
        return legal[0]

    def choices(self, seat: int) -> tuple[list[str], list[str]]:
        legal, every = (self._actions(seat, mask) for mask in (self._mask(self._players[seat]), None))
        return list(map(str, legal)), list(map(str, every))

    def _actions(self, seat: int, mask: Any) -> list[int]:
        """The actions that a mask allows, of a space of numbers; None allows all."""
        space = self._env.action_space(self._players[seat])
        return [int(space.start) + n for n in range(int(space.n)) if mask is None or mask[n]]

    def _mask(self, player: str) -> Any:
        seen = self._observed(player)
        if isinstance(seen, Mapping) and "action_mask" in seen:
            return seen["action_mask"]
        return None if self._parallel else self._env.infos[player].get("action_mask")


class PettingZooTasks(SeatedTasks):
    """One environment of PettingZoo. The tasks are its seeds; an outcome is the sum of a player's rewards.

    Options:
        env: module of the environment, e.g. pettingzoo.classic.tictactoe_v3, or of your own with PettingZoo's API:
            a function `env` (AEC) or `parallel_env`.
    """

    game = PettingZooGame


class PettingZoo(Seated):
    """Agents play an environment of PettingZoo, the seats in the order of its `possible_agents`. An illegal move is
    replaced by the first legal one."""

    game = PettingZooGame


def as_text(observation: Any, start: int = 0) -> str:
    """An observation as text: a text as it is, anything else as JSON, and the legal actions by number, from `start`."""
    if isinstance(observation, str):
        return observation
    if not isinstance(observation, Mapping):
        return json.dumps(_plain(observation))
    if "action_mask" in observation:
        legal = (np.flatnonzero(observation["action_mask"]) + start).tolist()
        return f"{as_text(observation['observation'])}\nLegal actions: {', '.join(map(str, legal))}"
    return json.dumps({name: _plain(value) for name, value in observation.items()})


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(int).tolist() if array.dtype == np.bool_ else array.tolist()


def _made(name: str, arguments: Mapping[str, Any]) -> tuple[Any, bool]:
    """(a new environment, whether it is a parallel one). MarlError if its actions are neither numbers nor texts."""
    required("pettingzoo")
    module: Any = importlib.import_module(name)
    parallel = not hasattr(module, "env")
    env = (module.parallel_env if parallel else module.env)(**arguments)
    for player in env.possible_agents:
        kind = type(env.action_space(player)).__name__
        if kind not in ("Discrete", "Text"):
            raise MarlError(f"pettingzoo '{name}': the actions of '{player}' are a {kind}, neither numbers nor texts")
    return env, parallel
