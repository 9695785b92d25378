"""Count the query-key pairs that an attention mask keeps: the number depends on the mask's values, not only on shapes."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import NeedsRealTensors
from ..ops import BASE, Formula
from ..ops._masks import MASKS, STARTS, causal_pairs, corner_of, given_to, sizes_of, triangle
from ..records import Call, Operation, Spec, specs_in
from ..records.facts import ATTENTION, ATTENTIONS, SHARE, pairs_in, with_facts
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, disable_current_modes, is_fake

ATTENTION_BACKWARD = "attention_backward"
PRODUCT, SOFTMAX, SUM = "matmul", "softmax_backward", "sum"


def may_have_mask(operation: Operation) -> bool:
    """Return whether an operation is attention with more tensors than query, key and value."""
    return operation.op in ATTENTIONS and len([*specs_in((operation.args, operation.kwargs))]) > 3


class Masks:
    """The attention masks of a run. A mask that layers share is read once."""

    def __init__(self) -> None:
        self._read: dict[Any, tuple[weakref.ref[Any], int]] = {}

    def with_pairs_left(
        self, formula: Formula, target: Any, arguments: tuple[tuple[Any, ...], Mapping[str, Any]], out: Any, must: bool
    ) -> Any:
        """Return the spec of an attention result (forward or backward) with the number of unmasked pairs as the fact ``pairs``.

        A mask on meta, or a fake mask, has no values to count. Then the fact is omitted or, with ``must``, NotImplementedError is raised.
        """
        result = spec_of(out)
        try:
            pairs = pairs_left(formula, target, *arguments, out, self._count_kept)
        except NotImplementedError:
            if must:
                raise
            return result
        return with_facts(result, pairs=pairs)

    def _count_kept(self, mask: torch.Tensor) -> int:
        """Return :func:`count_unmasked` of a mask, cached until the mask is written to."""
        if mask.is_inference():  # such a mask has no version counter, so a cached count could be stale
            return count_unmasked(mask)
        storage = mask.untyped_storage()
        key = storage._cdata, mask.storage_offset(), mask.shape, mask.stride(), mask.dtype, mask._version
        reference, count = self._read.get(key, (None, 0))
        if reference is None or reference() is None:  # a new storage may reuse a freed address
            count = count_unmasked(mask)
            self._read[key] = weakref.ref(storage), count
        return count


def count_unmasked(mask: torch.Tensor) -> int:
    """Return the number of unmasked elements of a mask: elements that are True, or greater than the dtype's lowest number."""
    repeats = [dim for dim, stride in enumerate(mask.stride()) if stride == 0]
    once = mask
    for dim in repeats:  # read each element of an expanded mask once
        once = once.narrow(dim, 0, 1)
    kept = once if once.dtype is torch.bool else once > torch.finfo(once.dtype).min
    return int(kept.count_nonzero()) * (mask.numel() // once.numel())


def with_shares(calls: Sequence[Call], owner_of: Mapping[int, int]) -> Sequence[Call]:
    """Return a run's calls; add the share of pairs that the mask keeps to calls that compute attention's gradients pair by pair.

    ``owner_of`` maps the index of a backward call to the index of its forward call. A fused backward kernel gets the mask itself. If
    that mask has no values, the number of pairs is copied from the forward call.
    """
    changed: dict[int, Call] = {}
    last_by_pairs: dict[int, int] = {}  # for each forward call, its last backward call that worked pair by pair
    for index, owner in owner_of.items():
        forward, backward = calls[owner].operation, calls[index].operation
        left = _pairs_of(forward) if forward.op == ATTENTION else None
        if left is None:
            continue
        previous = last_by_pairs.get(owner, index)
        if backward.op == ATTENTION_BACKWARD and pairs_in(backward.out) is None:  # a meta mask has no values
            changed[index] = calls[index]._replace(
                operation=backward._replace(out=with_facts(backward.out, pairs=left))
            )
        elif _is_of_pairs(backward, calls[previous].op):
            key = {**dict(zip(("query", "key"), forward.args, strict=False)), **forward.kwargs}["key"]
            all_pairs = math.prod(next(specs_in(forward.out))[:-1]) * key[-2]
            changed[index] = _with_share(calls[index], left, all_pairs, summed=backward.op == PRODUCT)
            # The product before this call computed the gradients of the attention weights, so it gets the same share of pairs.
            if calls[previous].op == PRODUCT and backward.op != PRODUCT:
                changed[previous] = _with_share(calls[previous], left, all_pairs, summed=False)
            last_by_pairs[owner] = index
    return [changed.get(index, call) for index, call in enumerate(calls)] if changed else calls


def _pairs_of(forward: Operation) -> int | None:
    """Return the number of pairs that the mask of an attention call kept; None if unknown."""
    pairs: int | None = pairs_in(forward.out)
    formula = None if pairs is not None else BASE.find(forward.target)
    return (
        pairs if formula is None else causal_pairs(formula, forward.target, forward.args, forward.kwargs, forward.out)
    )


def _is_of_pairs(operation: Operation, previous_op: str) -> bool:
    """Return whether an operation of attention's backward works pair by pair.

    ``previous_op`` is the last op before it that worked pair by pair. Shapes do not show whether an operation does: if a head has
    as many keys as elements, gradients of queries have the shape of gradients of scores. All products, the softmax and the
    dropout work pair by pair. A ``mul`` of two tensors belongs to the dropout, since queries and keys are scaled by a number. A
    sum works pair by pair right after the softmax, where it computes the gradient of a trainable mask. Other sums are over keys
    or values that several heads share. An add of two gradients of one tensor is not part of attention.
    """
    if operation.op == "mul":
        return len([*operation.inputs()]) == 2
    return operation.op in (PRODUCT, SOFTMAX, "dropout_backward") or (operation.op == SUM and previous_op == SOFTMAX)


def _with_share(call: Call, left: int, all_pairs: int, *, summed: bool) -> Call:
    out = with_facts(call.out, **{SHARE: (left, all_pairs, summed)})
    return call._replace(operation=call.operation._replace(out=out))


def with_requires_grad(args: tuple[Any, ...], specs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the specs of arguments, each with its tensor's ``requires_grad`` as the fact ``requires_grad``.

    A fused backward kernel has no argument for the requested gradients: it computes all of them.
    """
    return tuple(
        spec.with_facts(requires_grad=arg.requires_grad) if isinstance(spec, Spec) else spec
        for arg, spec in zip(args, specs, strict=True)
    )


def pairs_left(
    formula: Formula,
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    out: Any,
    count_kept: Callable[[torch.Tensor], int] = count_unmasked,
) -> int:
    """Return the number of query-key pairs that one attention call computes, over all batches and heads.

    ``count_kept(mask)`` returns the number of unmasked elements.

    Raises NotImplementedError for a mask on the meta device, which has no values, and for nested tensors.
    """
    arguments = given_to(formula, target, args, kwargs)
    query = arguments["query"]
    if query.is_nested:
        raise NotImplementedError(
            "no mask is read for a nested tensor: its query-key pairs are counted from the shapes of the tensors inside it"
        )
    batch, n, s = sizes_of(formula, target, arguments, out)
    corner = corner_of(arguments)
    starts = [arguments[name] for name in STARTS if arguments.get(name) is not None and arguments[name].numel()]
    with DisableTorchFunction(), disable_current_modes():
        if starts:
            lengths = [_values(start).diff().tolist() for start in starts]
            return int(query.shape[-2]) * sum(triangle(q, k, corner) for q, k in zip(*lengths, strict=True))
        mask = next((arguments[name] for name in MASKS if isinstance(arguments.get(name), torch.Tensor)), None)
        if isinstance(arguments.get("block_mask"), tuple):
            mask = _flex_mask(arguments["block_mask"], n, s, query.device)
        biases = sys.modules.get("torch.nn.attention.bias")  # importing it would load the compiler
        if biases is not None and isinstance(mask, biases.CausalBias):
            corner, mask = int(mask.variant), None
        if mask is None or mask.numel() == 0:
            return batch * triangle(n, s, corner)
        return int(batch * n * s * count_kept(_values(mask)) // mask.numel())


def _values(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "meta" or is_fake(type(tensor)):
        raise NeedsRealTensors(
            "cannot count the pairs that an attention mask keeps: a mask on the meta device, or a fake mask, has no values"
        )
    return tensor


def _flex_mask(block_mask: tuple[Any, ...], n: int, s: int, device: torch.device) -> torch.Tensor:
    from torch.nn.attention.flex_attention import create_mask

    blocks, mask_mod = block_mask[2], block_mask[-1]
    batch, heads = (math.prod(blocks.shape[i : i + 1]) for i in (0, 1))
    return create_mask(mask_mod, batch, heads, n, s, device=device)
