"""Read the layer shapes and quantization of a Hugging Face model from its `config.json`."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from kernrec.errors import KernrecError, UsageError, file_errors
from kernrec.interop.json_document import whole_document
from kernrec.util.files import read_input
from kernrec.util.light_dataclass import dataclass

_LARGEST = 4 << 20
_MOST = 1 << 20
"""Maximum of any integer in a config. The widest published layers have 53,248 columns."""
_MOST_EXPERTS, _MOST_CHOSEN = 4096, 128
"""Maximum number of experts per layer and of active experts per token. Published models have at most 2,048 and 22."""
_INNER = ("text_config", "llm_config", "language_config")
"""Members of a multimodal model's config that contain the config of the language model."""
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
_TOP = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
_MAMBA_HEADS = ("mamba_num_heads", "mamba_n_heads")
_MAMBA_WIDTH = ("mamba_head_dim", "mamba_d_head")
_MAMBA_STATE = ("ssm_state_size", "mamba_d_state")
_MAMBA_GROUPS = ("n_groups", "mamba_n_groups")
LEAST_GROUP = 32
"""Minimum group size (columns per scale) of integer weights for which serving engines have kernels."""


@dataclass(frozen=True)
class Quantization:
    """Format and scales of a model's quantized weights and activations."""

    kind: str | None
    """Name in serving engines, such as `int4_w4a16`, or None if no engine has tuned files for this quantization."""
    block: tuple[int, int] | None = None
    """Rows and columns (n, k) of a block of weights with a common scale, or None if scales are not per block."""
    method: str = ""
    """Value of `quant_method` in the config, or an empty string."""
    elsewhere: bool = False
    """Whether serving engines run this quantization with kernels that need no tuned files."""
    by_row: bool = False
    """Whether each weight row and each token has its own scale."""
    group: int = 0
    """Number of weight columns that share a scale if only weights are quantized. Otherwise 0."""
    zero_points: bool = False
    """Whether each group of columns also has a zero point."""


UNQUANTIZED = Quantization(None)


@dataclass(frozen=True)
class Experts:
    """Sizes of a mixture-of-experts layer."""

    count: int
    top: int
    """Number of active experts per token."""
    width: int
    """Intermediate size of an expert."""


@dataclass(frozen=True)
class StateSpace:
    """Sizes of the state-space layers of a Mamba 2 model."""

    heads: int
    head_width: int
    state: int
    cache_dtype: str
    """Data type of the state cache: `float32`, or `float16` for any 16-bit type."""
    groups: int = 1
    """Number of groups of heads. The heads of a group share the projections into and out of the state."""


