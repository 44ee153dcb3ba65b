"""verl's training worker with a value model, loaded with the attention that the config names.

Touches verl: `TrainingWorker`, and `load_valuehead_model`, which asks for flash-attention whatever the config says.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.utils import model as verl_model
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker


class CriticWorker(TrainingWorker):
    """A worker of verl's whose model gives a value for each token."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        verl_model.load_valuehead_model = load_value_model  # verl's engine looks it up when it builds the model
        super().__init__(config)


def load_value_model(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> Any:
    """A model with one output for each token; a head that the folder does not have starts at 0, not at random."""
    from transformers import AutoModelForTokenClassification

    options = {"dtype": torch_dtype, "config": model_config, "trust_remote_code": trust_remote_code}
    model, info = AutoModelForTokenClassification.from_pretrained(local_path, **options, output_loading_info=True)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in info["missing_keys"]:
            if name in parameters and parameters[name].shape[0] == 1:
                parameters[name].zero_()
    return model
