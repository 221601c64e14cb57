"""Decode step of a Llama-like model with few, large products: queries, keys and values in one, gate and up in one.

The loaded model's weights become views into the fused ones, so output and memory do not change. A model is recognized
by its modules, not its name; the caller verifies the step (`llmtrack.engines.torch.decoding`), since a model with the
same modules may scale or rotate differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention

# Names of Llama's modules.
_BODY = frozenset({"embed_tokens", "layers", "norm", "rotary_emb"})
_LAYER = frozenset({"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
_ATTENTION = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
_ATTENTION_NORMS = frozenset({"q_norm", "k_norm"})
_MLP = frozenset({"gate_proj", "up_proj", "down_proj", "act_fn"})

_LONGEST, _LARGEST_GROUP = 1024, 16
"""Limits of the attention kernel (`kernels.attend`): cache length, and query heads per key head."""


@dataclass(frozen=True)
class FusedCache:
    """Keys and values of all layers, and the rotary angles of all positions.

    Attributes:
        keys: per layer, (rows, key heads, length, width).
        values: likewise.
        cos: (positions, width).
        sin: (positions, width).
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    cos: torch.Tensor
    sin: torch.Tensor


class FusedModel:
    """A Llama-like model, one accepted by `unfusible`, as a `StepModel`."""

    name = "fused"
    static_prefill = True

    def __init__(self, model: Any) -> None:
        body = model.base_model
        self._embedding, self._rotary = body.embed_tokens, body.rotary_emb
        self._layers = [FusedLayer(layer) for layer in body.layers]
        self._norm, self._head = body.norm, model.get_output_embeddings()
        self._by_kernels = _has_kernels(self._layers[0])

    def new_cache(self, rows: int, length: int, first_position: int) -> FusedCache:
        """Return an empty cache for the given rows and tokens."""
        like, first = self._embedding.weight, self._layers[0]
        shape = (rows, first.key_heads, length, first.width)
        keys, values = ([like.new_zeros(shape) for _ in self._layers] for _ in range(2))
        positions = torch.arange(first_position + length, device=like.device)[None]
        cos, sin = self._rotary(like.new_zeros((1, 1, 1)), positions)
        return FusedCache(keys, values, cos[0].clone(), sin[0].clone())

    def begin(self, cache: FusedCache) -> None:
        """Do nothing: stale cache content is masked until overwritten."""

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor, cache: FusedCache
    ) -> torch.Tensor:
        """See `StepModel.logits`."""
        return self._run(lambda part: part, ids, positions, slots, mask, cache)

    def compiled(self, compiler: Callable[[Any], Any]) -> Callable[..., torch.Tensor]:
        """Return `logits` with its parts compiled; a layer is compiled once for all, which have equal shapes."""
        parts = {part: compiler(part) for part in (_begin, _layer, _end)}
        return lambda *inputs: self._run(parts.__getitem__, *inputs)

    def _run(
        self,
        use: Callable[[Any], Any],
        ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        mask: torch.Tensor,
        cache: FusedCache,
    ) -> torch.Tensor:
        by_kernels = self._by_kernels and ids.shape[1] == 1
        short = self._layers[0].has_kernel and cache.keys[0].shape[2] <= _LONGEST
        attend = _attend_by_kernel if by_kernels and short else _attend
        add = _add_by_kernel if by_kernels and len(ids) == 1 else _add
        run_layer = use(_layer)
        hidden, cos, sin = use(_begin)(self._embedding, ids, positions, cache.cos, cache.sin)
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            hidden = run_layer(attend, add, layer, hidden, cos, sin, slots, mask, keys, values)
        logits: torch.Tensor = use(_end)(self._norm, self._head, hidden)
        return logits


