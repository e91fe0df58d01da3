"""List the layers of a decoder-only language model as serving engines run them, from the model's `config.json`.

Projections of the same input, such as queries, keys and values, form a single matmul. The phase `prefill` computes
logits only for the last token of the prompt.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.interop.model_config import (
    ConfigFields,
    Experts,
    Quantization,
    config_document,
    parsed_config,
)
from kernrec.op.equivalent import MOST_VECTORS
from kernrec.op.workload import Layer, Workload, layer_from, printable
from kernrec.util.light_dataclass import dataclass

_DENSE = ("intermediate_size", "ffn_dim", "n_inner")
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2}
"""Default n of models in which only every n-th layer has full attention, keyed by `model_type`."""
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    queries: int
    """Width of the compressed queries, or 0 if queries are not compressed."""
    keys: int
    """Width of the compressed keys and values, which the cache stores."""
    rope: int
    """Columns per head with rotary position embedding. All heads share these columns of the keys."""
    plain: int
    value: int


@dataclass(frozen=True)
class Decoder:
    """Layer sizes of a decoder-only language model."""

    title: str
    kind: str
    hidden: int
    vocabulary: int
    layers: int
    sparse_layers: int
    """Number of layers with a mixture of experts. The other layers have one dense feed-forward network."""
    windowed_layers: int
    """Number of layers whose queries attend only to the last `window` keys."""
    window: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: Latent | None
    """Sizes of multi-head latent attention, or None if the model has ordinary attention."""
    intermediate: int
    """Intermediate size of the dense feed-forward networks, or 0 if all layers have experts."""
    experts: Experts | None
    shared: int
    """Intermediate size of the shared experts, which process every token, or 0 if there are none."""
    positions: int | None
    """Maximum number of tokens that the model accepts, or None if the config does not state it."""
    tied: bool | None
    """Whether output projection and token embedding share their weights, or None if the config does not state it."""
    dtype: str
    quantization: Quantization


class _DecoderFields(ConfigFields):
    """Reader of the config fields that determine the layer sizes of a language model."""

    def decoder(self, title: str) -> Decoder:
        layers = self.needed("how many layers the model has", "num_hidden_layers", "n_layer")
        if layers > _MOST_LAYERS:
            raise UsageError(f"{self.place}: num_hidden_layers is {layers}; at most {_MOST_LAYERS} are accepted")
        heads = self.needed("how many heads attention has", "num_attention_heads", "n_head")
        kind = self.fields.get("model_type")
        if not isinstance(kind, str) or not kind:
            raise UsageError(f"{self.place} does not say which architecture the model has: model_type is missing")
        hidden, experts, latent = self.hidden(), self.experts(), self.latent_sizes()
        sparse = self.sparse_layers(layers) if experts is not None else 0
        dense = self.needed("how wide a feed-forward network is", *_DENSE) if sparse < layers else 0
        head_dim = self.number("head_dim")
        if head_dim is None and latent is None and hidden % heads:
            raise UsageError(f"{self.place}: head_dim is missing, and {heads} heads do not divide hidden_size {hidden}")
        window = self.number("sliding_window") or 0
        tied = self.fields.get("tie_word_embeddings")
        return Decoder(
            title=title,
            kind=kind[:40],
            hidden=hidden,
            vocabulary=self.needed("how large the vocabulary is", "vocab_size"),
            layers=layers,
            sparse_layers=sparse,
            windowed_layers=self.windowed_layers(layers) if window else 0,
            window=window,
            heads=heads,
            kv_heads=self.number("num_key_value_heads") or heads,
            head_dim=head_dim or hidden // heads,
            latent=latent,
            intermediate=dense,
            experts=experts,
            shared=self.shared_width() if sparse else 0,
            positions=self.positions(),
            tied=tied if isinstance(tied, bool) else None,
            dtype=self.dtype(),
            quantization=self.quantization(),
        )

    def positions(self) -> int | None:
        """Return the maximum number of tokens, scaled by `rope_scaling`, or None if the config does not state it."""
        most = self.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
        scaling = self.fields.get("rope_scaling")
        if most and isinstance(scaling, dict) and scaling.get("original_max_position_embeddings") == most:
            factor = scaling.get("factor")
            if isinstance(factor, int | float):
                return int(most * min(max(factor, 1.0), 1e3))
        return most

    def latent_sizes(self) -> Latent | None:
        keys = self.number("kv_lora_rank")
        if keys is None:
            return None
        plain = self.needed("how wide a head is", "qk_nope_head_dim")
        rope, value = self.number("qk_rope_head_dim") or 0, self.number("v_head_dim") or plain
        return Latent(self.number("q_lora_rank") or 0, keys, rope, plain, value)

    def sparse_layers(self, layers: int) -> int:
        """Return how many of `layers` layers have experts: all but the first ones (DeepSeek), or every n-th (Qwen)."""
        dense = self.fields.get("mlp_only_layers")
        dense = {layer for layer in dense if type(layer) is int} if isinstance(dense, list) else set()
        step, first = self.number("decoder_sparse_step") or 1, self.number("first_k_dense_replace") or 0
        return sum(layer not in dense and (layer + 1) % step == 0 for layer in range(first, layers))

    def windowed_layers(self, layers: int) -> int:
        kinds = self.fields.get("layer_types")
        if isinstance(kinds, list):
            return sum(kind == "sliding_attention" for kind in kinds[:layers])
        if self.fields.get("use_sliding_window") is False:
            return 0
        every = self.number("sliding_window_pattern") or _PATTERNS.get(str(self.fields.get("model_type")), 0)
        return layers - layers // every if every else layers


PHASES = ("decode", "prefill")
DEFAULT_CONTEXT = 2048
"""Default length of the context in tokens."""
MOST_CONTEXT = 1 << 24


@dataclass(frozen=True)
class Family:
    """Properties of a `model_type` that the model's config does not state."""

    gated: bool = True
    """Whether feed-forward networks have a gate projection in addition to the up projection."""
    norm: str = "rmsnorm"
    norms: int = 2
    """Number of normalizations per layer that work on the hidden state."""
    head_norms: bool = False
    """Whether each attention head normalizes its queries and keys."""
    tied: bool = False
    """Whether output projection and token embedding share their weights if the config does not state it."""
    missing: str = ""
    """Description of parts of the model that are not in the list of layers, or an empty string."""


