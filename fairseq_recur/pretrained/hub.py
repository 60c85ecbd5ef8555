"""Scores of given translations by fairseq's own hub interface, also for stock models."""

from collections.abc import Sequence
from typing import Any

from fairseq import utils
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError
from fairseq_recur.pretrained.batches import batches, fit, limits, pairs


@extend("fairseq.hub_utils:GeneratorHubInterface.score", "scores of translations")
def hub_score(
    score: Function, hub: Any, sentences: Any, *args: Any, targets: Any = None, **kwargs: Any
) -> Any:
    """Score given translations of sentences, which fairseq's own does for language models only.

    Args:
        score: fairseq's method
        hub: what ``from_pretrained`` of a fairseq model returns
        sentences: a sentence or a list
        args: of *score*
        targets: a translation for each sentence
        kwargs: options of fairseq-generate

    Returns:
        fairseq's hypothesis of each translation, or of the one

    Raises:
        ConfigError: the translations are missing, or are not as many; or a text is too long
    """
    if not isinstance(hub.task, TranslationTask):
        return score(hub, sentences, *args, **kwargs)
    one = isinstance(sentences, str)
    if one and isinstance(targets, str):
        return hub_score_pairs(hub, [sentences], [targets], kwargs)[0]
    several = not one and not isinstance(targets, str)
    if targets is None or not several or len(targets) != len(sentences):
        raise ConfigError(
            "score: expected a translation for each sentence; give targets=, a text for a text or "
            "a list for a list"
        )
    return hub_score_pairs(hub, sentences, targets, kwargs)


def hub_score_pairs(
    hub: Any, sources: Sequence[str], targets: Sequence[str], options: dict[str, Any]
) -> list[dict[str, Any]]:
    """The hypotheses that `hub_score` returns, one for each pair."""
    if not sources:
        return []
    pieces = [hub.apply_bpe(hub.tokenize(text)) for text in targets]
    aims = [hub.tgt_dict.encode_line(p, add_if_not_exist=False).long() for p in pieces]
    longest = limits(hub.task, hub.models)
    read = fit("sources", [hub.encode(text) for text in sources], longest[0], None)
    data = pairs(hub.task, read, fit("targets", aims, longest[1], None))
    given: dict[Any, Any] = {**options, "score_reference": True}
    settings = OmegaConf.merge(hub.cfg.generation, given)
    generator = hub.task.build_generator(hub.models, settings)
    size = hub.cfg.dataset.batch_size, hub.cfg.dataset.max_tokens
    found: dict[int, Any] = {}
    for batch in batches(hub.task, data, *size, progress=False):
        batch = utils.apply_to_sample(lambda x: x.to(hub.device), batch)
        of_batch = hub.task.inference_step(generator, hub.models, batch)
        found.update(zip(batch["id"].tolist(), (best for best, *_ in of_batch)))
    return [found[number] for number in range(len(sources))]
