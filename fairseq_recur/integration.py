"""What the plug-in adds around fairseq's own commands, for every model.

Each function receives the one that it wraps as its first argument. These are additions; corrections
of the installed libraries are in `fairseq_recur.compat`.
"""

import contextvars
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.models import MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import DictConfig, open_dict

from fairseq_recur.compat.interactive import TRANSLATION
from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.compat.validations import counted_for_patience
from fairseq_recur.errors import ConfigError

logger = logging.getLogger(__name__)

_loading = contextvars.ContextVar("loading", default=False)


def from_checkpoint() -> bool:
    """Return whether the model that is being built is loaded from a checkpoint.

    A checkpoint names every option with the default of its time. fairseq tells the task's
    build_model, but not the model's, that no user has set them.
    """
    return _loading.get()


@contextmanager
def loading() -> Iterator[None]:
    """Make `from_checkpoint` true."""
    before = _loading.set(True)
    try:
        yield
    finally:
        _loading.reset(before)


@extend("fairseq.checkpoint_utils:load_model_ensemble_and_task", "from_checkpoint")
def load_model_ensemble_and_task(load: Function, *args: Any, **kwargs: Any) -> Any:
    """Make `from_checkpoint` true while models are loaded."""
    with loading():
        return load(*args, **kwargs)