_BIASES = "biases of the linear layers"
_QWEN2 = Family(missing="biases of q, k and v")
_GEMMA = Family(norms=4, tied=True)
_DEEPSEEK = Family()
FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "ministral", "mixtral", "granite", "smollm3", "phi3", "minicpm"), Family()),
    **dict.fromkeys(("qwen2", "qwen2_moe"), _QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_moe", "olmo2", "olmoe", "glm4_moe"), Family(head_norms=True)),
    "gemma": Family(tied=True),
    "gemma2": _GEMMA,
    **dict.fromkeys(("gemma3", "gemma3_text"), Family(norms=4, head_norms=True, tied=True)),
    "glm4": Family(norms=4),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _DEEPSEEK),
    "phi": Family(gated=False, norm="layernorm", norms=1, missing=_BIASES),
    "phimoe": Family(norm="layernorm", missing=_BIASES),
    "starcoder2": Family(gated=False, norm="layernorm", tied=True, missing=_BIASES),
    **dict.fromkeys(("cohere", "cohere2"), Family(norm="layernorm", norms=1, tied=True)),
    "gpt_oss": Family(missing="biases and sinks of attention"),
}
"""Properties of supported models, keyed by `model_type`, from the reference implementations in `transformers`."""

_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_QUANTIZED = {"int8_w8a8": "i8", "int8_w8a16": "w8a16", "int4_w4a16": "w4a16"}


def model_workload(place: str, context: int | None = None, phase: str = PHASES[0], text: str | None = None) -> Workload:
    """Return the layers of a language model for one sequence.

    Args:
        place: Path of the model's `config.json`, or of its folder.
        context: For `prefill`, the number of tokens in the prompt. For `decode`, the number of tokens to which the new
            token attends, including itself. The default is `DEFAULT_CONTEXT`.
        phase: `decode` or `prefill`.
        text: Content of the file, or None to read the file.

    Raises:
        UsageError: The config lacks a field, the architecture is unknown, or the context is longer than the model
            accepts.
    """
    document, path, title = (
        config_document(place, False) if text is None else (parsed_config(text, place), place, Path(place).stem)
    )
    model = _DecoderFields(document, path).decoder(title)
    if model.kind not in FAMILIES:
        names = ", ".join(sorted(FAMILIES))
        raise UsageError(f"{place}: unknown architecture {model.kind!r}; known: {names}")
    if phase not in PHASES:
        raise unknown("phase", phase, PHASES)
    context = DEFAULT_CONTEXT if context is None else context
    if not 1 <= context <= (model.positions or MOST_CONTEXT):
        most = f"{model.positions} for {model.title}" if model.positions else f"{MOST_CONTEXT}"
        raise UsageError(f"context is {context} tokens; expected 1 to {most}")
    return _Layers(model, context, phase).workload(place)


