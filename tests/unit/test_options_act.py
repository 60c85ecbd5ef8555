"""Each declared option of the parts acts, in every part that declares it.

Two small models with the same seed differ in one option. Their weights, their outputs or their
gradients must differ. A new option is found by itself; a number or a text needs an entry in
`OTHER_VALUES`.
"""

from argparse import Namespace
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import build_model
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.models import config
from fairseq_recur.models.config import Slot, part_fields, part_options
from tests.configuring import model_config
from tests.conftest import PLAIN, SMALL
from tests.series import SIZES, write_series
from tests.unit.test_memory_model import SMALL_XL
from tests.unit.test_model_properties import sentences, targets, true_lengths
from tests.unit.test_time_series import task

RATES = "--dropout 0.1 --attention-dropout 0.2 --activation-dropout 0.1".split()

KINDS: dict[str, list[Slot]] = {
    "encoder-decoder": config.encoder_decoder_slots(),
    "language-model": config.language_model_slots(),
    "forecaster": config.forecaster_slots(),
}

APART: dict[str, tuple[str, dict[str, Any]]] = {
    "T5Options": ("encoder-decoder", {"host": "t5"}),
    "MonitoringOptions": ("encoder-decoder", {}),
    "TransformerXLOptions": ("language-model", {"language_model_host": "transformer_xl"}),
    "Options": ("forecaster", {}),  # of the memory of series
}
"""Options that belong to no slot: the kind of a model that has them, and what they need."""

OTHER_VALUES: dict[str, list[Any]] = {
    "relative_clip": [2, 3],
    "xl_clamp_length": [2],
    "prob_sparse_factor": [2],
    "rsa_gate_init": ["1"],
    "rsa_heads": ["0,1,1,0,0,0", "1,0,0,0,0,0"],
    "rsa_dilations": ["2", "3"],
    "rsa_max_power": [1, 2],
    "rsa_eta_init": ["0.1,0.8"],
    "rsa_nu_init": ["0.1,0.8"],
    "rsa_theta_init": [0.3],
    "learned_matrix_length": [3],
    "segment_size": [2, 64],
    "target_length": [2],
    "target_ratio": [0.3],
    "srformer_leak_init": [0.3],
    "srformer_threshold_init": [0.5],
    "srformer_clamp": [0.05],
    "recurrence_layers": [2],
    "recurrence_lr_scale": [3.0],
    "recurrence_steps": [3, -1],
    "recurrence_fused_layers": ["all"],
    "memory_length": [2, 0],
    "init_std": [0.1],
    "recurrent_layer": [1],
    "recurrent_state_length": [3],
    "recurrent_block": [1, 3],
    "latent_chunk": [1, 3],
    "latent_states": [3],
    "latent_every": [1],
    "t5_relative_buckets": [4],
    "t5_relative_max_distance": [6],
    "t5_head_dim": [5],
    "monitor_interval": [1],
    "decoder_head_dim": [5],
}
"""Values besides the default of what is neither a choice nor a switch."""

DILATED, CYCLICAL = {"rsa_heads": "0,0,0,2,0,0"}, {"rsa_heads": "0,1,1,0,0,0"}
CONTEXT: dict[str, dict[str, Any]] = {
    "rsa_dilations": {**DILATED, "rsa_dilations": "1"},
    "rsa_nu_init": CYCLICAL,
    "rsa_theta_init": CYCLICAL,
    "rsa_untie_conjugates": CYCLICAL,
    "prob_sparse_factor": {"prob_sparse_factor": 1},
    "target_length_mode": {"target_length": 128},
    "target_ratio": {"target_length": 128},
    "t5_relative_max_distance": {"t5_relative_buckets": 8, "t5_relative_max_distance": 128},
}
"""What an option needs in order to act on sentences of a few words, besides what it declares."""

FORMS = {"rsa_form", "srformer_form", "monitor_interval"}
"""Forms of computation, and monitoring: they must change neither outputs nor gradients."""


