"""Training engines that compute a beginning that several rows share once, with the gradient of separate rows.

Rows of a micro-batch become a forest (`forest.py`). The model reads its trees, each as one sequence; verl's outputs and
losses see rows as before, so that only floating-point rounding differs:

    rows    [p p p p | a a a]  [p p p p | b b]  [p p p p a a a q | c c]
    tree    [p p p p   a a q c   b]                the last token of a row predicts nothing

A token sees the tokens on its path, by a mask of the attention (`masks`), and logits are computed of sampled tokens
only. Where attention takes no such mask, a tree is one path: rows that begin with one another, as in a conversation.
"""

from typing import Any
from unittest import mock

import torch
from tensordict import TensorDict
from torch import distributed
from torch.nn.utils.rnn import pad_sequence
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.workers.engine.fsdp import transformer_impl

from marl_verl.backend.learning.batches import jagged, select
from marl_verl.backend.learning.forest import Forest, bins

SHARE = "share_prefixes"  # an option of calls to training workers: whether rows share what they have in common
PLAIN = 0.1  # a mask is obeyed if what hidden tokens change is below this part of what they change without a mask


def share_prefixes(engine: Any) -> None:
    """Let an engine of verl, whose model is loaded, compute shared prefixes once in calls with the option `SHARE`."""
    kind = type(engine)
    engine.__class__ = type(kind.__name__, (SharedPrefixes, kind), {})
    engine.prepare()


def limit(data: TensorDict) -> int:
    """Tokens of a micro-batch on all devices that divide its sequences; all of them where it has a number of rows."""
    most = tu.get(data, "max_token_len_per_gpu", default=None) or len(data["input_ids"].values())
    return int(most * tu.get(data, "sp_size", default=1))


def of_rows(data: TensorDict, **_: Any) -> tuple[list[TensorDict], None]:
    """verl's micro-batches of a number of rows, of which the last one may have fewer, as many on each rank."""
    size, rows = tu.get(data, "micro_batch_size_per_gpu"), range(len(data))
    return [select(data, rows[first : first + size]) for first in rows[::size]], None


class SharedPrefixes(transformer_impl.FSDPEngine):
    """Goes before an `FSDPEngineWithLMHead` or an `FSDPEngineWithValueHead`. `masks`: whether trees may branch."""

    module: Any
    _shared: "Shared | None" = None  # of the micro-batch in progress

    def prepare(self) -> None:
        """Find out what attention the loaded model has."""
        self._head = None if hasattr(self.module, "score") else self.module.get_output_embeddings()
        self.masks = obeys_masks(self)
        if self._head is not None:
            self._head.register_forward_pre_hook(self._select)

    def _select(self, head: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        """What the output layer gets: the hidden states before sampled tokens."""
        return (self._shared.select(inputs[0]),) if self._shared is not None and self.masks else None

    def forward_backward_batch(self, data: TensorDict, *args: Any, **options: Any) -> Any:
        prepare = self._micro_batches if tu.get(data, SHARE, default=False) else transformer_impl.prepare_micro_batches
        if not tu.get(data, "use_dynamic_bsz", default=True):
            prepare = of_rows
        with mock.patch.object(transformer_impl, "prepare_micro_batches", prepare):
            return super().forward_backward_batch(data, *args, **options)

    def _micro_batches(self, data: TensorDict, dp_group: Any = None, **_: Any) -> tuple[list[TensorDict], list[Any]]:
        """(micro-batches, rows of each): whole trees, at most `limit` tokens, or parts if ranks need more batches."""
        forest = Forest(data["input_ids"], self.masks, limit(data))
        parts = [[forest.rows[tree] for tree in group] for group in bins(forest.sizes, limit(data))]
        count = torch.tensor(len(parts), device=get_device_name())
        distributed.all_reduce(count, distributed.ReduceOp.MAX, dp_group)  # each takes part in every forward pass
        while len(parts) < int(count):
            largest = parts.pop(max(range(len(parts)), key=lambda part: sum(map(len, parts[part]))))
            rows = largest if len(largest) > 1 else [[row] for row in largest[0]]
            parts += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
        if len(parts) == 1:
            return [data], [[*range(len(data))]]
        indices = [[row for tree in part for row in tree] for part in parts]
        return [select(data, rows) for rows in indices], indices

    def forward_step(self, *args: Any, **options: Any) -> Any:
        try:
            return super().forward_step(*args, **options)
        finally:
            self._shared = None

    def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
        self._shared = Shared(micro_batch, self.masks) if tu.get(micro_batch, SHARE, default=False) else None
        if self._shared is None:
            return super().prepare_model_inputs(micro_batch)
        inputs, output_args = super().prepare_model_inputs(self._shared.trees)
        if self.masks:
            inputs["attention_mask"] = mask_of(self._shared.last)
        return inputs, output_args

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, *rest: Any, **options: Any
    ) -> Any:
        if (shared := self._shared) is None:
            return super().prepare_model_outputs(output, output_args, micro_batch, *rest, **options)
        if not self.masks:
            of_trees = super().prepare_model_outputs(output, output_args, shared.trees, *rest, **options)
            return {name: shared.of_rows(values) for name, values in of_trees.items()}
        if self._head is None:
            output.logits = shared.select(output.logits)
        micro_batch = micro_batch.copy()
        tu.assign_non_tensor(micro_batch, use_remove_padding=True)  # logits of sampled tokens are packed
        packed = shared.arguments(output_args)
        return super().prepare_model_outputs(output, packed, micro_batch, *rest, **options)

    def _gather_and_unpad_packed(self, tensor: torch.Tensor, pad_size: int) -> torch.Tensor:
        if self._shared is None or not self.masks:
            return super()._gather_and_unpad_packed(tensor, pad_size)
        return self._shared.spread(tensor)


