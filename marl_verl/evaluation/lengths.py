"""Whether the observations of an agent fit the policy that it gets in an exchange, with the tokenizer of that policy.

Reads the newest episodes that the run has stored: their observations did fit in training.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.errors import MarlError
from marl_verl.evaluation.request import Part
from marl_verl.journals.read import EpisodeFile
from marl_verl.process.run_dir import RunDir
from marl_verl.team import AgentConfig

Messages = tuple[Mapping[str, str], ...]


def check_lengths(
    run: Path,
    config: DictConfig,
    agents: Mapping[str, AgentConfig],
    parts: Mapping[str, Part],
    tokenizers: Mapping[str, str],
) -> None:
    """Raise MarlError if stored observations of an agent whose policy has changed are longer than its policy takes.

    Args:
        config: the evaluation's, resolved.
        agents: of the run.
        tokenizers: policy of the evaluation -> the folder or name of its tokenizer.
    """
    stored = RunDir(run)
    files = stored.stored_episodes() or stored.stored_journals()
    moved = {name: part for name, part in parts.items() if part.source != agents[name].policy}
    moved = {name: part for name, part in moved.items() if part.weights != "outside"}
    if not moved or not files:
        return
    path = files[max(files)]
    content = path.read_bytes()
    episodes = EpisodeFile.parse(gzip.decompress(content) if path.suffix == ".gz" else content, f"'{path}'")
    template: Any = OmegaConf.to_container(config.data.get("apply_chat_template_kwargs") or OmegaConf.create({}))
    for name, part in moved.items():
        observations = _observations(episodes, agents[name])
        if not observations:
            continue
        own = config.policies[part.policy].actor_rollout_ref
        words = own.model.get("tokenizer_path") or tokenizers[part.policy]
        lengths = _lengths(observations, words, bool(own.model.trust_remote_code), template)
        limit = int(own.rollout.prompt_length)
        if long := [length for length in lengths if length > limit]:
            raise MarlError(
                f"{len(long)} of {len(lengths)} observations of agent '{name}' in '{path}' are longer than "
                f"data.max_prompt_length={limit} with the tokenizer of policy '{part.source}', the longest has "
                f"{max(long)} tokens: give data.max_prompt_length={max(long)} and an "
                "actor_rollout_ref.rollout.max_model_len that goes with it"
            )


def _observations(file: EpisodeFile, agent: AgentConfig) -> list[Messages]:
    """The different observations of an agent, with its instructions before them."""
    first = ({"role": "system", "content": agent.instructions},) if agent.instructions else ()
    found: dict[str, Messages] = {}
    for name in file.episodes:
        for record in file.episode(name).journal.acts():
            if record.act.agent == agent.name:
                found[repr(record.act.observation)] = (*first, *record.act.observation)
    return list(found.values())


def _lengths(observations: Sequence[Messages], words: str, trusted: bool, template: Mapping[str, Any]) -> list[int]:
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(words, trust_remote_code=trusted).apply_chat_template
    return [
        len(encode(list(messages), add_generation_prompt=True, tokenize=True, return_dict=False, **template))
        for messages in observations
    ]
