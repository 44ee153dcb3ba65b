"""Tiny models: made on the spot, deterministic, cached by content, and nothing left behind when they fail."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from marl_verl_tiny import factory
from marl_verl_tiny import model as tiny
from marl_verl_tiny.inventory import Inventory
from marl_verl_tiny.model import Shape
from transformers import AutoModelForCausalLM, AutoTokenizer

from marl_verl.options import build
from tests.waiting import wait_until

SCOUT = tiny.TinyModel("split-plan-path", ["scout"], steps=3, batch_size=4)
HOLDER = tiny.TinyModel("inventory", ["holder"], steps=2, batch_size=4)
LLAMA = replace(HOLDER, family="llama")


@pytest.fixture(scope="module")
def words():
    return factory.make_tokenizer(Inventory().vocabulary())


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_word_is_a_token_and_text_comes_back(words):
    text = "message 3 1 4 1 index third"
    tokens = words.encode(text, add_special_tokens=False)
    assert len(tokens) == 7
    assert words.decode(tokens) == text
    assert words.decode(words.encode(text + factory.END), skip_special_tokens=True).strip() == text
    assert len({words.pad_token_id, words.eos_token_id, words.unk_token_id}) == 3


def test_pieces_give_every_text_back_and_one_text_has_several_pieces():
    pieces = factory.make_bpe_tokenizer(Inventory().vocabulary())
    for text in ("message 3 1 4 1 index third", " two  spaces\n", "Grüße, 世界", "<s> is special"):
        assert pieces.decode(pieces.encode(text, add_special_tokens=False)) == text
    letters = pieces.convert_tokens_to_ids(list("message"))
    assert len(pieces.encode("message", add_special_tokens=False)) < len(letters)
    assert pieces.decode(letters) == "message"  # as it may have been sampled: encoding the text anew would change it
    tokens = pieces.convert_ids_to_tokens(pieces.encode("user", add_special_tokens=False))
    assert not set(factory.BPE_ROLES) & set(tokens)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_model_is_its_seed_and_leaves_torchs_own_random_numbers_alone(words, family):
    before = torch.get_rng_state()
    one, same, other = (factory.make_model(Shape(family=family), words, seed) for seed in (1, 1, 2))
    assert one.config.model_type == family
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.model.embed_tokens.weight, other.model.embed_tokens.weight)
    assert one.lm_head.weight is one.model.embed_tokens.weight
    assert 80_000 < one.num_parameters() < 90_000


def test_the_warm_up_has_its_loss_on_the_answer_and_its_end_only(words):
    pairs = [("digits 3 1 4 1", "3 1 4 1"), ("message 3 1 4 1 index first", "3")]
    tokens, labels = next(factory.batches(words, pairs, 2))
    assert [words.decode(row[row != factory.IGNORED]) for row in labels] == ["3 1 4 1 <|im_end|>", "3 <|im_end|>"]
    prompt = words.apply_chat_template(chat("digits 3 1 4 1"), add_generation_prompt=True, return_dict=False)
    assert tokens[0, : len(prompt)].tolist() == prompt
    assert torch.equal(tokens[labels != factory.IGNORED], labels[labels != factory.IGNORED])


def test_the_warm_up_learns_and_leaves_torchs_threads_alone(words):
    pairs = Inventory().demonstrations("holder", 40 * 16, 0, 0.0)
    model, threads, progress = factory.make_model(Shape(), words, 0), torch.get_num_threads(), []
    assert factory.warm_up(model, words, pairs[:16], 16, 3e-3) > 1.5
    assert factory.warm_up(model, words, pairs, 16, 3e-3, progress.append) < 1.0
    assert torch.get_num_threads() == threads
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


@pytest.mark.parametrize(
    ("spec", "network", "end"), [(HOLDER, "Qwen3", factory.END), (LLAMA, "Llama", factory.BPE_END)]
)
def test_a_model_loads_in_plain_transformers_and_is_made_once(tmp_path, spec, network, end):
    folder = tiny.ensure(spec, tmp_path)
    model, words = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (type(model).__name__, model.dtype) == (f"{network}ForCausalLM", torch.float32)
    assert model.generation_config.eos_token_id == words.eos_token_id == words.convert_tokens_to_ids(end)
    prompt = words.apply_chat_template(
        chat("digits 3 1 4 1"), add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    assert model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4).shape[1] > prompt.shape[1]
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert tiny.ensure(spec, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # nothing half written beside it


def test_the_same_description_gives_the_same_weights_and_any_change_another_folder(tmp_path):
    one, two = (tiny.ensure(HOLDER, tmp_path / name) for name in ("one", "two"))
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    changes = [{"seed": 1}, {"good": 0.5}, {"steps": 3}, {"agents": ["asker"]}, {"task_options": {"length": 5}}]
    changes.append({"family": "llama"})
    assert len({replace(HOLDER, **change).folder(tmp_path).name for change in changes} | {one.name}) == len(changes) + 1
    assert build(tiny.TinyModel, json.loads(HOLDER.to_json()), "tiny") == HOLDER


@pytest.mark.slow
def test_two_models_are_made_at_once_and_equal_ones_once(tmp_path):
    progress: list[float] = []
    folders = tiny.ensure_all([SCOUT, LLAMA, SCOUT], tmp_path, progress.append)
    assert folders == [spec.folder(tmp_path) for spec in (SCOUT, LLAMA, SCOUT)]
    assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == sorted({path.name for path in folders})
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    again = tiny.ensure(LLAMA, tmp_path / "here")  # a process of its own gives the same weights as this one
    for file in ("model.safetensors", "tokenizer.json"):
        assert (again / file).read_bytes() == (folders[1] / file).read_bytes()


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_no_half_written_model(tmp_path):
    code = (
        "import sys; from pathlib import Path; from marl_verl_tiny import model as tiny;"
        "specs = [tiny.TinyModel('inventory', [agent], steps=20000, batch_size=1) for agent in ('holder', 'asker')];"
        "tiny.ensure_all(specs, Path(sys.argv[1]))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(alive(tmp_path)) == 2, 120)
    caller.send_signal(signal.SIGINT)
    _, errors = caller.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert not alive(tmp_path)
    assert not list(tmp_path.glob("tiny/.*"))


def alive(cache: Path) -> list[int]:
    """The processes that make models for a cache folder."""
    listing = subprocess.run(["ps", "-axww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
    workers = [line.split(maxsplit=1) for line in listing.splitlines() if f"marl_verl_tiny.model {cache}" in line]
    return [int(pid) for pid, _ in workers]
