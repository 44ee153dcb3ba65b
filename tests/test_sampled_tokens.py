"""Prompts begin with the sampled tokens; ends of actions: stop tokens and stop strings."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from marl_verl_tiny.factory import make_bpe_tokenizer, make_tokenizer

from marl_verl.episode import Action, Workflow
from marl_verl.models.chat import Chat
from marl_verl.tasks import Task
from marl_verl.team import AgentConfig, Sampling
from tests.chat_client import ACT, SPOKEN, TURNS, WORDS, Remembers, answer, client, messages, play


class Talks(Workflow):
    """Three turns of one agent in a conversation."""

    async def run(self, task: Task, team: Any) -> str:
        conversation = team["solver"].conversation(system="brief")
        for said in ("what is 2", "and 4", [{"role": "user", "content": "so"}]):
            action = await conversation.act(said)
        assert [message["role"] for message in conversation.messages] == ["system", *["user", "assistant"] * 3]
        return str(action.text)


def test_a_prompt_begins_with_the_sampled_tokens(tmp_path: Path) -> None:
    """They are not those that the tokenizer has for their text, and are never tokenised again."""
    words = make_bpe_tokenizer(WORDS)
    template = TURNS.replace("END", repr(words.eos_token))
    letters = [token for letter in "so is" for token in words.encode(letter, add_special_tokens=False)]
    assert letters != words.encode("so is", add_special_tokens=False)
    assert words.decode(letters) == "so is"
    cut = words.encode("2 4", add_special_tokens=False)  # by its length, without an end
    policy = client(tmp_path, [[*letters, words.eos_token_id], cut, "4"], bpe=True, custom_chat_template=template)
    for former, turn in itertools.pairwise(play(policy, Talks(), AgentConfig("solver", "p"))):
        whole = [*former.action.prompt_ids, *former.action.response_ids]
        assert turn.action.prompt_ids[: len(whole)] == whole
        said = ({"role": "system", "content": "brief"}, *turn.observation[1:])
        assert policy.chat.tokenizer.decode(turn.action.prompt_ids) == policy.chat.render(said)


def test_another_text_is_tokenised_whole(tmp_path: Path) -> None:
    words = make_bpe_tokenizer(WORDS)
    words.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    words.chat_template = TURNS.replace("END", repr(words.eos_token))
    spoken = Chat(words, {}, "policy 'p'")
    first = spoken.encode(SPOKEN[:2], None)
    same, other = (words.encode(text, add_special_tokens=False) for text in ("4", "2"))
    whole = spoken.encode(SPOKEN, None)
    assert spoken.encode(SPOKEN, None, [*first, *same])[: len(first) + 1] == [*first, *same]
    assert whole[: len(first) + 1] != [*first, *same]  # the tokenizer joins the space before it
    assert spoken.encode(SPOKEN, None, [*first, *other]) == whole
    assert spoken.encode(SPOKEN, None, [len(words) + 5, *first]) == whole  # of another tokenizer


ONE_CALL: Any = {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a":2}'}}]}
SPACES = (
    "{% for m in messages %}{{ m.role ~ ': ' }}"
    "{% if m.reasoning_content %}{{ m.reasoning_content|trim ~ '/' }}{% endif %}{{ m.content|trim }}"
    "{% for c in m.tool_calls or [] %}{{ '(' ~ c.function.name ~ c.function.arguments|tojson ~ ')' }}{% endfor %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("said", "parsed"),
    [("\n hm\n/ so\n\n", {"text": "so", "reasoning": "hm"}), ('so ( add{"a"  : 2 } )\n', {"text": "so"} | ONE_CALL)],
)
def test_a_prompt_begins_with_them_whatever_white_space(said: str, parsed: dict[str, Any], tmp_path: Path) -> None:
    """The parsers and the template strip the parts of a reply, and format its calls."""
    policy = client(tmp_path, [], bpe=True, custom_chat_template=SPACES)
    asked = messages("user: 2")
    action = Action(prompt_ids=policy.encode(asked), response_ids=policy.chat.tokenizer.encode(said), **parsed)
    later = [*asked, action.message, *messages("user: is")]
    begun = [*action.prompt_ids, *action.response_ids]
    assert policy.encode(later) != policy.encode(later, None, action)
    ids = policy.encode(later, None, action)
    assert ids[: len(begun)] == begun
    assert "".join(policy.chat.tokenizer.decode(ids).split()) == "".join(policy.chat.render(later).split())
    for other in ({"content": "s o"}, {"content": "so is"}, {"reasoning_content": "h m"}):  # of the client
        changed = [*asked, action.message | other, *messages("user: is")]
        assert policy.encode(changed, None, action) == policy.encode(changed)


def test_every_end_of_the_generation_config_ends_a_turn(tmp_path: Path) -> None:
    own = make_tokenizer(WORDS).eos_token_id
    policy = client(tmp_path, [[7, token] for token in (9, 10, own, 8)], ends=[9, 10])
    assert [answer(policy)[1] for _ in range(4)] == ["stop", "stop", "stop", "length"]
    assert policy.client.asked[0]["stop_token_ids"] == sorted([own, 9, 10])  # type: ignore[attr-defined]


def test_a_stop_string_is_in_the_tokens_and_not_in_the_text(tmp_path: Path) -> None:
    ids = make_bpe_tokenizer(WORDS).encode("so is 4 END", add_special_tokens=False)
    policy = client(tmp_path, [ids] * 5, stop=["EN"], bpe=True)
    action = asyncio.run(policy.answer(messages("user: 2"), {}, "r", ACT))
    assert (action.text, action.stop_reason, action.response_ids) == ("so is 4 ", "stop", ids)
    assert action.stop == "EN"
    assert answer(policy, stop=None) == ("so is 4 ", "stop")
    assert answer(policy, stop=["is", "END"]) == ("so ", "stop")  # the agent's, in place of the policy's
    assert answer(policy, stop=["never"]) == ("so is 4 END", "length")
    assert answer(policy, stop=[]) == ("so is 4 END", "length")
    sent = [params["stop"] for params in policy.client.asked]  # type: ignore[attr-defined]
    assert sent == [["EN"], ["EN"], ["is", "END"], ["never"], []]


def test_a_special_token_as_stop_string_is_a_stop_token(tmp_path: Path) -> None:
    turn = client(tmp_path, []).chat.special["<|turn|>"]
    policy = client(tmp_path, [[5, turn], [5, turn]], stop=["<|turn|>", "END"])
    action = asyncio.run(policy.answer(messages("user: 2"), {}, "r", ACT))
    assert (action.stop_reason, action.stop) == ("stop", "<|turn|>")
    params = policy.client.asked[0]  # type: ignore[attr-defined]
    assert params["stop"] == ["END"]
    assert turn in params["stop_token_ids"]
    assert answer(policy, stop=["so"])[1] == "length"


def test_an_agents_stop_strings_hold_in_a_validation_too(tmp_path: Path) -> None:
    agent = AgentConfig("solver", "p", sampling=Sampling(stop=["is"]))
    for held_out in (None, {"temperature": 0.0, "top_p": 1.0, "top_k": -1}):
        policy = client(tmp_path, ["so is", "so is"], stop=["4"])
        assert [turn.action.text for turn in play(policy, Remembers(), agent, held_out)] == ["so ", "so "]
        assert [params["stop"] for params in policy.client.asked] == [["is"], ["is"]]  # type: ignore[attr-defined]
