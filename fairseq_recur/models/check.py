"""What is wrong with the options of the parts: all of it at once, before anything is built.

Options that only fairseq reads are left to fairseq.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields
from typing import Any

from fairseq.dataclass import FairseqDataclass

from fairseq_recur.errors import refuse
from fairseq_recur.models import config
from fairseq_recur.models.pruning import pruning_problems
from fairseq_recur.modules import parts
from fairseq_recur.modules.fusion import MultiColumn
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.multihead import uneven_heads
from fairseq_recur.modules.options import (
    declared,
    flag,
    out_of_range,
    unknown_choices,
    without_effect,
)
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.modules.t5 import own_head_width


def check_config(
    cfg: Namespace,
    slots: list[config.Slot],
    defaults: list[FairseqDataclass],
    loaded: bool,
    further: Iterable[str] = (),
) -> None:
    """Refuse options that cannot be used or would have no effect.

    Args:
        cfg: the model's options, flat
        slots: of the model
        defaults: the model's configuration without a preset, and that of the preset
        loaded: whether *cfg* comes from a checkpoint, whose defaults are those of its time: then
            no option counts as explicitly set, and a matrix may be zero
        further: problems of the kind of model, one message each

    Raises:
        ConfigError: with everything that is wrong, one line each
    """
    options = {f.name: f for f in fields(defaults[0])}
    owners = config.part_options(slots)
    apart = {
        name for declaring in config.APART.values() for name, *_ in config.option_fields(*declaring)
    }
    ours = {
        name: option
        for name, option in options.items()
        if name in owners or name in {slot.option for slot in slots} or name in apart
    }
    problems = list(unknown_choices(cfg, ours))
    if not problems:
        chosen = list(parts.chosen_parts(cfg))
        explicit = set() if loaded else explicitly_set(cfg, defaults)
        problems = [
            *out_of_range(cfg, ours),
            *pruning_problems(cfg),
            *set_without_effect(cfg, ours, owners, chosen, explicit),
            *(p for side, part in chosen for p in part.problems(cfg, side)),
            *(p for declaring in apart_from_slots(cfg) for p in declaring.problems(cfg)),
            *combinations(cfg),
            *(() if loaded else zero_matrices(cfg)),
            *further,
        ]
    refuse("the model's options cannot be used", list(dict.fromkeys(problems)))


def apart_from_slots(cfg: Namespace) -> Iterator[Any]:
    """The classes of options in no slot that a model has, and that have `problems`."""
    for declaring in dict.fromkeys(one for of_kind in config.APART.values() for one in of_kind):
        its_own = all(hasattr(cfg, option.name) for option in fields(declaring))
        if its_own and hasattr(declaring, "problems"):
            yield declaring


def explicitly_set(cfg: Namespace, defaults: list[FairseqDataclass]) -> set[str]:
    """The options whose value is the default neither of the model nor of the preset."""
    return {
        f.name
        for f in fields(defaults[0])
        if f.name != "_name"
        and all(getattr(cfg, f.name) != getattr(values, f.name) for values in defaults)
    }


def set_without_effect(
    cfg: Namespace,
    options: "dict[str, Field[Any]]",
    owners: dict[str, list[str]],
    chosen: list[tuple[str, Any]],
    explicit: set[str],
) -> Iterator[str]:
    """Options that were set but that no chosen part reads, or not under these other options."""
    read = {name for _, part in chosen for name in declared(part)}
    for name in (n for n in options if n in explicit):
        if name in owners and name not in read:
            found = f"{flag(name)} {getattr(cfg, name)}"
            yield f"{found} has no effect: it needs {joined(owners[name])}"
        else:
            yield from without_effect(cfg, name, options[name], chosen)


def joined(owners: list[str]) -> str:
    """["--a x", "--a y", "--b x"] as "--a x or y, or --b x"."""
    by_flag: dict[str, list[str]] = {}
    for owner in owners:
        name, value = owner.split(" ", 1)
        by_flag.setdefault(name, []).append(value)
    return ", or ".join(f"{name} {' or '.join(values)}" for name, values in by_flag.items())


def combinations(cfg: Namespace) -> Iterator[str]:
    """Incompatible parts, and parts chosen for the wrong side."""
    if getattr(cfg, "recurrence", parts.NONE) != parts.NONE:
        yield from joined_by_token(cfg)
    if hasattr(cfg, "cross_attention"):
        yield from cross_mixed(cfg)
    for side in ("encoder", "decoder"):
        if getattr(cfg, f"{side}_memory", parts.NONE) != parts.NONE:
            yield from memory_problems(cfg, side)
        if not hasattr(cfg, f"{side}_self_attention"):
            continue
        host = getattr(cfg, "host", "") or getattr(cfg, "language_model_host", "transformer")
        yield from uneven_heads(cfg, side, own_head_width(cfg, host, side))
        slot, given = f"--{side}-self-attention", getattr(cfg, f"{side}_self_attention")
        second = getattr(cfg, f"{side}_self_attention_mixture")
        if given in parts.MIXTURE and second not in (parts.NONE, given):
            yield f"{slot} {given} and {slot}-mixture {second} name two mixtures; leave one out"
            continue
        name, mixture = parts.map_and_mixture(cfg, side)
        part = parts.SELF_ATTENTION[name]
        if side not in part.sides:
            yield (
                f"{slot} {name}: this map is for the {' and the '.join(part.sides)} only, as a "
                "decoder's positions see no later ones; choose another map"
            )
        if side == "decoder" and not part.stepwise and not getattr(cfg, "one_pass", False):
            yield (
                f"{slot} {name}: this map reads later positions, which step-by-step decoding has "
                "not produced yet; choose another map"
            )
        if mixture != parts.NONE:
            yield from mixed(cfg, slot, part, name, parts.MIXTURE[mixture])
        if side == "decoder" and getattr(cfg, "cross_self_attention", False):
            if (name, mixture) != ("dot", parts.NONE):
                yield (
                    f"--cross-self-attention joins the self-attention with the cross-attention, "
                    f"and {slot} {given} needs one of its own; leave one out"
                )


def joined_by_token(cfg: Namespace) -> Iterator[str]:
    """A concatenation with a recurrent network whose output has another length than the source."""
    if not issubclass(parts.FUSION[cfg.recurrence_fusion], MultiColumn):
        return
    if not parts.RECURRENCE[cfg.recurrence].output_per_token(cfg):
        yield (
            f"--recurrence-fusion {cfg.recurrence_fusion} concatenates the outputs of two "
            f"encoders token by token, and --recurrence {cfg.recurrence} has an output per "
            "step instead; use --recurrence birnn, --recurrence-steps -1 or another "
            "--recurrence-fusion"
        )


def cross_mixed(cfg: Namespace) -> Iterator[str]:
    """A mixture with a cross-attention that has no place for it."""
    name, mixture = cfg.cross_attention, cfg.cross_attention_mixture
    if mixture == parts.NONE:
        return
    slot = f"--cross-attention-mixture {mixture}"
    mixable = [key for key, part in parts.CROSS_ATTENTION.items() if part.mixable]
    if name not in mixable:
        yield (
            f"{slot} cannot be mixed with --cross-attention {name}; choose --cross-attention "
            f"{' or '.join(mixable)}"
        )
    for option in ("no_cross_attention", "cross_self_attention"):
        if getattr(cfg, option, False):
            yield f"{flag(option)} cannot be combined with {slot}; leave one out"


def memory_problems(cfg: Namespace, side: str) -> Iterator[str]:
    """A memory with a map that cannot read it."""
    name, _ = parts.map_and_mixture(cfg, side)
    if side == "decoder" and not parts.MEMORY[cfg.decoder_memory].of_positions:
        return
    if not parts.SELF_ATTENTION[name].reads_memory:
        able = [key for key, part in parts.SELF_ATTENTION.items() if part.reads_memory]
        yield (
            f"--{side}-memory {getattr(cfg, f'{side}_memory')} cannot be read by "
            f"--{side}-self-attention {name}; choose --{side}-self-attention {' or '.join(able)}"
        )


def zero_matrices(cfg: Namespace) -> Iterator[str]:
    """Matrices that are zero in all positions that a language model's memory lets see."""
    memory = getattr(cfg, "decoder_memory", parts.NONE)
    _, mixture = parts.map_and_mixture(cfg, "decoder")
    if parts.NONE not in (memory, mixture):
        yield from parts.MIXTURE[mixture].zero_with(parts.MEMORY[memory], cfg)


def mixed(
    cfg: Namespace, slot: str, part: type[SelfAttention], name: str, mixture: type[Mixture]
) -> Iterator[str]:
    """A mixed map where the attention map is not all of a head's output."""
    lacking = part.without_map(cfg, f"{slot} {name}")
    if lacking is None:
        return
    if cfg.rsa_form == "mixed":
        yield f"--rsa-form mixed needs a mixed map, which {lacking} does not have; use dense"
    dropped = getattr(cfg, "rsa_dropout", "softmax") == "mixed"
    if dropped and "rsa_dropout" in declared(mixture):
        yield (
            f"--rsa-dropout mixed needs a mixed map, which {lacking} does not have; choose softmax"
        )
