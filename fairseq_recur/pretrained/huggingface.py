"""Export of models to Hugging Face's library."""

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairseq_recur.conversion.huggingface import safetensors_torch, write_model
from fairseq_recur.errors import ConfigError
from fairseq_recur.models.model import RecurrentTransformerModel
from fairseq_recur.pretrained.model import Pretrained

CODE = Path(__file__).with_name("modeling_fairseq_recur.py")

LONGEST = 201
"""The most words of an output, with the end of the sentence: the default of fairseq-generate."""


def export(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a model for ``AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)``.

    Args:
        pretrained: one encoder-decoder of this package.
        folder: an existing, empty folder.

    Returns:
        The names of the dictionaries and of the files with the rules of subwords.

    Raises:
        ConfigError: another kind of model, or an ensemble; safetensors is not installed.
    """
    model, task = pretrained.model, pretrained.task
    if not isinstance(model, RecurrentTransformerModel) or len(pretrained.models) > 1:
        raise ConfigError(
            f"export: expected one encoder-decoder of fairseq_recur, found {pretrained!r}; give "
            "its checkpoint"
        )
    safetensors_torch()  # before any work
    config = {
        "model_type": "fairseq_recur",
        "architectures": ["FairseqRecurForSeq2SeqLM"],
        "auto_map": {
            "AutoConfig": f"{CODE.stem}.FairseqRecurConfig",
            "AutoModelForSeq2SeqLM": f"{CODE.stem}.FairseqRecurForSeq2SeqLM",
        },
        "options": model_options(model),
        "source_words": len(task.source_dictionary),
        "vocab_size": len(task.target_dictionary),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }
    # Names that share a tensor have it once, under the first name.
    first = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    weights = {f"model.{name}": w for name, w in model.state_dict().items() if name in first}
    write_model(folder, config, weights)
    words = task.target_dictionary
    generation = {
        "num_beams": 5,
        "early_stopping": True,
        "length_penalty": 1.0,
        # As fairseq's, of the whole output; they count the symbol at the beginning. Limits of new
        # tokens would hide what a caller gives as max_length or min_length.
        "min_length": 2,
        "max_length": min(LONGEST, model.max_decoder_positions()) + 1,
        "bos_token_id": words.bos(),
        "pad_token_id": words.pad(),
        "eos_token_id": words.eos(),
        "decoder_start_token_id": words.eos(),
        "suppress_tokens": [words.pad()],
    }
    text = json.dumps(generation, indent=2, sort_keys=True)
    (folder / "generation_config.json").write_text(text + "\n", encoding="utf-8")
    shutil.copyfile(CODE, folder / CODE.name)
    return write_text_files(pretrained, folder)


def model_options(model: RecurrentTransformerModel) -> dict[str, Any]:
    """Return the options that build a model like this one, without its initial weights."""
    given = model.options
    names = {field.name for field in fields(type(model).config_class)} - {"_name"}
    options = {name: given[name] for name in sorted(names & given.keys())}
    options["_name"] = given.get("_name") or given["arch"]
    options["encoder_embed_path"] = options["decoder_embed_path"] = None
    return options


def write_text_files(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write the dictionaries and copy the files of the subwords; return their names."""
    names: dict[str, None] = {}
    for side, language in (("source", "source_lang"), ("target", "target_lang")):
        text = getattr(pretrained, side)
        name = f"dict.{getattr(pretrained.task.cfg, language)}.txt"
        text.dictionary.save(str(folder / name))
        names[name] = None
        for file in text.files:
            shutil.copyfile(file, folder / file.name)
            names[file.name] = None
    return list(names)
