"""`convert` of a checkpoint of fairseq to a folder in Hugging Face's format."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fairseq_recur import compat
from fairseq_recur.cli.new_folder import whole_or_nothing
from fairseq_recur.conversion import bart, huggingface, t5
from fairseq_recur.conversion.kinds import kind_of
from fairseq_recur.conversion.settings import MOST_WORDS, Settings
from fairseq_recur.errors import CheckpointError, ConfigError, first_items
from fairseq_recur.loading.states import read_state, saved_options
from fairseq_recur.modules.options import flag

SLOTS = ("encoder_self_attention", "decoder_self_attention", "cross_attention")


def to_huggingface(source: Path, target: Path, like: Path | None) -> None:
    """Convert a checkpoint of fairseq."""
    huggingface.safetensors_torch()  # before any work
    loaded = read_state(source)
    options, state = model_options(loaded, source), dict(loaded["model"])
    compat.drop_stale_encoder_keys(state, "encoder")
    kind = t5 if options.values.get("host") == "t5" else bart
    must_be_plain(options.values, source, kind.NAME)
    like_config: dict[str, Any] = {}
    rows = None
    try:
        table = len(state["encoder.embed_tokens.weight"])
        if like is not None:
            like_config = huggingface.read_object(like / "config.json")
            rows = rows_like(kind, like, like_config, source, table)
        config, weights = kind.to_huggingface(options, state, like_config, rows)
    except KeyError as error:
        raise CheckpointError(
            f"{source} lacks {error.args[0]}: not a {kind.NAME}; give a checkpoint of one"
        ) from error
    rest = [name for name in state if not name.endswith(".version")]
    if rest:
        raise ConfigError(
            f"Hugging Face's {kind.NAME} has no place for {first_items(sorted(rest))}; "
            "give a checkpoint of a plain one"
        )
    with whole_or_nothing(target) as folder:
        huggingface.write_model(folder, config, weights)
        copied = huggingface.copy_tokenizer(like, folder) if like else []
    print(f"{target}: config.json and model.safetensors of a {kind.NAME}")
    print(f"  tokenizer: {', '.join(copied)}" if copied else "  no tokenizer: --like gives one")


def rows_like(
    kind: ModuleType, like: Path, config: dict[str, Any], source: Path, words: int
) -> list[int]:
    """Return the rows of fairseq's words in the matrices of ``--like``.

    Raises:
        ConfigError: a folder that a checkpoint of so many words was not converted from.
    """
    if kind_of(config, like) is not kind:
        raise ConfigError(
            f"--like {like} is a {config['model_type']}, but {source} is not; "
            "give the folder that it was converted from"
        )
    settings = Settings(config, f"--like {like}: config.json")
    # fairseq's <s> may be one row more; no vocabulary is built for any other size.
    size = settings.integer("vocab_size", high=MOST_WORDS)
    rows: list[int] = kind.vocabulary(like, settings).rows if abs(words - size) < 2 else []
    if len(rows) != words:
        raise ConfigError(
            f"the checkpoint has {words} words, but the tokenizer of --like {like} needs "
            f"{len(rows) or size}; give the folder that the checkpoint was converted from"
        )
    return rows


def model_options(loaded: dict[str, Any], source: Path) -> Settings:
    """Return the flat options of a checkpoint's model.

    Raises:
        CheckpointError: it has none, or more layers than weights.
    """
    options = saved_options(loaded)
    if "encoder_embed_dim" not in options:
        raise CheckpointError(
            f"{source} does not contain the sizes of its model; give one that fairseq-train saved"
        )
    settings = Settings(options, str(source))
    layers = settings.integer("encoder_layers") + settings.integer("decoder_layers")
    if layers > len(loaded["model"]):
        raise CheckpointError(
            f"{source} asks for {layers} layers, but it has only {len(loaded['model'])} weights; "
            "give one that fairseq-train saved"
        )
    return settings


def must_be_plain(options: Mapping[str, Any], source: Path, name: str) -> None:
    """Raise ConfigError, naming the parts of a model that the other format lacks."""
    mixtures = (f"{slot}_mixture" for slot in SLOTS)
    plain = {**dict.fromkeys(SLOTS, "dot"), **dict.fromkeys(mixtures, "none"), "recurrence": "none"}
    parts = [
        f"{flag(key)} {options[key]}"
        for key, value in plain.items()
        if options.get(key, value) != value
    ]
    if parts:
        raise ConfigError(
            f"{source} has parts that Hugging Face's {name} cannot represent: {', '.join(parts)}; "
            "give a model without them"
        )
