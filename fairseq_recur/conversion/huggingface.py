"""Reading and writing a folder of Hugging Face's format: config.json, weights, tokenizer."""

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fairseq_recur.errors import CheckpointError, ConfigError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def safetensors_torch() -> ModuleType:
    """The package that reads and writes safetensors.

    Raises:
        ConfigError: if it is not installed
    """
    try:
        import safetensors.torch
    except ImportError as error:
        raise ConfigError(
            "safetensors is not installed: pip install 'fairseq-recur[convert]'"
        ) from error
    return safetensors.torch


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ConfigError: if there is no such file
        CheckpointError: if it holds anything else
    """
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in path.parent.glob("*"))[:12]) or "nothing"
        raise ConfigError(
            f"no {path.name} in {path.parent}, which holds {there}; "
            "expected a model's folder in Hugging Face's format"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; get it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: expected an object, found {content!r:.60}")
    return content


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder, in one file or in shards with an index; no code is run.

    Raises:
        ConfigError: if there are none, or a shard is missing
        CheckpointError: if a file is damaged
    """
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return read_tensors(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return read_shards(index)
    raise ConfigError(
        f"no weights in {folder}: expected {' or '.join(WEIGHT_FILES)}, or shards of one with its "
        "index (weights of TensorFlow or Flax cannot be read)"
    )


def read_shards(index: Path) -> dict[str, Tensor]:
    """The weights of all files that an index names."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        raise CheckpointError(f"{index} is damaged: it has no weight_map; get it again")
    shards = sorted({Path(place).name for place in places.values()})
    absent = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent:
        raise ConfigError(
            f"{index} names {', '.join(absent)}, which {index.parent} does not have; "
            "get them as well"
        )
    weights: dict[str, Tensor] = {}
    for shard in shards:
        weights.update(read_tensors(index.parent / shard))
    lost = sorted(places.keys() - weights.keys())
    if lost:
        raise CheckpointError(
            f"{index} names {', '.join(lost[:5])}, which no shard has; get the shards again"
        )
    return weights


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of one file, by name."""
    safe = file.suffix == ".safetensors"
    load = safetensors_torch().load_file if safe else load_pickled
    try:
        weights = load(file)
    except Exception as error:  # damaged bytes raise whatever they lead to
        raise CheckpointError(
            f"{file} cannot be read: {type(error).__name__}: {error}; get it again"
        ) from error
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise CheckpointError(
            f"{file} holds something else than named tensors; expected a model's weights"
        )
    return weights


def load_pickled(file: Path) -> Any:
    """Tensors that torch has saved, without running code from the file."""
    return torch.load(file, map_location="cpu", weights_only=True)


def write_model(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors into a folder that is there."""
    text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    # A tensor that two names share would be refused.
    copies = {name: weight.detach().clone().contiguous() for name, weight in weights.items()}
    safetensors_torch().save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})


def copy_tokenizer(source: Path, target: Path) -> list[str]:
    """Copy the files of a tokenizer that are there; their names."""
    found = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in found:
        shutil.copyfile(source / name, target / name)
    return found
