"""verl's training worker with a value model, loaded with the configured attention implementation.

Uses verl internals: `TrainingWorker`, and `load_valuehead_model`, which always requests flash-attention.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import model as verl_model
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from marl_verl.backend.learning.prefixes import share_prefixes


class CriticWorker(TrainingWorker):
    """verl's `TrainingWorker` with a model that returns a value for each token."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        verl_model.load_valuehead_model = load_value_model  # verl's engine looks it up when it builds the model
        super().__init__(config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def reset(self) -> None:
        """Load the model, and build optimiser and schedule."""
        super().reset()
        share_prefixes(self.engine)


def load_value_model(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> Any:
    """Load a model with one output per token; a value head that the folder lacks is initialised to 0."""
    from transformers import AutoModelForTokenClassification

    options = {"dtype": torch_dtype, "config": model_config, "trust_remote_code": trust_remote_code}
    model, info = AutoModelForTokenClassification.from_pretrained(local_path, **options, output_loading_info=True)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in info["missing_keys"]:
            if name in parameters and parameters[name].shape[0] == 1:
                parameters[name].zero_()
    return model