class _Layers:
    """Builder of the workload of one model in one phase."""

    def __init__(self, model: Decoder, context: int, phase: str) -> None:
        self.model, self.context, self.decode = model, context, phase == "decode"
        self.family = FAMILIES[model.kind]
        self.rows = 1 if self.decode else context
        self.dtype = _DTYPES[model.dtype]
        self.left_out: list[str] = []
        self.notes: list[str] = []
        self.absorbed, self.cache = 0, 0

    def workload(self, place: str) -> Workload:
        model = self.model
        entries = [*self.attention(), *self.feed_forward(), *self.ends()]
        layers = tuple(self.layer(entry) for entry in entries)
        tied = self.family.tied if model.tied is None else model.tied
        what = f"decode, token {self.context}" if self.decode else f"prefill, {self.context} tokens"
        missing = ["rotary embedding", "residual additions", "token embedding", "sampling"]
        missing += [self.family.missing] if self.family.missing else []
        self.notes.append(f"not in the layers: {', '.join(missing)}")
        return Workload(
            name=printable(model.title),
            title=f"{printable(model.title)} {what}, batch 1",
            source=place,
            layers=layers,
            unknown=tuple(self.left_out),
            embedding=self.absorbed + (0 if tied else model.vocabulary * model.hidden),
            cache=self.cache,
            tokens=self.rows,
            one_network=True,
            notes=tuple(self.notes),
        )

    def layer(self, entry: dict[str, Any]) -> Layer:
        shared, items = entry.pop("shared", (0, 0)), entry.pop("items", "")
        return replace(layer_from(entry, self.dtype, {"matmul": "nt"}), shared=shared, items=items)

    def linear(
        self, name: str, out: int, into: int, count: int, split: str = "", rows: int | None = None, **others: Any
    ) -> dict[str, Any]:
        """Return a linear layer. Tensor parallelism splits the side `split` (`out`, `in`, or an empty string)."""
        rows, dtype = self.rows if rows is None else rows, self.quantized() if others.get("quantized") else None
        entry = {"name": name, "count": count, **others} | ({"dtype": dtype} if dtype else {})
        if rows > MOST_VECTORS or dtype:
            sides = {"out": ["n"], "in": ["k"], "": []}
            return entry | {"op": "matmul", "m": rows, "n": out, "k": into, "split": sides[split]}
        sides = {"out": ["m"], "in": ["k"], "": []}
        return entry | {"op": "matvec", "m": out, "n": rows, "k": into, "split": sides[split]}

    def quantized(self) -> str | None:
        quantization = self.model.quantization
        if quantization.kind == "fp8_w8a8":
            return "f8block" if quantization.block == (128, 128) else "f8e4m3"
        return _QUANTIZED.get(quantization.kind or "")

    def norm(self, name: str, count: int, rows: int, columns: int, split: bool = False) -> dict[str, Any]:
        norm = "rmsnorm" if name.endswith("q_norm") or name.endswith("k_norm") else self.family.norm
        entry = {"name": name, "op": norm, "count": count, "rows": rows, "columns": columns}
        return entry | ({"split": ["rows"]} if split else {})

    def attention(self) -> Iterator[dict[str, Any]]:
        model = self.model
        norms = self.family.norms * model.layers + 1
        yield self.norm("norms of tokens", norms, self.rows, model.hidden)
        if model.latent is not None:
            yield from self.latent_attention()
            return
        heads, shared, width = model.heads, model.kv_heads, model.head_dim
        outputs = (heads + 2 * shared) * width
        yield self.linear("attention qkv_proj", outputs, model.hidden, model.layers, "out", quantized=True) | {
            "shared": (shared, 2 * width)
        }
        if self.family.head_norms:
            yield self.norm("attention q_norm", model.layers, self.rows * heads, width, split=True)
            keys = self.norm("attention k_norm", model.layers, self.rows * shared, width, split=True)
            yield keys | {"shared": (shared, self.rows)}
        full = model.layers - model.windowed_layers
        if full:
            yield self.scores("attention", full, heads, shared, width)
        if model.windowed_layers:
            yield self.scores("attention, window", model.windowed_layers, heads, shared, width, model.window)
        yield self.linear("attention o_proj", model.hidden, heads * width, model.layers, "in", quantized=True)

    def scores(self, name: str, count: int, heads: int, shared: int, width: int, window: int = 0) -> dict[str, Any]:
        entry = {"name": name, "op": "attention", "count": count, "heads": heads, "kv_heads": shared}
        entry |= {"head_dim": width, "split": ["heads", "kv_heads"]}
        if self.decode:
            return entry | {"queries": 1, "keys": min(self.context, window or self.context)}
        windowed = {"window": window} if 0 < window < self.context else {}
        return entry | {"queries": self.context, "causal": 1} | windowed

    def latent_attention(self) -> Iterator[dict[str, Any]]:
        """Yield the layers of multi-head latent attention. In the phase `decode`, keys and values stay compressed."""
        model, sizes = self.model, self.model.latent
        assert sizes is not None
        count, heads = model.layers, model.heads
        self.cache = count * self.context * (sizes.keys + sizes.rope)
        down = sizes.queries + sizes.keys + sizes.rope
        yield self.linear("attention qkv_a_proj", down, model.hidden, count, quantized=True)
        yield self.norm("attention kv_a_norm", count, self.rows, sizes.keys)
        into = sizes.queries or model.hidden
        if sizes.queries:
            yield self.norm("attention q_a_norm", count, self.rows, sizes.queries)
        yield self.linear("attention q_b_proj", heads * (sizes.plain + sizes.rope), into, count, "out", quantized=True)
        if self.decode:
            absorbed = {"op": "matmul", "count": count, "batch": heads, "m": 1, "split": ["batch"], "items": "m"}
            # Number of weights in the next two matmuls
            self.absorbed = count * heads * sizes.keys * (sizes.plain + sizes.value)
            yield absorbed | {"name": "attention absorbed k_b", "n": sizes.keys, "k": sizes.plain}
            yield absorbed | {"name": "attention absorbed v_b", "n": sizes.value, "k": sizes.keys}
            self.left_out.append(
                f"{count} layers of latent attention (MLA) over {self.context} cached tokens: kernrec has no op for "
                "them yet"
            )
        else:
            up = heads * (sizes.plain + sizes.value)
            yield self.linear("attention kv_b_proj", up, sizes.keys, count, "out", quantized=True)
            yield self.scores("attention", count, heads, heads, sizes.plain + sizes.rope)
            self.notes.append(
                f"latent attention: values count as {sizes.plain + sizes.rope} columns, like keys, not {sizes.value}"
            )
        yield self.linear("attention o_proj", model.hidden, heads * sizes.value, count, "in", quantized=True)

    def feed_forward(self) -> Iterator[dict[str, Any]]:
        model, experts = self.model, self.model.experts
        if dense := model.layers - model.sparse_layers:
            yield from self.dense("mlp", model.intermediate, dense)
        if experts is not None and model.sparse_layers:
            count = model.sparse_layers
            yield self.linear("mlp gate (router)", experts.count, model.hidden, count)
            sizes = {"tokens": self.rows, "hidden": model.hidden, "intermediate": experts.width}
            kind = "mxfp4" if model.quantization.method == "mxfp4" else self.quantized()
            dtype = {"dtype": kind} if kind not in (None, "i8", "w8a16") else {}
            yield {"name": "mlp experts", "op": "moe", "count": count, "experts": experts.count, "topk": experts.top,
                   "gated": int(self.family.gated), "quantized": True} | sizes | dtype  # fmt: skip
            if model.shared:
                yield from self.dense("mlp shared experts", model.shared, count)

    def dense(self, name: str, width: int, count: int) -> Iterator[dict[str, Any]]:
        model, gates = self.model, 1 + self.family.gated
        into = "gate_up_proj" if self.family.gated else "up_proj"
        yield self.linear(f"{name} {into}", gates * width, model.hidden, count, "out", quantized=True)
        yield {"name": f"{name} activation", "op": "elementwise", "count": count, "n": self.rows * width,
               "split": ["n"]}  # fmt: skip
        yield self.linear(f"{name} down_proj", model.hidden, width, count, "in", quantized=True)

    def ends(self) -> Iterator[dict[str, Any]]:
        model = self.model
        yield self.linear("lm_head", model.vocabulary, model.hidden, 1, "out", rows=1)
        yield {"name": "softmax of the logits", "op": "softmax", "rows": 1, "columns": model.vocabulary}
        quantization = model.quantization
        if quantization.elsewhere and quantization.method != "mxfp4":
            self.notes.append(f"unknown quantization {quantization.method!r}: weights are assumed to be {self.dtype}")