class Shared:
    """The trees of a micro-batch, and where they predict its n sampled tokens (`loss_mask`).

    Attributes:
        trees: the batch that the model reads, in verl's format; those with branches are padded.
        last: `Forest.layout`'s, [trees, longest]. Padding sees itself and what is before it.
    """

    def __init__(self, micro_batch: TensorDict, masks: bool) -> None:
        tokens, loss_mask = micro_batch["input_ids"], micro_batch["loss_mask"]
        starts, device = tokens.offsets(), tokens.device
        trees, tree, columns = Forest(tokens, masks, limit(micro_batch)).layout()
        ids, depths, last = zip(*(torch.from_numpy(layout).to(device) for layout in trees), strict=True)
        self.last = pad_sequence(last, batch_first=True, padding_value=max(map(len, last)))
        self.trees = TensorDict({"input_ids": jagged(ids), "position_ids": jagged(depths)}, batch_size=len(ids))
        options = {name: tu.get(micro_batch, name) for name in set(micro_batch.keys())}
        options = {name: value for name, value in options.items() if not isinstance(value, torch.Tensor | list)}
        tu.assign_non_tensor(self.trees, **options | ({"use_remove_padding": False} if masks else {}))
        chosen = loss_mask.values().nonzero()[:, 0]
        if not len(chosen):  # of padding rows: the loss must depend on the weights, of which other ranks wait
            chosen = chosen.new_zeros(1)
        rows = torch.repeat_interleave(loss_mask.offsets().diff())[chosen]
        self._tokens = tokens
        # the token before each, among those of all rows
        self._places = chosen + (starts - loss_mask.offsets())[1:][rows] - 1
        self._tree = torch.from_numpy(tree).to(device)[rows]
        self._columns = torch.from_numpy(columns).to(device)[self._places]

    def select(self, values: torch.Tensor) -> torch.Tensor:
        """What predicts the sampled tokens, [1, n, ...], of values of trees, [trees, longest, ...]."""
        return values[self._tree, self._columns][None]

    def arguments(self, of_trees: dict[str, Any]) -> dict[str, Any]:
        """The arguments of verl's `prepare_model_outputs`, as if sampled tokens were packed rows."""
        labels, temperature = self._tokens.values()[self._places + 1], of_trees["temperature"][self._tree]
        return {**of_trees, "input_ids_rmpad_rolled": labels, "temperature_rmpad": temperature, "pad_size": 0}

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Values of sampled tokens, [n], at the tokens before them among those of all rows; 0 elsewhere."""
        return values.new_zeros(len(self._tokens.values())).index_copy(0, self._places, values)

    def of_rows(self, values: torch.Tensor) -> torch.Tensor:
        """`spread`, as rows, of the values of all tokens of trees; both nested."""
        chosen = values.values()[values.offsets()[self._tree] + self._columns]
        return torch.nested.nested_tensor_from_jagged(self.spread(chosen), self._tokens.offsets())


def mask_of(last: torch.Tensor) -> torch.Tensor:
    """Which columns a column sees, from `last`, [trees, n]: [trees, 1, n, n]."""
    columns = torch.arange(last.shape[-1], device=last.device)
    return ((columns <= columns[:, None]) & (last[:, None] >= columns[:, None]))[:, None]


def obeys_masks(engine: Any) -> bool:
    """Whether the attention of a loaded model takes a mask of any form, as `sdpa` of full attention does. Three tokens
    with two continuations are computed as a tree. The second one must be as if it stood alone."""
    module, settings = engine.module, engine.engine_config
    config = module.config.get_text_config()
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    windows = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    limits = settings.max_token_len_per_gpu, settings.infer_max_token_len_per_gpu  # of a row, or None
    short = windows and not all(limit and limit <= windows for limit in limits)
    divided = settings.ulysses_sequence_parallel_size > 1 or settings.use_fused_kernels
    if divided or short or config._attn_implementation != "sdpa" or {*layers} - {"full_attention", "sliding_attention"}:
        return False
    device = next(module.parameters()).device
    rows = torch.tensor([1, 2, 3, 4, 5, 0]), torch.tensor([1, 2, 3, 5, 4, 0])  # trees have no last tokens
    (tree,), _, _ = Forest(jagged(rows), True, 10).layout()
    ids, depths, ends = torch.from_numpy(tree).to(device)[:, None]

    def final(inputs: torch.Tensor, **options: Any) -> torch.Tensor:
        """The hidden state of the last token: a new head may compute 0."""
        output = module(input_ids=inputs, use_cache=False, output_hidden_states=True, **options)
        return output.hidden_states[-1][0, -1]

    try:
        with engine.eval_mode(), torch.no_grad():
            alone = final(ids.new_tensor([[1, 2, 3, 5, 4]]))
            tree = final(ids, position_ids=depths, attention_mask=mask_of(ends))
            plain = final(ids, position_ids=depths, attention_mask=mask_of(torch.full_like(ends, ids.shape[1])))
    except (TypeError, ValueError, IndexError):  # a model that takes no such mask
        return False
    return bool((tree - alone).abs().max() < PLAIN * (plain - alone).abs().max())
