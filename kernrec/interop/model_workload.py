"""List the layers of a decoder-only language model as serving engines run them, from the model's `config.json`.

Projections of the same input, such as queries, keys and values, form a single matmul. The phase `prefill` computes
logits only for the last token of the prompt.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kernrec.errors import UsageError, fold, unknown
from kernrec.interop.model_config import ModelConfig, read_model
from kernrec.op.equivalent import MOST_VECTORS
from kernrec.op.workload import Layer, Workload, layer_from, printable, workloads
from kernrec.util.light_dataclass import dataclass

_DENSE = ("intermediate_size", "ffn_dim", "n_inner")
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2}
"""Default distance between layers with full attention, keyed by `model_type`."""
_MOST_LAYERS = 10_000


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
    """Number of normalizations of the hidden state per layer."""
    head_norms: bool = False
    """Whether each attention head normalizes its queries and keys."""
    tied: bool = False
    """Whether output projection and token embedding share their weights by default."""
    missing: str = ""
    """Description of the parts of the model that kernrec leaves out, or an empty string."""


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
        context: Number of tokens in the prompt for `prefill`. For `decode`, number of tokens to which the new token
            attends, including itself. The default is `DEFAULT_CONTEXT`.
        phase: `decode` or `prefill`.
        text: Content of the file, or None to read the file.

    Raises:
        UsageError: The config lacks a field, the architecture is unknown, or the context is too long for the model.
    """
    model = read_model(place, text=text)
    kind = model.fields.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise UsageError(f"{model.place} does not say which architecture the model has: model_type is missing")
    if kind not in FAMILIES:
        built_in = [f"--workload {name} is built in; " for name in workloads() if fold(name).startswith(fold(kind))]
        listed = "".join(built_in) + f"known: {', '.join(sorted(FAMILIES))}"
        raise UsageError(f"{place}: unknown architecture {kind[:40]!r}; {listed}")
    if phase not in PHASES:
        raise unknown("phase", phase, PHASES)
    context = DEFAULT_CONTEXT if context is None else context
    if not 1 <= context <= (model.positions or MOST_CONTEXT):
        most = f"{model.positions} for {model.title}" if model.positions else f"{MOST_CONTEXT}"
        raise UsageError(f"context is {context} tokens; expected 1 to {most}")
    return _Layers(model, FAMILIES[kind], context, phase == "decode").workload(place)