def of_part(slot: Slot, name: str) -> dict[str, Any]:
    """The options with which a part stands in its slot and acts."""
    chosen: dict[str, Any] = {slot.option: name}
    for other, values in (slot.needs or {}).items():
        chosen[other] = values[0]
    if slot.option == "cross_attention" and name != "dot":
        chosen |= {"segment_size": 3, "target_length": 5}
    if (slot.option, name) == ("recurrence_fusion", "replace"):
        chosen["recurrence_input"] = "encoder"
    if slot.option == "decoder_memory" and name != "latent":
        chosen["memory_length"] = 6
    return chosen


def fits(kind: str, slot: Slot, part: Any) -> bool:
    """Whether a part can stand in a slot: a map of a whole sequence not in a decoder of text."""
    if not slot.option.endswith("self_attention"):
        return True
    side = slot.option.split("_")[0]
    known = side == "encoder" or kind == "forecaster" or part.stepwise
    return side in part.sides and known


def cases() -> Iterator[tuple[str, str, str, Any, dict[str, Any]]]:
    """Each option with each part that declares it: kind, option, part, field, and context."""
    for kind, slots in KINDS.items():
        made = {name: declared for name, _, declared in part_fields(slots)}
        types = {name: kind_of for name, kind_of, _ in part_fields(slots)}
        for option, owners in part_options(slots).items():
            needs = made[option].metadata.get("needs", {})
            needed = {name: values[0] for name, values in needs.items()}
            for owner in owners:
                flag, names = owner.removeprefix("--").split(" ", 1)
                slot = next(s for s in slots if s.option == flag.replace("-", "_"))
                for name in names.split(" or "):
                    if not fits(kind, slot, slot.table[name]):
                        continue
                    context = {**needed, **of_part(slot, name), **CONTEXT.get(option, {})}
                    if option == "prob_sparse_mixed_rows":
                        context |= {f"{slot.option}_mixture": "rsa", "prob_sparse_factor": 1}
                    field = Namespace(type=types[option], default=made[option].default)
                    yield kind, option, f"{slot.option}={name}", field, context
    for kind, declaring in config.APART.items():
        for options in declaring:
            wanted, context = APART[options.__name__]
            if kind.replace("_", "-") == wanted:
                for option, kind_of, declared in config.option_fields(options):
                    field = Namespace(type=kind_of, default=declared.default)
                    # A host itself is compared with the usual one.
                    more = {name: value for name, value in context.items() if name != option}
                    more |= CONTEXT.get(option, {})
                    yield wanted, option, options.__name__, field, more


CASES = list(cases())


def values_of(option: str, field: Any) -> list[Any]:
    """Values of an option other than its default."""
    if hasattr(field.type, "__members__"):
        return [e.value for e in field.type if e.value != field.default]
    if field.type is bool:
        return [not field.default]
    assert option in OTHER_VALUES, f"add other values of {option} to OTHER_VALUES of this test"
    return OTHER_VALUES[option]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, dictionary: Dictionary) -> Any:
    """Build a model of a kind in training: ``make("forecaster", {"rsa_form": "dense"})``."""
    series = task(write_series(tmp_path_factory.mktemp("series") / "x.csv"))
    text = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)

    @cache
    def base(kind: str, host: str) -> Any:
        if kind == "forecaster":
            flags = [*SIZES, *RATES, *"--encoder-self-attention dot".split()]
            flags += "--decoder-self-attention dot".split()
            return model_config("time_series_forecasting", "informer", flags, data=[])
        if kind == "language-model":
            flags = [*SMALL_XL[: SMALL_XL.index("--dropout")], *RATES, "--decoder-memory", "none"]
            flags += "--tokens-per-sample 4 --decoder-self-attention dot".split()
            flags += ["--language-model-host", "transformer"]
            return model_config("language_modeling", "xl_lm_tiny", flags)
        arch = "t5_small" if host == "t5" else "srformer"
        return model_config("translation", arch, [*SMALL, *PLAIN, *RATES])

    def build(kind: str, options: dict[str, Any], dropout: bool) -> nn.Module:
        cfg = deepcopy(base(kind, options.get("host", "")))
        rates = {} if dropout else {flag[2:].replace("-", "_"): 0.0 for flag in RATES[::2]}
        for name, value in {**options, **rates}.items():
            cfg[name] = value
        torch.manual_seed(1)
        model = series.build_model(cfg) if kind == "forecaster" else build_model(cfg, text)
        return model.double().train()

    return build