class FusedLayer(nn.Module):
    """The fused weights of a layer with Llama's modules; the layer's own become views."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.width = int(attention.head_dim)
        self.heads = attention.q_proj.out_features // self.width
        self.key_heads = attention.k_proj.out_features // self.width
        self.scale = float(getattr(attention, "scaling", self.width**-0.5))
        self.qkv, self.qkv_bias = _fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self.gate_up, self.gate_up_bias = _fuse(mlp.gate_proj, mlp.up_proj)
        self.o_proj, self.down_proj, self.act_fn = attention.o_proj, mlp.down_proj, mlp.act_fn
        self.before_attention, self.before_mlp = layer.input_layernorm, layer.post_attention_layernorm
        self.q_norm: Any = getattr(attention, "q_norm", None)
        self.k_norm: Any = getattr(attention, "k_norm", None)

    @property
    def has_kernel(self) -> bool:
        """Whether the attention kernel supports it: common head width and norm, few query heads per key head."""
        norms = (norm for norm in (self.q_norm, self.k_norm) if norm is not None)
        return (
            self.width in (32, 64, 128)
            and self.heads // self.key_heads <= _LARGEST_GROUP
            and all(_is_rms_norm(norm, self.width) for norm in norms)
        )


def _begin(
    embedding: nn.Module, ids: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return embedding(ids), cos[positions][:, None], sin[positions][:, None]


def _layer(
    attend: Callable[..., torch.Tensor],
    add: Callable[..., torch.Tensor],
    layer: FusedLayer,
    hidden: torch.Tensor,
    *state: torch.Tensor,
) -> torch.Tensor:
    """Return the (rows, columns, width) states after a layer, and store each token's key and value.

    Args:
        attend: maps the layer, its fused queries, keys and values, and `state` to the output of the heads.
        add: adds the product of a module with its second argument to the first.
        hidden: the states before it.
        state: cos, sin, slots, mask, and the layer's cached keys and values.
    """
    fused = linear(layer.before_attention(hidden), layer.qkv, layer.qkv_bias)
    hidden = add(hidden, attend(layer, fused, *state), layer.o_proj)
    gate, up = linear(layer.before_mlp(hidden), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    return add(hidden, layer.act_fn(gate) * up, layer.down_proj)


def _attend(
    layer: FusedLayer,
    fused: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    mask: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    rows, columns, _ = fused.shape
    parts = fused.view(rows, columns, -1, layer.width)
    query, key, value = parts.split((layer.heads, layer.key_heads, layer.key_heads), dim=2)
    if layer.q_norm is not None:
        query, key = layer.q_norm(query), layer.k_norm(key)
    query, key = (_rotate(heads.transpose(1, 2), cos, sin) for heads in (query, key))
    keys.index_copy_(2, slots, key)
    values.index_copy_(2, slots, value.transpose(1, 2))
    output = scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=layer.scale, enable_gqa=layer.heads != layer.key_heads
    )
    return output.transpose(1, 2).reshape(rows, columns, -1)


def _attend_by_kernel(layer: FusedLayer, fused: torch.Tensor, *state: torch.Tensor) -> torch.Tensor:
    """Like `_attend`, for one token per row in a single kernel."""
    from llmtrack.engines.torch.fast.kernels import attend

    norms = None
    if layer.q_norm is not None:
        norms = layer.q_norm.weight, layer.k_norm.weight, layer.q_norm.variance_epsilon
    return attend(layer.heads, layer.scale, norms, fused, *state)


def _add(hidden: torch.Tensor, states: torch.Tensor, product: nn.Module) -> torch.Tensor:
    added: torch.Tensor = hidden + product(states)
    return added


def _add_by_kernel(hidden: torch.Tensor, states: torch.Tensor, product: nn.Linear) -> torch.Tensor:
    """Like `_add`, for one token of one row in a single kernel."""
    from llmtrack.engines.torch.fast.kernels import added

    base = hidden if product.bias is None else hidden + product.bias
    return added(base, states, product.weight)


def _end(norm: nn.Module, head: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = head(norm(hidden[:, -1]))
    return logits


def _has_kernels(layer: FusedLayer) -> bool:
    """Return whether the custom single-token kernels can be used: on a GPU, in 16 bits."""
    weight = layer.qkv
    half = weight.dtype in (torch.float16, torch.bfloat16)
    return half and weight.device.type == "cuda" and find_spec("triton") is not None


def _is_rms_norm(module: Any, width: int) -> bool:
    """Return whether a norm looks like an RMS norm; verified with the step."""
    return hasattr(module, "variance_epsilon") and tuple(module.weight.shape) == (width,)


def _rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


def _fuse(*linears: nn.Linear) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Concatenate the weights of products with a common input; theirs become views."""
    weight = _concatenate([module.weight for module in linears])
    biases = [module.bias for module in linears]
    bias = None if biases[0] is None else _concatenate(biases)
    begin = 0
    for module in linears:
        rows = slice(begin, begin + module.out_features)
        module.weight = nn.Parameter(weight[rows], requires_grad=False)
        if bias is not None:
            module.bias = nn.Parameter(bias[rows], requires_grad=False)
        begin += module.out_features
    return weight, bias


def _concatenate(tensors: list[Any]) -> nn.Parameter:
    return nn.Parameter(torch.cat([tensor.detach() for tensor in tensors]), requires_grad=False)


def unfusible(model: Any) -> str:
    """Explain why the modules of a model are not those of Llama; empty if they are."""
    body = model.base_model
    if body is model or model.get_output_embeddings() is None:
        return "it has no separate body and head"
    if not _has(body, _BODY):
        return "its body is not that of Llama"
    for layer in body.layers:
        if not (_has(layer, _LAYER) and _has(layer.self_attn, _ATTENTION, _ATTENTION_NORMS) and _has(layer.mlp, _MLP)):
            return "its layers are not those of Llama"
        attention, mlp = layer.self_attn, layer.mlp
        projections = (
            *(getattr(attention, name) for name in sorted(_ATTENTION)),
            *(getattr(mlp, name) for name in sorted(_MLP - {"act_fn"})),
        )
        if not all(type(module) is nn.Linear and type(module.weight) is nn.Parameter for module in projections):
            return "its weights are quantized or packed"
        groups = (("q_proj", "k_proj", "v_proj"), attention), (("gate_proj", "up_proj"), mlp)
        for names, holder in groups:
            if len({getattr(holder, name).bias is None for name in names}) > 1:
                return "some of its products have a bias and some have none"
    return ""


def _has(module: Any, names: frozenset[str], optional: frozenset[str] = frozenset()) -> bool:
    """Return whether a module has exactly these children, plus all or none of the optional ones."""
    return {name for name, _ in module.named_children()} in (names, names | optional)
