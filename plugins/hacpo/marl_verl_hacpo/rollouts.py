"""Sampler `shared-rollouts`: agents with different models share tasks, and learn from each other's episodes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from marl_verl.algo.sampling import Independent, Sample, SamplingContext, ask, attempt, drive, gather_all, scored
from marl_verl.episode import Action, Episode, Turn


class SharedRollouts(Independent):
    """Independent episodes: in session g, trained agent g mod n takes every act of a trained agent, and its turns train
    the policies of all n. Acts with tools are not shared, because formats of tool calls differ.

    Options:
        episodes: number of episodes of each trained agent.
    """

    one_side: ClassVar[str | None] = "its agents take each other's acts"

    async def sample(self, context: SamplingContext) -> Sample:
        agents = [agent for agent in context.agents if agent in context.explored]

        async def episode(session: int) -> Episode:
            agent = agents[session % len(agents)]
            async with context.start(session) as run:
                await drive(run, lambda act: ask(context, act, session, agent=agent if act.role in agents else None))
                return await scored(context, context.finish(run, session, agent))

        sessions = range(self.episodes * len(agents))
        results = await gather_all(attempt(context, session, episode(session)) for session in sessions)
        failures = [result for result in results if not isinstance(result, Episode)]
        return Sample([result for result in results if isinstance(result, Episode)], failures)

    def shared(self, context: SamplingContext, turn: Turn, clients: Mapping[str, Any]) -> Mapping[str, Action]:
        """See `Sampler`. A turn that is too long for a policy is not shared with it."""
        messages = context.task_context.agents[turn.role].conversation(turn.observation)
        actions = dict[str, Action]()
        for policy, client in clients.items() if turn.parameters is None else ():
            if policy != turn.policy and client.too_long(messages, None) is None:
                action = in_tokens_of(client, messages, turn.action, clients[turn.policy])
                actions |= {policy: action} if 0 < action.length <= client.response_length else {}
        return actions


def in_tokens_of(learner: Any, messages: list[Any], action: Action, source: Any) -> Action:
    """An action that the policy of client `source` sampled, in the tokens of the policy of client `learner`.

    Each of its T tokens has the log-probability log pi_source(y) / T, so that the mean log-ratio to it is
    1 / T log(pi_learner(y) / pi_source(y)), of two probabilities of one text (equation 11).
    """
    decode, tokenizer = source.chat.tokenizer.decode, learner.chat.tokenizer
    text = decode(action.response_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    ids = tokenizer.encode(learner.chat.controls.broken(text), add_special_tokens=False)
    if action.stop_reason == "stop" and action.stop is None:
        ids.append(tokenizer.eos_token_id)
    log_prob = sum(action.log_probs) / max(1, len(ids))
    return replace(action, prompt_ids=learner.encode(messages), response_ids=ids, log_probs=[log_prob] * len(ids))