class _Layers:
    """Builder of the workload of one model in one phase."""

    def __init__(self, model: ModelConfig, family: Family, context: int, decode: bool) -> None:
        self.model, self.family, self.context, self.decode = model, family, context, decode
        self.layers = model.needed("how many layers the model has", "num_hidden_layers", "n_layer")
        if self.layers > _MOST_LAYERS:
            raise UsageError(f"{model.place}: num_hidden_layers is {self.layers}; at most {_MOST_LAYERS} are accepted")
        self.heads = model.needed("how many heads attention has", "num_attention_heads", "n_head")
        self.vocabulary = model.needed("how large the vocabulary is", "vocab_size")
        self.sparse = self.sparse_layers() if model.experts is not None else 0
        self.rows = 1 if decode else context
        self.dtype = _DTYPES[model.dtype]
        self.left_out: list[str] = []
        self.notes: list[str] = []
        self.absorbed, self.cache = 0, 0

    def sparse_layers(self) -> int:
        dense = self.model.fields.get("mlp_only_layers")
        dense = {layer for layer in dense if type(layer) is int} if isinstance(dense, list) else set()
        step, first = self.model.number("decoder_sparse_step") or 1, self.model.number("first_k_dense_replace") or 0
        return sum(layer not in dense and (layer + 1) % step == 0 for layer in range(first, self.layers))

    def windowed_layers(self) -> int:
        fields, kinds = self.model.fields, self.model.fields.get("layer_types")
        if isinstance(kinds, list):
            return sum(kind == "sliding_attention" for kind in kinds[: self.layers])
        if fields.get("use_sliding_window") is False:
            return 0
        every = self.model.number("sliding_window_pattern") or _PATTERNS.get(fields["model_type"], 0)
        return self.layers - self.layers // every if every else self.layers

    def workload(self, place: str) -> Workload:
        model = self.model
        entries = [*self.attention(), *self.feed_forward(), *self.ends()]
        layers = tuple(self.layer(entry) for entry in entries)
        tied = model.fields.get("tie_word_embeddings")
        tied = tied if isinstance(tied, bool) else self.family.tied
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
            embedding=self.absorbed + (0 if tied else self.vocabulary * model.hidden),
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
        """Return a linear layer. Tensor parallelism splits its outputs (`split="out"`), inputs (`"in"`) or nothing."""
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
        norms = self.family.norms * self.layers + 1
        yield self.norm("norms of tokens", norms, self.rows, model.hidden)
        if model.latent is not None:
            yield from self.latent_attention()
            return
        heads, shared = self.heads, model.number("num_key_value_heads") or self.heads
        width, window = model.number("head_dim"), model.number("sliding_window") or 0
        if width is None and model.hidden % heads:
            raise UsageError(
                f"{model.place}: head_dim is missing, and {heads} heads do not divide hidden_size {model.hidden}"
            )
        width, windowed = width or model.hidden // heads, self.windowed_layers() if window else 0
        outputs = (heads + 2 * shared) * width
        yield self.linear("attention qkv_proj", outputs, model.hidden, self.layers, "out", quantized=True) | {
            "shared": (shared, 2 * width)
        }
        if self.family.head_norms:
            yield self.norm("attention q_norm", self.layers, self.rows * heads, width, split=True)
            keys = self.norm("attention k_norm", self.layers, self.rows * shared, width, split=True)
            yield keys | {"shared": (shared, self.rows)}
        full = self.layers - windowed
        if full:
            yield self.scores("attention", full, heads, shared, width)
        if windowed:
            yield self.scores("attention, window", windowed, heads, shared, width, window)
        yield self.linear("attention o_proj", model.hidden, heads * width, self.layers, "in", quantized=True)

    def scores(self, name: str, count: int, heads: int, shared: int, width: int, window: int = 0) -> dict[str, Any]:
        entry = {"name": name, "op": "attention", "count": count, "heads": heads, "kv_heads": shared}
        entry |= {"head_dim": width, "split": ["heads", "kv_heads"]}
        if self.decode:
            return entry | {"queries": 1, "keys": min(self.context, window or self.context)}
        windowed = {"window": window} if 0 < window < self.context else {}
        return entry | {"queries": self.context, "causal": 1} | windowed

    def latent_attention(self) -> Iterator[dict[str, Any]]:
        model, sizes = self.model, self.model.latent
        assert sizes is not None
        count, heads = self.layers, self.heads
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
            # Number of weights in the matmuls "absorbed k_b" and "absorbed v_b"
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
        if dense := self.layers - self.sparse:
            width = model.needed("how wide a feed-forward network is", *_DENSE)
            yield from self.dense("mlp", width, dense)
        if experts is not None and (count := self.sparse):
            yield self.linear("mlp gate (router)", experts.count, model.hidden, count)
            sizes = {"tokens": self.rows, "hidden": model.hidden, "intermediate": experts.width}
            kind = "mxfp4" if model.quantization.method == "mxfp4" else self.quantized()
            dtype = {"dtype": kind} if kind not in (None, "i8", "w8a16") else {}
            yield {"name": "mlp experts", "op": "moe", "count": count, "experts": experts.count, "topk": experts.top,
                   "gated": int(self.family.gated), "quantized": True} | sizes | dtype  # fmt: skip
            if width := model.shared_width:
                yield from self.dense("mlp shared experts", width, count)

    def dense(self, name: str, width: int, count: int) -> Iterator[dict[str, Any]]:
        model, gates = self.model, 1 + self.family.gated
        into = "gate_up_proj" if self.family.gated else "up_proj"
        yield self.linear(f"{name} {into}", gates * width, model.hidden, count, "out", quantized=True)
        yield {"name": f"{name} activation", "op": "elementwise", "count": count, "n": self.rows * width,
               "split": ["n"]}  # fmt: skip
        yield self.linear(f"{name} down_proj", model.hidden, width, count, "in", quantized=True)

    def ends(self) -> Iterator[dict[str, Any]]:
        model = self.model
        yield self.linear("lm_head", self.vocabulary, model.hidden, 1, "out", rows=1)
        yield {"name": "softmax of the logits", "op": "softmax", "rows": 1, "columns": self.vocabulary}
        quantization = model.quantization
        if quantization.elsewhere and quantization.method != "mxfp4":
            self.notes.append(f"unknown quantization {quantization.method!r}: weights are assumed to be {self.dtype}")
