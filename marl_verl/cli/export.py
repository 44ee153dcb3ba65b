"""`marl-verl export RUN --policy NAME --output DIR`: write a trained policy for transformers and vLLM."""

import argparse
from pathlib import Path

from marl_verl.run.checkpoint.export import check_output, choose, export
from marl_verl.run.terminal import harmless, show

EXAMPLES = """
The folder has weights (safetensors), config, tokenizer with chat template and generation config. A policy that trained
an adapter (LoRA) is written as an adapter in peft's format, which names its base model; --merge writes a full model.
Weights keep the precision of training. No process is started, and DIR is written completely or not at all.

  marl-verl export runs/inventory-1 --policy asker --output asker --step 20   default: the latest complete checkpoint
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write a trained policy as a Hugging Face folder, or as an adapter."
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--policy", metavar="NAME", required=True, help="a trained policy")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder, or an empty one")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint step (default: the latest complete one)")
    parser.add_argument("--merge", action="store_true", help="merge an adapter into its base model")


def run(options: argparse.Namespace) -> int:
    check_output(options.output)
    source = choose(options.folder, options.policy, options.step)
    kind = export(source, options.output, options.merge)
    show(harmless(f"wrote '{options.output}': policy {source.policy} of step {source.step} as {kind}"))
    return 0