def outputs(kind: str, model: nn.Module) -> Tensor:
    """What a model computes in training, in two batches the second of which continues the first."""
    torch.manual_seed(2)
    if kind == "encoder-decoder":
        source = sentences([9, 4, 6], "left")
        return model(source, true_lengths(source), targets(3, 7))[0]
    starts, found = torch.tensor([100, 500]), []
    for step in (0, 4):
        if kind == "language-model":
            remembers = getattr(model.decoder, "memory", None) is not None
            places = {"starts": starts + step} if remembers else {}
            found.append(model(torch.randint(4, 60, (2, 4)), **places)[0])
        else:
            sizes = (2, 12, 2), (2, 12, 4), (2, 4, 4)
            found.append(model(*(torch.randn(size).double() for size in sizes), starts + step))
    return torch.cat(found, dim=1)


def measured(kind: str, model: nn.Module) -> dict[str, Tensor]:
    """Weights, what they ask of the optimizer, outputs and gradients."""
    found = {f"weight {name}": x.clone() for name, x in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        asked = getattr(parameter, "optim_overrides", {"optimizer": {}})["optimizer"]
        found |= {f"{key} {name}": torch.tensor(float(x)) for key, x in asked.items()}
        if not parameter.any():  # such as a matrix that is learned from zero
            nn.init.normal_(parameter)
    out = outputs(kind, model)
    found["outputs"] = out.detach()
    torch.manual_seed(3)
    (out * torch.randn_like(out)).sum().backward()
    for name, parameter in model.named_parameters():
        # Otherwise new weights alone, and other random ones beside them, would count as an effect.
        assert parameter.grad is not None, f"{name} is never read"
        found[f"gradient {name}"] = parameter.grad
    return found


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """What only one has, or has by more than rounding another value."""
    return sorted(one.keys() ^ other.keys()) + [
        name
        for name in one.keys() & other.keys()
        if one[name].shape != other[name].shape
        or not torch.allclose(one[name].double(), other[name].double(), rtol=1e-6, atol=1e-9)
    ]


FIRST: dict[str, tuple[str, str]] = {}
"""For each option the first kind and part with it, which is in the fast run."""
for _kind, _option, _owner, _field, _context in CASES:
    FIRST.setdefault(_option, (_kind, _owner))


@pytest.mark.parametrize("kind, option, field, context", [
    pytest.param(
        kind, option, field, context, id=f"{kind}-{owner}-{option}",
        marks=() if FIRST[option] == (kind, owner) else pytest.mark.slow,
    )
    for kind, option, owner, field, context in CASES
])  # fmt: skip
def test_option_acts(
    make: Any, kind: str, option: str, field: Any, context: dict[str, Any]
) -> None:
    """Every other value of an option that can be used makes another model, or an equal one."""
    form = option in FORMS
    usual = measured(kind, make(kind, context, dropout=not form))
    acted = []
    for value in values_of(option, field):
        try:
            model = make(kind, {**context, option: value}, dropout=not form)
        except ConfigError as error:
            assert "has no effect" not in str(error), error
            continue
        acted.append(bool(differing(usual, measured(kind, model))))
        assert acted[-1] != form, f"{option}={value}"
    assert acted, "no other value can be used"


@pytest.mark.parametrize("kind", KINDS)
def test_equal_options_make_equal_models(make: Any, kind: str) -> None:
    """Otherwise the test above would say little."""
    usual, again = (measured(kind, make(kind, {}, dropout=True)) for _ in range(2))
    assert not differing(usual, again) and usual["outputs"].any()


def test_every_table_names_options() -> None:
    """A name that is no option any more would hide that its successor has no entry."""
    options = {option for _, option, *_ in CASES}
    assert options >= {*OTHER_VALUES, *CONTEXT, *FORMS}
    for slots in KINDS.values():
        assert set(part_options(slots)) <= options
