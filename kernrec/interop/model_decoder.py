"""Read all sizes of a decoder-only language model from its Hugging Face `config.json`."""

from pathlib import Path

from kernrec.errors import UsageError
from kernrec.interop.model_config import (
    ConfigFields,
    Experts,
    Quantization,
    config_document,
    parsed_config,
)
from kernrec.util.light_dataclass import dataclass

_DENSE = ("intermediate_size", "ffn_dim", "n_inner")
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2}
"""By model type: every n-th layer has full attention, if the config does not say otherwise."""
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    queries: int
    """Width of the compressed queries; 0 if queries are not compressed."""
    keys: int
    """Width of the compressed keys and values, which the cache holds."""
    rope: int
    """Columns per head with rotary position embedding; all heads share these columns of the keys."""
    plain: int
    value: int


@dataclass(frozen=True)
class Decoder:
    """Decoder-only language model with all sizes of its layers."""

    title: str
    kind: str
    """`model_type` of the config."""
    hidden: int
    vocabulary: int
    layers: int
    sparse_layers: int
    """Number of layers with a mixture of experts; the others have one feed-forward network."""
    windowed_layers: int
    """Number of layers whose queries attend only to the last `window` keys."""
    window: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: Latent | None
    """Sizes of multi-head latent attention; None for ordinary attention."""
    intermediate: int
    """Columns of a dense layer's feed-forward network; 0 if all layers are sparse."""
    experts: Experts | None
    shared: int
    """Intermediate size of the experts that process every token; 0 if there are none."""
    positions: int | None
    """Maximum number of tokens that the model accepts; None if the config does not state it."""
    tied: bool | None
    """Whether the output projection is the token embedding; None if the config does not state it."""
    dtype: str
    quantization: Quantization


def read_decoder(place: str, text: str | None = None) -> Decoder:
    """Return the language model of a folder or `config.json`, with all sizes of its layers.

    Args:
        place: the folder or file.
        text: content of the file, if it was read before.

    Raises:
        UsageError: there is no such file, or it lacks fields, which the message names.
    """
    document, path, title = (
        config_document(place, False) if text is None else (parsed_config(text, place), place, Path(place).stem)
    )
    return _DecoderFields(document, path).decoder(title)


class _DecoderFields(ConfigFields):
    """Fields that determine the layers of a language model."""

    def decoder(self, title: str) -> Decoder:
        layers = self.needed("how many layers the model has", "num_hidden_layers", "n_layer")
        if layers > _MOST_LAYERS:
            raise UsageError(f"{self.place}: num_hidden_layers is {layers}; at most {_MOST_LAYERS} are accepted")
        heads = self.needed("how many heads attention has", "num_attention_heads", "n_head")
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
            kind=str(self.needed_text("which architecture the model has", "model_type"))[:40],
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

    def needed_text(self, what: str, name: str) -> str:
        value = self.fields.get(name)
        if not isinstance(value, str) or not value:
            raise UsageError(f"{self.place} does not say {what}: {name} is missing")
        return value

    def positions(self) -> int | None:
        """Return the maximum number of tokens that the model accepts, including scaled positions."""
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
        """Return the number of layers with experts. DeepSeek starts with dense layers; in Qwen, every n-th layer is
        sparse.
        """
        dense = self.fields.get("mlp_only_layers")
        dense = {layer for layer in dense if type(layer) is int} if isinstance(dense, list) else set()
        step, first = self.number("decoder_sparse_step") or 1, self.number("first_k_dense_replace") or 0
        return sum(layer not in dense and (layer + 1) % step == 0 for layer in range(first, layers))

    def windowed_layers(self, layers: int) -> int:
        """Return the number of layers whose attention has a sliding window."""
        kinds = self.fields.get("layer_types")
        if isinstance(kinds, list):
            return sum(kind == "sliding_attention" for kind in kinds[:layers])
        if self.fields.get("use_sliding_window") is False:
            return 0
        every = self.number("sliding_window_pattern") or _PATTERNS.get(str(self.fields.get("model_type")), 0)
        return layers - layers // every if every else layers
