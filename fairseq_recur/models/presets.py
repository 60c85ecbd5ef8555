"""The named architectures: each is the one model with other defaults.

Every preset is registered as a separate model with its own dataclass, so that ``--arch NAME`` and
hydra's ``model=NAME`` or ``model._name=NAME`` give the same model.
"""

from typing import Any

from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY, register_model
from hydra.core.config_store import ConfigStore

from fairseq_recur.models.base import RecurrentModel
from fairseq_recur.models.forecaster import ForecasterModel
from fairseq_recur.models.language_model import RecurrentLanguageModel
from fairseq_recur.models.model import RecurrentTransformerModel

# Sizes of the host, named as fairseq names them. The base size is the dataclass's default.
SIZES: dict[str, dict[str, Any]] = {
    "": {},
    "_tiny": {
        "encoder_embed_dim": 128,
        "encoder_ffn_embed_dim": 512,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
    },
    "_iwslt_de_en": {
        "encoder_ffn_embed_dim": 1024,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    },
    "_wmt_en_de": {},
    "_wmt_en_de_big": {
        "encoder_embed_dim": 1024,
        "encoder_ffn_embed_dim": 4096,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "dropout": 0.3,
        "attention_dropout": 0.1,
    },
    "_wmt_zh_en": {},
}


def both_sides(attention: str) -> dict[str, Any]:
    """The map in encoder and decoder."""
    return {"encoder_self_attention": attention, "decoder_self_attention": attention}


# Systems: which parts they are made of.
SYSTEMS: dict[str, dict[str, Any]] = {
    # Hao et al. 2019, the paper's default: one layer of BiARN, stacked into the top layer.
    "transformer_biarn": {"recurrence": "biarn"},
    # The same with its other recurrence encoder, one bidirectional layer of GRU.
    "transformer_birnn": {"recurrence": "birnn"},
    # Huang et al. 2023: every head of every self-attention with a regular matrix. Their one
    # encoder-decoder, CodeT5, continues from weights without matrices. From scratch, eta from 1 to
    # 2 is too long a memory: rows of the encoder's matrices add up to as much as 54. With these
    # values it is 4 at most, and half of the output is theirs (examples/g2p/README.md).
    "rsa_transformer": {**both_sides("rsa"), "rsa_eta_init": "0.1,0.8", "rsa_gate_init": "0"},
    # Long et al. 2023 around this host; s = 64 as in the paper.
    "srformer": {"cross_attention": "srformer"},
    # What Hao et al. 2019 compare with in table 4. Shaw et al. 2018: k = 16, in place of the
    # absolute positions; Shen et al. 2018, in the encoder; Chen et al. 2018, six layers of RNN.
    "transformer_relpos": {
        **both_sides("relative"),
        "relative_clip": 16,
        "no_token_positional_embeddings": True,
    },
    "transformer_disan": {"encoder_self_attention": "directional"},
    "transformer_rnn_multicolumn": {
        "recurrence": "birnn",
        "recurrence_layers": 6,
        "recurrence_fusion": "multicolumn",
    },
}

# T5 v1.0, whose small size is the base size of the Transformer (Raffel et al. 2020).
T5: dict[str, Any] = {
    "host": "t5",
    "encoder_normalize_before": True,
    "decoder_normalize_before": True,
    "no_scale_embedding": True,
    "no_token_positional_embeddings": True,
    "share_all_embeddings": True,
    "share_decoder_input_output_embed": True,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
}

# BART, as fairseq's architectures of that name have it (Lewis et al. 2020).
BART: dict[str, Any] = {
    "encoder_learned_pos": True,
    "decoder_learned_pos": True,
    "layernorm_embedding": True,
    "no_scale_embedding": True,
    "share_all_embeddings": True,
    "share_decoder_input_output_embed": True,
    "activation_fn": "gelu",
}
BART_BASE_SHAPE: dict[str, Any] = {
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
}
BART_LARGE_SHAPE: dict[str, Any] = {
    "encoder_embed_dim": 1024,
    "encoder_ffn_embed_dim": 4096,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
}

SRFORMER: dict[str, Any] = SYSTEMS["srformer"]

