"""The tasks of a run as a verl dataset: JSON lines in the run directory, one task per row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset


class TaskDataset(Dataset):
    """A `data.custom_cls` of verl. Each row is `{"task": the task as JSON, "raw_prompt": its prompt, "index": int}`."""

    def __init__(
        self, data_files: str, tokenizer: Any, processor: Any, config: Any, max_samples: int = -1, is_train: bool = True
    ) -> None:
        lines = Path(data_files).read_text().splitlines()
        self.rows = lines if max_samples < 0 else lines[:max_samples]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"task": self.rows[index], "raw_prompt": json.loads(self.rows[index])["prompt"], "index": index}