@extend("fairseq.checkpoint_utils:load_checkpoint_to_cpu", "task of a validation")
def load_checkpoint_to_cpu(
    load: Function, path: str, arg_overrides: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Refuse a --task of fairseq-validate that it would ignore.

    Its command line overrides options of the checkpoint, but not the task itself.
    """
    state = load(path, arg_overrides, *args, **kwargs)
    given = arg_overrides or {}
    if "path" not in given or "task" not in given:  # only fairseq-validate has both here
        return state
    saved = state["cfg"]["task"]
    name = getattr(saved, "task", None) or getattr(saved, "_name", None)
    if name != given["task"]:
        raise ConfigError(
            f"--task {given['task']}: {path} was trained with --task {name}, and only that task "
            f"can validate it; give --task {name}"
        )
    return state


@extend("fairseq.checkpoint_utils:load_checkpoint", "finished trainings")
def load_checkpoint(load: Function, cfg: Any, trainer: Any, **kwargs: Any) -> Any:
    """Leave a training that has reached --max-update or --patience as it is.

    fairseq itself would continue each time such a training is started again.
    """
    found = load(cfg, trainer, **kwargs)
    optimization = trainer.cfg.optimization
    limit, made = getattr(optimization, "max_update", None), trainer.get_num_updates()
    patience, waited = getattr(cfg, "patience", None), counted_for_patience().get("num_runs", 0)
    reached = ""
    if isinstance(limit, int) and isinstance(made, int) and 0 < limit <= made:
        reached = f"{made} updates are made, --max-update is {limit}"
    elif isinstance(patience, int) and 0 < patience <= waited:
        reached = f"{waited} validations were not better, --patience is {patience}"
    if reached:
        logger.info(f"Nothing is left to train: {reached}")
        with open_dict(trainer.cfg):
            optimization.max_epoch = -1  # so the loop of fairseq_cli.train runs no epoch
    return found


@extend(f"{TRANSLATION}.inference_step", "empty lines")
def inference_step(
    infer: Function, self: Any, generator: Any, models: Any, sample: Any,
    prefix_tokens: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Give an empty source an empty output, as `from_pretrained` does; a model would invent one."""
    found = infer(self, generator, models, sample, prefix_tokens=prefix_tokens, **kwargs)
    read, words = sample["net_input"].get("src_tokens"), self.source_dictionary
    translates = isinstance(generator, SequenceGenerator) and prefix_tokens is None
    if not translates or not isinstance(read, torch.Tensor) or words is None:
        return found
    length = (read.ne(words.pad()) & read.ne(words.eos())).sum(1)
    least = len(getattr(self, "prefix", None) or [])
    nothing = {
        "tokens": read.new_tensor([self.target_dictionary.eos()]),
        "score": torch.zeros(()),
        "attention": torch.empty(0),
        "alignment": torch.empty(0),
        "positional_scores": torch.zeros(1),
    }
    return [[dict(nothing)] if n <= least else f for n, f in zip(length.tolist(), found)]


@extend(f"{TRANSLATION}.filter_indices_by_size", "truncation")
def filter_indices_by_size(select: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Name --truncate-source in the error for a line that is too long."""
    try:
        return select(self, *args, **kwargs)
    except Exception as error:  # fairseq raises this base class
        if not str(error).startswith("Size of sample"):
            raise
        raise ConfigError(
            f"{error}. Such lines would have no output: truncate long sources with "
            "--truncate-source and --max-source-positions N, and in --task summarization "
            "long targets with --truncate-target"
        ) from None


@extend(
    "fairseq.tasks.multilingual_translation:MultilingualTranslationTask.build_model",
    "models of several languages",
)
def build_multilingual_model(
    build: Function, self: Any, args: Any, *rest: Any, **named: Any
) -> Any:
    """Refuse a model for one pair of languages.

    fairseq first compares options of the task with options that such a model, whose
    configuration is a dataclass, does not have.
    """
    refuse_one_pair("multilingual_translation", args)
    return build(self, args, *rest, **named)


@extend(
    "fairseq.tasks.semisupervised_translation:SemisupervisedTranslationTask.build_model",
    "models of several languages",
)
def build_semisupervised_model(
    build: Function, self: Any, args: Any, *rest: Any, **named: Any
) -> Any:
    """Refuse a model for one pair of languages before it is built."""
    refuse_one_pair("semisupervised_translation", args)
    return build(self, args, *rest, **named)


def refuse_one_pair(task: str, args: Any) -> None:
    """Raise ConfigError if these are not the options of a model for several pairs of languages."""
    if isinstance(args, DictConfig) and "lang_pairs" not in args:
        raise ConfigError(
            f"--task {task} needs a model for several pairs of languages, such as --arch "
            f"multilingual_transformer, found {args.get('_name')}; choose such a model, or another "
            "task: translation_multi_simple_epoch has one model for all pairs"
        )


@extend(
    "fairseq.tasks.sentence_prediction:SentencePredictionTask.build_model",
    "models that classify",
)
def build_classifier(build: Function, self: Any, cfg: Any, *rest: Any, **named: Any) -> Any:
    """Refuse a model without heads that classify: fairseq would look for them after building it."""
    kind = MODEL_REGISTRY.get(getattr(cfg, "_name", None))
    if kind is not None and kind.__module__.startswith("fairseq_recur."):
        raise ConfigError(
            "--task sentence_prediction needs a model that classifies, such as --arch bart_base, "
            f"found {cfg._name}; train this one with --task translation, to write the class"
        )
    return build(self, cfg, *rest, **named)


@extend(
    "fairseq.tasks.translation_lev:TranslationLevenshteinTask.build_model",
    "non-autoregressive models",
)
def build_lev_model(build: Function, self: Any, *args: Any, **named: Any) -> Any:
    """Refuse a model that predicts one word after another: the criterion would fail on it."""
    model = build(self, *args, **named)
    if type(model).__module__.startswith("fairseq_recur."):
        raise ConfigError(
            "--task translation_lev needs a non-autoregressive model, found "
            f"{type(model).__name__}; train this one with --task translation"
        )
    return model


@extend(
    "fairseq.tasks.online_backtranslation:OnlineBackTranslationTask.build_model",
    "limits of positions",
)
def build_backtranslation_model(build: Function, self: Any, *args: Any, **named: Any) -> Any:
    """Give the task the limits that it reads from options, where fairseq's own models put them."""
    model = build(self, *args, **named)
    for name, limit in zip(("max_source_positions", "max_target_positions"), model.max_positions()):
        if getattr(self.args, name, None) is None:
            setattr(self.args, name, limit)
    return model