PRESETS: dict[str, dict[str, Any]] = {
    **{
        system + size: {**sizes, **parts}
        for system, parts in SYSTEMS.items()
        for size, sizes in SIZES.items()
    },
    "srformer_base": {**BART_BASE_SHAPE, **SRFORMER},
    "srformer_bart_base": {**BART_BASE_SHAPE, **BART, **SRFORMER},
    "srformer_bart_large": {**BART_LARGE_SHAPE, **BART, **SRFORMER},
    "t5_small": T5,
    "srformer_t5_small": {**T5, **SRFORMER},
    # CodeT5-small (Wang et al. 2021) differs from T5-small in its vocabulary only. Its form with
    # RSA: Huang et al. 2023, table 7, dilated regular heads in every self-attention.
    "codet5_small": T5,
    "rsa_codet5_small": {
        **T5,
        **both_sides("rsa"),
        "rsa_heads": "0,0,0,all,0,0",
        "rsa_dilations": "64",
        "rsa_gate_init": "-3",
    },
}


# Transformer-XL as the code of Dai et al. 2019 trains it, with the sizes of Huang et al. 2023.
XL: dict[str, Any] = {
    "language_model_host": "transformer_xl",
    "decoder_self_attention": "xl",
    "decoder_memory": "xl",
    "no_token_positional_embeddings": True,
    "activation_dropout": 0.1,
}
XL_SIZES: dict[str, dict[str, Any]] = {
    "_tiny": {
        **{f"decoder_{name}_dim": 128 for name in ("embed", "input", "output")},
        "decoder_ffn_embed_dim": 512,
        "decoder_layers": 4,
        "decoder_attention_heads": 4,
        "share_decoder_input_output_embed": True,
        "memory_length": 64,
    },
    "_text8": {"decoder_layers": 14, "share_decoder_input_output_embed": True},
    "_enwik8": {"decoder_layers": 14, "share_decoder_input_output_embed": True},
    # Words: 12 heads of width 41, and bands of words with vectors of one width (div_val 1).
    "_wikitext103": {
        **{f"decoder_{name}_dim": 410 for name in ("embed", "input", "output")},
        "decoder_head_dim": 41,
        "decoder_ffn_embed_dim": 2100,
        "decoder_layers": 16,
        "decoder_attention_heads": 12,
        "adaptive_input": True,
        "adaptive_input_cutoff": "20000,40000,200000",
        "adaptive_input_factor": 1,
        "adaptive_softmax_cutoff": "20000,40000,200000",
        "adaptive_softmax_factor": 1,
        "tie_adaptive_weights": True,
        "memory_length": 150,
    },
}
# Table 7 of Huang et al. 2023: dilations and mu of each set, by host.
RSA_XL: dict[str, tuple[str, str, str]] = {
    "_tiny": ("0,0,0,0,1,1", "6,12", "1"),
    "_text8": ("0,0,0,0,2,2", "6,6,12,12", "1"),
    "_enwik8": ("0,0,0,0,2,2", "3,6,9,12", "1"),
    "_wikitext103": ("0,0,0,2,2,2", "12,24,12,24,12,24", "-1"),
}


# Didolkar et al. 2022, whose sizes are not printed: norms before the sub-layers, chunks. The norm
# of the state is ours: theirs reads single texts, and over streams its state overflows.
TLB: dict[str, Any] = {
    **XL,
    "decoder_self_attention": "dot",
    "decoder_memory": "latent",
    "latent_state_norm": "rms",
    "decoder_normalize_before": True,
}
TLB_SIZES = {  # its memory keeps no positions
    size: {name: value for name, value in options.items() if name != "memory_length"}
    for size, options in XL_SIZES.items()
}
BRT: dict[str, Any] = {**XL, "decoder_memory": "block_recurrent"}
# With 0.02, that of wider models, one of width 128 does not learn at the rate of Transformer-XL.
BRT_SIZES = {**XL_SIZES, "_tiny": {**XL_SIZES["_tiny"], "init_std": 0.04}}
RSA_BRT: dict[str, tuple[str, str, str]] = {
    "_tiny": ("0,0,0,0,1,1", "5,10", "-1"),
    "_text8": ("0,0,0,0,2,2", "5,5,10,10", "-1"),
    "_enwik8": ("0,0,0,0,2,2", "3,6,9,12", "0"),
    "_wikitext103": ("0,0,0,2,2,2", "12,24,12,24,12,24", "-2"),
}