@dataclass(frozen=True)
class Linear:
    """Linear layer with `rows` outputs and `depth` inputs. Tensor parallelism may split it between GPUs."""

    name: str
    rows: int
    depth: int
    split: str
    """Dimension that tensor parallelism splits: `rows`, `depth`, or an empty string for none."""
    shared_heads: int = 0
    """Number of key/value heads. Each GPU has at least one of them."""
    shared_rows: int = 0
    """Number of rows of the layer per key/value head."""

    def of_rank(self, tp: int) -> tuple[int, int] | None:
        """Return (rows, depth) of one GPU's part of the layer, or None if `tp` GPUs cannot split it equally."""
        if (self.split == "rows" and self.rows % tp) or (self.split == "depth" and self.depth % tp):
            return None
        rows = self.rows // tp if self.split == "rows" else self.rows
        depth = self.depth // tp if self.split == "depth" else self.depth
        return rows + max(1, self.shared_heads // tp) * self.shared_rows, depth


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    queries: int
    """Width of the compressed queries, or 0 if queries are not compressed."""
    keys: int
    """Width of the compressed keys and values, which the cache stores."""
    rope: int
    """Columns per head with rotary position embedding."""
    plain: int
    value: int


def read_model(place: str, *, download: bool = False, text: str | None = None) -> "ModelConfig":
    """Read a model's `config.json` from a folder, a file or the Hugging Face Hub.

    Args:
        place: Folder with a `config.json`, path of the file, or name of a model on the Hugging Face Hub.
        download: Whether to download the file from the Hub if it does not exist.
        text: Content of the file, or None to read the file.

    Raises:
        UsageError: There is no such file, or a field is missing or invalid. The message names the field.
        KernrecError: The file cannot be downloaded.
    """
    path, title = Path(place), Path(place).stem
    if text is None:
        path, title = _config_file(place, download), place
        with file_errors(path, "read"):
            text = read_input(path, _LARGEST).decode("utf-8", errors="replace")
        if Path(place).exists():
            title = (path.absolute().parent.name or path.name) if path.name == "config.json" else path.stem
    try:
        document = whole_document(text, _LARGEST)
    except ValueError as error:
        raise UsageError(f"{path} is not the config.json of a model: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not the config.json of a model: expected an object")
    return ModelConfig(document, str(path), title)


def _config_file(place: str, download: bool) -> Path:
    path = Path(place)
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        return path
    if Path(place).is_dir():
        raise UsageError(f"{place} has no config.json; give the folder of a model or its config.json")
    if not download:
        hint = f"; hf:{place} downloads it from the Hugging Face Hub" if place.count("/") == 1 else ""
        raise UsageError(f"there is no file or folder {place!r:.80}{hint}")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise KernrecError("a model of the Hugging Face Hub needs the extra hub: `pip install '.[hub]'`") from None
    try:
        return Path(hf_hub_download(place, "config.json"))
    except Exception as error:  # The Hub's client raises many types of errors, so catch all.
        reason = str(error).splitlines()[0]
        raise KernrecError(f"{place}: no config.json could be downloaded: {reason:.120}") from None


_FUSED = {"DeepseekV3ForCausalLM", "Glm4MoeForCausalLM"}
"""Architectures whose shared experts SGLang treats as additional routed experts by default."""


class ModelConfig:
    """Sizes, data types and quantization in a model's `config.json`.

    A property raises `UsageError` if a field that it needs is missing or invalid.
    """

    def __init__(self, document: Mapping[str, Any], place: str, title: str) -> None:
        inner: Any = next((document[name] for name in _INNER if isinstance(document.get(name), dict)), {})
        thinker = document.get("thinker_config")
        if not inner and isinstance(thinker, dict):
            inner = thinker.get("text_config") if isinstance(thinker.get("text_config"), dict) else thinker
        self.fields = {**document, **inner}
        self.place, self.title = place, title

    def number(self, *names: str) -> int | None:
        """Return the first nonzero value among alternative fields, or None if there is none.

        Raise `UsageError` if the value is not an integer from 0 to `_MOST`.
        """
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if type(value) is not int or not 0 <= value <= _MOST:
                expected = f"expected a whole number of at most {_MOST}"
                raise UsageError(f"{self.place}: {name} is {json.dumps(value):.40}; {expected}")
            if value:
                return value
        return None

    def needed(self, what: str, *names: str) -> int:
        value = self.number(*names)
        if value is None:
            raise UsageError(f"{self.place} does not say {what}: {' or '.join(names)} is missing")
        return value

    def check(self) -> None:
        """Raise `UsageError` now if a field is invalid, not when a property is first used."""
        _ = self.hidden, self.dtype, self.quantization, self.experts, self.state_space, self.linears

    @cached_property
    def hidden(self) -> int:
        return self.needed("how wide the model is", "hidden_size", "d_model", "n_embd")

    @cached_property
    def dtype(self) -> str:
        """Data type of activations: `bfloat16`, `float16` or `float32`."""
        dtype = str(self.fields.get("dtype") or self.fields.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        if dtype not in ("bfloat16", "float16", "float32"):
            raise UsageError(f"{self.place}: torch_dtype is {dtype!r:.40}; expected bfloat16, float16 or float32")
        return dtype

    @property
    def fused_experts(self) -> int:
        """Number of shared experts that SGLang treats as additional routed experts."""
        architectures = self.fields.get("architectures")
        names = set(map(str, architectures)) if isinstance(architectures, list) else set()
        return (self.number("n_shared_experts") or 0) if names & _FUSED else 0

    @property
    def shared_width(self) -> int:
        """Return the total intermediate size of the experts that process all tokens, or 0 if there are none."""
        shared = (self.number("n_shared_experts") or 0) * (self.number(*_WIDTH) or 0)
        return self.number("shared_expert_intermediate_size") or shared

    @cached_property
    def experts(self) -> Experts | None:
        count = self.number(*_EXPERTS)
        if count is None or count == 1:
            return None
        top = self.needed("how many experts a token has", *_TOP)
        width = self.needed("how wide an expert is", *_WIDTH, "intermediate_size")
        if top > count:
            raise UsageError(f"{self.place}: {top} experts per token, but the model has {count}")
        if count > _MOST_EXPERTS or top > _MOST_CHOSEN:
            most = f"at most {_MOST_CHOSEN} of {_MOST_EXPERTS} are accepted"
            raise UsageError(f"{self.place}: {top} of {count} experts per token; {most}")
        return Experts(count, top, width)

    @cached_property
    def state_space(self) -> StateSpace | None:
        width, state = self.number(*_MAMBA_WIDTH), self.number(*_MAMBA_STATE)
        if width is None or state is None:
            return None
        heads = self.needed("how many heads its state-space layers have", *_MAMBA_HEADS)
        cache = str(self.fields.get("mamba_ssm_cache_dtype") or self.fields.get("mamba_ssm_dtype") or self.dtype)
        cache = "float32" if cache.removeprefix("torch.") == "float32" else "float16"
        return StateSpace(heads, width, state, cache, self.number(*_MAMBA_GROUPS) or 1)

    @cached_property
    def latent(self) -> Latent | None:
        """Sizes of multi-head latent attention, or None if the model has ordinary attention."""
        keys = self.number("kv_lora_rank")
        if keys is None:
            return None
        plain = self.needed("how wide a head is", "qk_nope_head_dim")
        rope, value = self.number("qk_rope_head_dim") or 0, self.number("v_head_dim") or plain
        return Latent(self.number("q_lora_rank") or 0, keys, rope, plain, value)

    @property
    def positions(self) -> int | None:
        """Maximum number of tokens, scaled by `rope_scaling`, or None if the config does not state it."""
        most = self.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
        scaling = self.fields.get("rope_scaling")
        if most and isinstance(scaling, dict) and scaling.get("original_max_position_embeddings") == most:
            factor = scaling.get("factor")
            if isinstance(factor, int | float):
                return int(most * min(max(factor, 1.0), 1e3))
        return most

    @cached_property
    def quantization(self) -> Quantization:
        fields = self.fields.get("quantization_config")
        if fields is None:
            return UNQUANTIZED
        if not isinstance(fields, dict):
            raise UsageError(f"{self.place}: quantization_config is not an object")
        method = str(fields.get("quant_method", ""))[:40]
        if method == "fp8":
            return Quantization("fp8_w8a8", self._block(fields.get("weight_block_size")), method)
        if method == "compressed-tensors":
            return self._compressed(fields, method)
        if method in ("gptq", "awq") and not fields.get("desc_act"):
            zero_points = bool(fields.get("zero_point")) if method == "awq" else fields.get("sym") is False
            return _grouped(fields.get("bits"), fields.get("group_size"), method, zero_points)
        return Quantization(None, None, method + " with desc_act" * bool(fields.get("desc_act")), elsewhere=True)

    def _compressed(self, fields: Mapping[str, Any], method: str) -> Quantization:
        groups = fields.get("config_groups")
        first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        weights = first.get("weights") if isinstance(first, dict) else None
        inputs = first.get("input_activations") if isinstance(first, dict) else None
        if not isinstance(weights, dict):
            raise UsageError(f"{self.place}: quantization_config has no config_groups with weights")
        if weights.get("type") == "int" and inputs is None and weights.get("actorder") != "group":
            zero_points = weights.get("symmetric") is False
            return _grouped(weights.get("num_bits"), weights.get("group_size"), method, zero_points)
        kinds = {"float": "fp8_w8a8", "int": "int8_w8a8"}
        if weights.get("num_bits") != 8 or not isinstance(inputs, dict) or weights.get("type") not in kinds:
            return Quantization(None, None, method, elsewhere=True)
        block, by_row = self._block(weights.get("block_structure")), weights.get("strategy") == "channel"
        return Quantization(kinds[weights["type"]], block, method, by_row=by_row)

    def _block(self, sizes: Any) -> tuple[int, int] | None:
        if sizes is None:
            return None
        if not (
            isinstance(sizes, Sequence) and len(sizes) == 2 and all(type(s) is int and 16 <= s <= 1024 for s in sizes)
        ):
            raise UsageError(f"{self.place}: weight_block_size is {json.dumps(sizes):.40}; expected two sizes")
        return sizes[0], sizes[1]

    @cached_property
    def linears(self) -> tuple[Linear, ...]:
        """Linear layers of attention and dense networks, or () if the number of heads is unknown."""
        heads, hidden = self.number("num_attention_heads"), self.hidden
        if heads is None:
            return ()
        if (sizes := self.latent) is not None:
            value = sizes.value
            attention = [
                Linear("queries, keys, values, down", sizes.queries + sizes.keys + sizes.rope, hidden, ""),
                Linear("queries, up", heads * (sizes.plain + sizes.rope), sizes.queries or hidden, "rows"),
                Linear("keys and values, up", heads * (sizes.plain + value), sizes.keys, "rows"),
            ]
        else:
            value, shared = self.number("head_dim") or hidden // heads, self.number("num_key_value_heads") or heads
            attention = [Linear("queries, keys, values", heads * value, hidden, "rows", shared, 2 * value)]
        dense = self.number("intermediate_size") if self._has_dense_layers() else 0
        widths = [(name, width) for name, width in (("dense", dense), ("shared experts", self.shared_width)) if width]
        return (
            *attention,
            Linear("attention, out", hidden, heads * value, "depth"),
            *(Linear(f"{name}, gate and up", 2 * width, hidden, "rows") for name, width in widths),
            *(Linear(f"{name}, down", hidden, width, "depth") for name, width in widths),
        )

    def _has_dense_layers(self) -> bool:
        if self.number(*_EXPERTS) in (None, 1):
            return True
        return bool(self.number("first_k_dense_replace")) or bool(self.fields.get("mlp_only_layers"))


def _grouped(bits: Any, group: Any, method: str, zero_points: bool) -> Quantization:
    """Return the quantization of integer weights that share a scale per group."""
    kind = {4: "int4_w4a16", 8: "int8_w8a16"}.get(bits) if type(bits) is int else None
    if kind is None or type(group) is not int or group < LEAST_GROUP or group & (group - 1):
        return Quantization(None, None, method, elsewhere=True)
    return Quantization(kind, None, method, group=group, zero_points=zero_points)