def recurrent_language_models(
    host: str,
    parts: dict[str, Any],
    matrices: dict[str, tuple[str, str, str]],
    sizes: dict[str, dict[str, Any]] = XL_SIZES,
) -> dict[str, dict[str, Any]]:
    """A host's presets in all sizes, without and with matrices; without a size, Text8's."""
    presets = {}
    names = "rsa_heads", "rsa_dilations", "rsa_gate_init"
    for size, options in sizes.items():
        plain = {**parts, **options}
        rsa = {"decoder_self_attention_mixture": "rsa", **dict(zip(names, matrices[size]))}
        for name in (size, "") if size == "_text8" else (size,):
            presets[host + name] = plain
            presets[f"rsa_{host}{name}"] = {**plain, **rsa}
    return presets


LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "rsa_transformer_lm": {"decoder_self_attention": "rsa"},
    **recurrent_language_models("xl_lm", XL, RSA_XL),
    **recurrent_language_models("brt_lm", BRT, RSA_BRT, BRT_SIZES),
    **recurrent_language_models("tlb_lm", TLB, RSA_BRT, TLB_SIZES),
}

# Informer's sizes (Zhou et al. 2021), with which Huang et al. 2023 forecast (section 4.1).
FORECASTER: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 1,
    "dropout": 0.05,
    "attention_dropout": 0.05,
    "activation_dropout": 0.05,
    "activation_fn": "gelu",
}
# Matrices in all attentions and in place of the positions, with mu = 1.
RSA_FORECASTER: dict[str, Any] = {
    "encoder_self_attention_mixture": "rsa",
    "decoder_self_attention_mixture": "rsa",
    "cross_attention_mixture": "rsa",
    "rsa_gate_init": "1",
    "no_token_positional_embeddings": True,
}


FORECASTERS: dict[str, dict[str, Any]] = {
    "informer": {**FORECASTER, **both_sides("prob_sparse")},
    "rsa_informer": {**FORECASTER, **both_sides("prob_sparse"), **RSA_FORECASTER},
    "log_sparse": {**FORECASTER, **both_sides("log_sparse")},
    "rsa_log_sparse": {**FORECASTER, **both_sides("log_sparse"), **RSA_FORECASTER},
    # In RSA-XL the matrices replace Transformer-XL's relative positions.
    "xl_forecaster": {
        **FORECASTER,
        **both_sides("xl"),
        "encoder_memory": "xl",
        "no_token_positional_embeddings": True,
    },
    "rsa_xl_forecaster": {**FORECASTER, **RSA_FORECASTER, "encoder_memory": "xl"},
}

KINDS: tuple[tuple[type[RecurrentModel], dict[str, dict[str, Any]]], ...] = (
    (RecurrentTransformerModel, PRESETS),
    (RecurrentLanguageModel, LANGUAGE_MODELS),
    (ForecasterModel, FORECASTERS),
)
"""The kinds of models, each with its presets."""


def register_presets() -> None:
    """Register every preset with fairseq, or, once it is registered, its present options.

    A part from outside the package adds a choice and options of its own. fairseq keeps the
    dataclass of each model, twice, and hydra a node made of it; all of them are replaced.
    """
    for base, presets in KINDS:
        base.config_class = base.assemble()
        for name, defaults in presets.items():
            camel = "".join(word.capitalize() for word in name.split("_"))
            config = base.assemble(camel + "Config", **defaults)
            if name not in MODEL_REGISTRY:
                model = type(camel + "Model", (base,), {"config_class": config})
                model.__module__, model.__doc__ = __name__, f"The preset ``{name}``."
                globals()[model.__name__] = model  # where pickle looks for it
                register_model(name, dataclass=config)(model)
                continue
            model = MODEL_REGISTRY[name]
            model.config_class = MODEL_DATACLASS_REGISTRY[name] = config
            model.__dataclass = config  # where fairseq looks up which flags are the model's
            node = config()
            node._name = name
            ConfigStore.instance().store(name=name, group="model", node=node, provider="fairseq")
