"""Monitoring of the recurrent parts, compared with definitions computed in another way."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fairseq.logging import meters, metrics
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor, nn

from fairseq_recur.models import monitoring
from fairseq_recur.models.monitoring import of_parameters, place, step_time
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.part import MonitoredModule
from fairseq_recur.modules.parts import quantities
from fairseq_recur.modules.recurrence import SATURATED
from fairseq_recur.modules.srformer import SRformerAttention
from fairseq_recur.ops import naive
from tests.conftest import LANGUAGE_MODELS, SEGMENTS, SMALL, STRUCTURES
from tests.unit.test_language_model import SMALL_LM
from tests.unit.test_memory_model import TRAINED, small, systems
from tests.unit.test_model_properties import PAD, sentences, targets, true_lengths

Build = Callable[..., nn.Module]
NO_DROPOUT = "--dropout 0 --attention-dropout 0 --activation-dropout 0".split()
EVERY = ["--monitor-interval", "1"]
LAYERS = [f"{side}_{index}" for side in ("encoder", "decoder") for index in (0, 1)]

# Parts that have nothing recurrent. A part that is not among them has a number of its own to show.
STEADY = {"none", "dot", "relative", "directional", "segmented", "xl", "global"}


def batch(lengths: tuple[int, ...] = (9, 1, 5, 2), side: str = "left") -> tuple[Tensor, ...]:
    """Sources with padding, their lengths, and decoder inputs with padding to the right."""
    source = sentences(list(lengths), side)
    target = targets(len(lengths), 7)
    for row, length in zip(target, range(7, 0, -1)):
        row[max(2, length) :] = PAD
    return source, true_lengths(source), target


@contextmanager
def log() -> Iterator[dict[str, Any]]:
    """A line of the training log, complete after the with block."""
    line: dict[str, Any] = {}
    with metrics.aggregate(new_root=True) as logged:
        yield line
    line.update(logged.get_smoothed_values())
    line.setdefault("step_time", None)


def update(model: nn.Module, inputs: tuple[Tensor, ...], number: int = 0) -> dict[str, Any]:
    """The log's values after one update's forward pass."""
    with log() as line:
        model.train().set_num_updates(number)
        model(*inputs)
    return line


def noisy(model: nn.Module) -> nn.Module:
    """The model with gates and biases that are not at zero."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or not parameter.any():
            nn.init.normal_(parameter, std=0.5)
    return model.double()


def shown(line: dict[str, Any]) -> list[str]:
    return sorted(name for name in line if name != "step_time")


# ---- every preset


EXPECTED = {
    "rsa": {"gate", "rem"},
    "srformer": {"spike", "membrane", "membrane_sd"},
    "biarn": {"recurrent_norm", "saturation", "step_distance"},
    "birnn": {"recurrent_norm", "saturation"},
}
"""What the parts of the presets show."""


@pytest.mark.parametrize("arch", STRUCTURES)
def test_every_preset_with_a_recurrent_part_has_numbers_of_its_own(
    make_model: Build, arch: str
) -> None:
    config = ARCH_MODEL_REGISTRY[arch].config_class()
    slots = "encoder_self_attention decoder_self_attention cross_attention recurrence".split()
    recurrent = {getattr(config, slot) for slot in slots} - STEADY
    flags = [*SMALL, *(SEGMENTS if "srformer" in recurrent else [])]
    line = update(make_model(arch, *flags), batch())
    assert all(math.isfinite(line[name]) for name in shown(line))
    assert bool(shown(line)) == bool(recurrent)
    kinds = {name.rsplit("_", 2)[0] for name in shown(line)}
    assert kinds == set().union(*(EXPECTED[part] for part in recurrent))
    assert kinds <= quantities().keys(), "an axis without a unit"


def test_every_part_says_what_it_observes() -> None:
    parts: list[type[MonitoredModule]] = [MonitoredModule]
    observed: set[str] = set()
    for part in parts:
        parts += part.__subclasses__()
        names = {*part.means, *(f"{name}_sd" for name in part.deviations)}
        assert names <= part.quantities.keys(), part
        observed |= names
    assert {"spike", "membrane_sd", "fusion_gate", "step_distance"} <= observed


@pytest.mark.parametrize("arch", LANGUAGE_MODELS)
def test_language_models_have_numbers_of_their_own(make_model: Build, arch: str) -> None:
    line = update(make_model(arch, *SMALL_LM), (targets(3, 6),))
    assert {name.rsplit("_", 2)[0] for name in shown(line)} == EXPECTED["rsa"]
    assert all(math.isfinite(line[name]) for name in shown(line))


@pytest.mark.parametrize("name", systems(*TRAINED))
def test_models_with_a_memory_have_numbers_of_their_own(make_model: Build, name: str) -> None:
    """Of each layer with a mixture; the block-recurrent one, in the middle, has none."""
    arch, *flags = TRAINED[name]
    line = update(make_model(arch, *small(arch), *flags), (targets(3, 6),))
    layers = [0, 2] if "brt" in name else [0, 1, 2]
    expected = {f"{kind}_decoder_{i}" for kind in EXPECTED["rsa"] for i in layers}
    assert {*shown(line)} == (expected if name.startswith("rsa_") else set())
    assert all(math.isfinite(line[name]) for name in shown(line))


def test_every_layer_shows_its_part(make_model: Build) -> None:
    flags = [
        *SEGMENTS, *"--recurrence birnn --recurrence-layers 2".split(),
        *"--recurrence-fusion gated_sum --recurrence-fused-layers all".split(),
        "--srformer-learned-mix",
        *"--encoder-self-attention rsa --decoder-self-attention toeplitz".split(),
    ]  # fmt: skip
    model = make_model("srformer", *SMALL, *flags)
    of_decoder = "spike membrane membrane_sd fusion_gate sigma gate rem"
    expected = {
        *(f"{name}_encoder_{i}" for name in ("gate", "rem") for i in (0, 1)),
        *(f"{name}_decoder_{i}" for name in of_decoder.split() for i in (0, 1)),
        *(f"{name}_recurrence_{i}" for name in ("recurrent_norm", "saturation") for i in (0, 1)),
    }
    assert set(shown(update(model, batch()))) == expected
    # Two modules of a layer with a number of the same name would hide each other.
    numbers = sum(
        len(m.monitored()) + len(m.means) + len(m.deviations)
        for m in model.modules() if isinstance(m, MonitoredModule)
    )  # fmt: skip
    assert numbers == len(expected)


def test_places() -> None:
    assert place("encoder.layers.0.self_attn.mixture") == "encoder_0"
    assert place("decoder.layers.11.fusion") == "decoder_11"
    assert place("encoder.recurrence_encoder.layers.2.recurrence") == "recurrence_2"
    assert place("module.encoder._fsdp_wrapped_module.layers.3.x") == "encoder_3"


# ---- parameters


MATRICES = {
    "regular": [],
    "cosines": "--rsa-heads 0,1,1,0,0,0 --rsa-theta-init 1.3".split(),
    "dilated": "--rsa-heads 0,0,1,0,0,1 --rsa-dilations 3".split(),
    "capped": ["--rsa-max-power", "3"],
    "some-heads": "--rsa-heads 1,0,0,0,0,0".split(),
    "normalized": ["--rsa-normalize"],
}


@pytest.mark.parametrize("flags", MATRICES.values(), ids=MATRICES)
def test_rem_is_the_largest_row_sum(make_model: Build, flags: list[str]) -> None:
    model = make_model("rsa_transformer", *SMALL, "--rsa-gate-init", "0.5", *flags).double()
    found = of_parameters(model)
    for layer, module in zip(LAYERS, (m for m in model.modules() if isinstance(m, Mixture))):
        decay, angle = module.heads_parameters()
        rows = []
        for head in range(module.mixing):
            dilation = int(module.dilation[head])
            lags = 250 * dilation
            entries = [
                naive.rem_entry(
                    decay[head], angle[head], bool(module.sine[head]), dilation, n, module.max_power
                )
                for n in range(1, lags)
            ]
            side = sum(abs(float(x)) for x in entries)
            rows.append(side if module.causal else 2 * side)
        expected = min(1.0, max(rows)) if module.normalize else max(rows)
        assert found[f"rem_{layer}"].value == pytest.approx(expected, rel=1e-6)
        assert found[f"gate_{layer}"].value == pytest.approx(1 / (1 + math.exp(-0.5)))


@pytest.mark.parametrize("part", ["regular", "dilated", "toeplitz"])
def test_rem_of_a_matrix_with_a_limited_reach(make_model: Build, part: str) -> None:
    """As with --memory-same-length, where a position sees so many."""
    flags = MATRICES.get(part, ["--decoder-self-attention", part, "--learned-matrix-length", "9"])
    model = make_model("rsa_transformer", *SMALL, *flags).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    (module, *_) = [m for m in model.decoder.modules() if isinstance(m, Mixture)]
    for module.reach in (2, 5, 7, None):
        rows = module.matrix(700, 700).abs().sum(dim=2)
        torch.testing.assert_close(module.row_sum(), rows.max())


@pytest.mark.parametrize("part", ["toeplitz", "full_matrix"])
def test_rem_of_learned_matrices(make_model: Build, part: str) -> None:
    model = make_model(
        "rsa_transformer", *SMALL, "--encoder-self-attention", part,
        "--decoder-self-attention", part, "--learned-matrix-length", "5",
    ).double()  # fmt: skip
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    found = of_parameters(model)
    for layer, module in zip(LAYERS, (m for m in model.modules() if isinstance(m, Mixture))):
        # Eleven positions: the middle row has all learned lags on both sides.
        matrix = module.matrix(11, 11)
        largest = max(sum(abs(float(x)) for x in row) for head in matrix for row in head)
        assert found[f"rem_{layer}"].value == pytest.approx(largest, rel=1e-6)


def test_exploding_matrix_is_reported_once(
    make_model: Build, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model("rsa_transformer", *SMALL).train()
    model.set_num_updates(0)
    assert caplog.messages == []
    mixtures = [m for m in model.modules() if isinstance(m, Mixture)]
    nn.init.constant_(mixtures[0].eta, 4.0)
    for number in (10, 20):
        model.set_num_updates(number)
    (message,) = caplog.messages
    assert "rem_encoder_0" in message and "--rsa-normalize" in message


def rms_singular(blocks: list[Tensor]) -> float:
    values = torch.cat([torch.linalg.svdvals(block.detach()) for block in blocks])
    return math.sqrt(sum(float(v) ** 2 for v in values) / len(values))


def test_recurrent_norm_is_of_the_singular_values(make_model: Build) -> None:
    width = 16
    biarn = noisy(make_model("transformer_biarn", *SMALL))
    weight = biarn.encoder.recurrence_encoder.layers[0].recurrence.w_h
    blocks = [gate for direction in weight for gate in direction.split(width)]
    found = of_parameters(biarn)["recurrent_norm_recurrence_0"].value
    assert found == pytest.approx(rms_singular(blocks), rel=1e-9)

    for cell in ("gru", "lstm"):
        flags = ["--recurrence", "birnn", "--recurrence-cell", cell]
        birnn = noisy(make_model("transformer_biarn", *SMALL, *flags))
        rnn = birnn.encoder.recurrence_encoder.layers[0].recurrence.get_submodule(cell)
        blocks = [*rnn.weight_hh_l0.split(width), *rnn.weight_hh_l0_reverse.split(width)]
        found = of_parameters(birnn)["recurrent_norm_recurrence_0"].value
        assert found == pytest.approx(rms_singular(blocks), rel=1e-9)

    xl = noisy(
        make_model("srformer", *SMALL, "--cross-attention", "xl", "--xl-memory", "rnn", *SEGMENTS)
    )
    for index, layer in enumerate(xl.decoder.layers):
        rnns = layer.encoder_attn.rnns
        found = of_parameters(xl)[f"recurrent_norm_decoder_{index}"].value
        blocks = [rnns.keys.weight_hh_l0, rnns.values.weight_hh_l0]
        assert found == pytest.approx(rms_singular(blocks), rel=1e-9)


def test_sigma(make_model: Build) -> None:
    model = make_model("srformer", *SMALL, "--srformer-learned-mix")
    nn.init.constant_(model.decoder.layers[1].encoder_attn.learned_mix.logit, -2.0)
    found = of_parameters(model)
    assert found["sigma_decoder_0"].value == 0.5
    assert found["sigma_decoder_1"].value == pytest.approx(1 / (1 + math.exp(2)))


# ---- what the forward pass computes


def neurons_by_loops(
    module: SRformerAttention, keys: Tensor, values: Tensor, steps: list[int], head: int
) -> list[Tensor]:
    """The membranes of one head of one sentence, over the threshold, step by step."""
    weight, leak, threshold = module.neuron.values()
    bias = module.neuron.linear.bias
    if module.neuron.per_head:
        weight, leak, threshold = weight[head], leak[head], threshold[head]
        bias = None if bias is None else bias.view(-1, len(weight))[head]
    size = module.size

    def product(first: int, last: int) -> Tensor:
        out = naive.outer_products(list(keys[first:last]), list(values[first:last]))
        return out.clamp(-module.clamp, module.clamp) if module.clamp else out

    memory, found = torch.zeros_like(weight), []
    for segment in steps:
        own = product(segment * size, (segment + 1) * size)
        x = (product(0, len(keys)) - own if module.rest else own) @ weight.T
        x = x if bias is None else x + bias
        before = leak * memory + x
        _, memory = naive.raf(x, memory, leak, threshold, False)
        found.append(before / threshold)
    return found


NEURONS = {
    "compiled": "--segment-size 3 --target-length 7 --decoder-attention-heads 1".split(),
    "recomputed": "--segment-size 3 --target-length 7 --srformer-form recomputed".split(),
    "stored": "--segment-size 3 --target-length 7 --srformer-form stored".split(),
    "skipping": "--segment-size 2 --target-length 3 --srformer-leak-init 0.7".split(),
    "unread": "--segment-size 2 --target-length 40".split(),
    "clamped": (
        "--segment-size 3 --target-length 7 --srformer-clamp 0.5 --srformer-surrogate piecewise"
    ).split(),
    "bias-per-head": (
        "--segment-size 3 --target-length 7 --srformer-neuron-bias --srformer-neuron-per-head"
    ).split(),
    "current": "--segment-size 3 --target-length 7 --srformer-current-segment".split(),
    "checkpointed": "--segment-size 3 --target-length 7 --checkpoint-activations".split(),
}


@pytest.mark.parametrize("flags", NEURONS.values(), ids=NEURONS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_spikes_and_membranes_are_those_of_algorithm_1(
    make_model: Build, flags: list[str], side: str
) -> None:
    model = make_model(
        "srformer", *SMALL, *NO_DROPOUT, "--srformer-threshold-init", "0.3", *flags
    ).double()
    inputs = batch(side=side)
    encoded = {}
    module = model.decoder.layers[1].encoder_attn
    hook = module.k_proj.register_forward_hook(lambda m, args, out: encoded.update(k=args[0]))
    line = update(model, inputs)
    hook.remove()
    found: list[Tensor] = []
    hidden = model.encoder(inputs[0], inputs[1])["encoder_out"][0]
    assert encoded["k"].size(2) == hidden.size(2)
    for b, length in enumerate(inputs[1].tolist()):
        real = hidden[inputs[0][b].ne(PAD), b]
        count = -(-length // module.size)
        read = [min(t * count // module.target_length, count - 1) for t in range(7)]
        steps = sorted(set(read))
        projected = (project(real) for project in (module.k_proj, module.v_proj))
        heads = zip(*(x.chunk(module.num_heads, 1) for x in projected))
        for head, (keys, values) in enumerate(heads):
            found += neurons_by_loops(module, keys, values, steps, head)
    membranes = torch.stack(found)
    assert 0.02 < line["spike_decoder_1"] < 0.98
    share = float((membranes > 1).double().mean())
    assert line["spike_decoder_1"] == pytest.approx(share, abs=6e-5)
    assert line["membrane_decoder_1"] == pytest.approx(float(membranes.mean()), abs=6e-5)
    sd = float(membranes.std(unbiased=False))
    assert line["membrane_sd_decoder_1"] == pytest.approx(sd, abs=6e-5)


def test_neurons_of_few_sentences_of_all_lengths(make_model: Build) -> None:
    model = make_model("srformer", *SMALL, *NO_DROPOUT, *SEGMENTS)
    lengths = tuple(range(20, 0, -1))
    source, sizes, target = batch(lengths)
    some = [source[::5], sizes[::5], target[::5]]
    whole, part = update(model, (source, sizes, target)), update(model, tuple(some))
    for name in ("spike", "membrane", "membrane_sd"):
        assert whole[f"{name}_decoder_0"] == pytest.approx(part[f"{name}_decoder_0"], abs=2e-4)


@pytest.mark.parametrize("gate", ["vector", "scalar"])
def test_fusion_gate_is_lambda_at_real_positions(make_model: Build, gate: str) -> None:
    model = noisy(
        make_model(
            "transformer_biarn", *SMALL, *NO_DROPOUT, "--recurrence-fusion", "gated_sum",
            "--recurrence-fused-layers", "all", "--recurrence-gate", gate,
        )
    )  # fmt: skip
    seen: dict[int, tuple[Tensor, ...]] = {}
    for index, layer in enumerate(model.decoder.layers):
        layer.fusion.register_forward_hook(
            lambda module, inputs, out, index=index: seen.update({index: inputs})
        )
    inputs = batch()
    line = update(model, inputs)
    for index, layer in enumerate(model.decoder.layers):
        fusion, (c, d, context) = layer.fusion, seen[index]
        r = fusion.attend(c, context)
        values = [
            torch.sigmoid(
                fusion.gate_d.weight.mv(d[t, b])
                + fusion.gate_r.weight.mv(r[t, b])
                + fusion.gate_r.bias
            ).mean()
            for b in range(d.size(1))
            for t in range(d.size(0))
            if inputs[2][b, t] != PAD
        ]
        assert line[f"fusion_gate_decoder_{index}"] == pytest.approx(
            float(torch.stack(values).mean()), abs=6e-5
        )


@pytest.mark.parametrize(
    "flags",
    [
        "--recurrence-cell lstm".split(),
        ["--recurrence", "birnn"],
        "--recurrence-steps -1 --recurrence-layers 2".split(),
    ],
)
def test_saturation_counts_real_states(make_model: Build, flags: list[str]) -> None:
    model = noisy(make_model("transformer_biarn", *SMALL, *NO_DROPOUT, *flags))
    seen: list[Tensor] = []
    layers = model.encoder.recurrence_encoder.layers
    for layer in layers:
        layer.recurrence.register_forward_hook(lambda module, inputs, out: seen.append(out))
        for parameter in layer.recurrence.parameters():
            parameter.data *= 4
    inputs = batch()
    line = update(model, inputs)
    for index, (layer, states) in enumerate(zip(layers, seen)):
        full, all_ = 0, 0
        for b in range(states.size(0)):
            for t in range(states.size(1)):
                if layer.recurrence.keeps_length and inputs[0][b, t] == PAD:
                    continue
                for value in states[b, t].tolist():
                    full, all_ = full + (abs(value) > SATURATED), all_ + 1
        assert 0 < full < all_
        assert line[f"saturation_recurrence_{index}"] == pytest.approx(full / all_, abs=6e-5)


@pytest.mark.parametrize("flags", [[], ["--recurrence-coverage"]])
def test_step_distance_is_between_the_first_and_the_last_step(
    make_model: Build, flags: list[str]
) -> None:
    """The weights are those that `test_plot_attention` compares with the loops."""
    model = noisy(make_model("transformer_biarn", *SMALL, *NO_DROPOUT, *flags))
    recurrence, seen = model.encoder.recurrence_encoder.layers[0].recurrence, []
    for parameter in recurrence.parameters():
        parameter.data *= 4
    recurrence.register_forward_hook(lambda module, inputs, out: seen.append((*inputs, out)))
    line = update(model, batch())
    weights = recurrence.weights(*seen[0])[:, :, 0]  # sentences, directions, steps, source
    expected = [0.5 * float((way[0] - way[-1]).abs().sum()) for s in weights for way in s]
    assert 0.01 < line["step_distance_recurrence_0"] < 1
    assert line["step_distance_recurrence_0"] == pytest.approx(
        sum(expected) / len(expected), abs=6e-5
    )


# ---- which updates are counted, and how


ALL = [
    *SEGMENTS, *"--recurrence birnn --recurrence-fusion gated_sum --srformer-learned-mix".split(),
    *"--encoder-self-attention rsa --decoder-self-attention rsa".split(),
]  # fmt: skip


def test_several_batches_of_an_update_count_by_their_size(make_model: Build) -> None:
    model = noisy(make_model("srformer", *SMALL, *NO_DROPOUT, *ALL))
    first, second = batch((9, 4)), batch((3,))
    apart = update(model, first), update(model, second)
    with log() as line:
        for inputs in (first, second):
            model.set_num_updates(0)
            model(*inputs)
    positions = [int(inputs[2].ne(PAD).sum()) for inputs in (first, second)]
    name = "fusion_gate_decoder_1"
    expected = sum(n * one[name] for n, one in zip(positions, apart)) / sum(positions)
    assert apart[0][name] != pytest.approx(apart[1][name], abs=1e-3)
    assert line[name] == pytest.approx(expected, abs=1e-4)


def test_a_line_has_the_mean_of_its_looks_or_the_last(make_model: Build) -> None:
    model = make_model("rsa_transformer", *SMALL, "--monitor-interval", "3").train()
    gate = next(m for m in model.modules() if isinstance(m, Mixture)).mu

    def line_of(*updates: int) -> float:
        with log() as line:
            for number in updates:
                nn.init.constant_(gate, float(number))
                model.set_num_updates(number)
        return line["gate_encoder_0"]

    def sigma(number: int) -> float:
        return 1 / (1 + math.exp(-number))

    assert line_of(1) == pytest.approx(sigma(1), abs=1e-4), "the first is looked at"
    assert line_of(2) == pytest.approx(sigma(1), abs=1e-4)
    assert line_of(3, 4) == pytest.approx(sigma(3), abs=1e-4)
    assert line_of(5) == pytest.approx(sigma(3), abs=1e-4)
    assert line_of(6, 7, 8, 9) == pytest.approx((sigma(6) + sigma(9)) / 2, abs=1e-4)


def test_nothing_is_observed_but_a_look(make_model: Build) -> None:
    model = make_model("srformer", *SMALL, *ALL, "--monitor-interval", "2")
    calls: list[str] = []
    for module in model.modules():
        if isinstance(module, MonitoredModule):
            module.observe = lambda name, *rest: calls.append(name)
    inputs = batch()

    def observed_at(number: int) -> int:
        calls.clear()
        model.train().set_num_updates(number)
        model(*inputs)
        return len(calls)

    assert observed_at(2) == 6  # spike and membrane of two layers, a fusion's gate, saturation
    model(*inputs)
    assert len(calls) == 6, "a second forward pass of the update"
    assert observed_at(3) == 0
    calls.clear()
    model.train().set_num_updates(4)
    model.eval()(*inputs)
    assert calls == [], "validation"
    assert observed_at(4) == 6


def test_recomputation_is_not_counted(make_model: Build) -> None:
    """Activation checkpointing computes a layer twice, the second time in the backward pass."""
    flags = [*SMALL, *ALL, *NO_DROPOUT]
    model = make_model("srformer", *flags)
    again = make_model("srformer", *flags, "--checkpoint-activations")
    again.load_state_dict(model.state_dict())
    inputs = batch()
    lines = []
    for each in (model, again):
        calls: list[str] = []
        for module in each.modules():
            if isinstance(module, MonitoredModule):

                def observe(
                    name: str, *rest: Any, module: MonitoredModule = module, calls: list = calls
                ) -> None:
                    calls.append(name)
                    MonitoredModule.observe(module, name, *rest)

                module.observe = observe
        with log() as line:
            each.train().set_num_updates(0)
            each(*inputs)[0].sum().backward()
        assert len(calls) == 6
        lines.append({name: line[name] for name in shown(line)})
    assert lines[0] == lines[1]


def test_a_dropped_layer_has_no_value(make_model: Build) -> None:
    model = make_model(
        "srformer", *SMALL, *NO_DROPOUT, *SEGMENTS, "--decoder-layerdrop", "0.5", *EVERY
    )
    assert type(model.decoder.layers).__name__ == "LayerDropModuleList"
    inputs, seen, ran = batch(), set(), []
    for index in (0, 1):
        model.decoder.layers[index].register_forward_hook(
            lambda module, inputs, out, index=index: ran.append(index)
        )
    for number in range(12):
        model.monitor.seen.clear()
        ran.clear()
        line = update(model, inputs, number)
        kept = {index for index in (0, 1) if f"spike_decoder_{index}" in line}
        assert kept == set(ran)
        seen.add(tuple(sorted(kept)))
        assert all(math.isfinite(line[name]) for name in shown(line))
    assert {(0,), (1,), (0, 1)} <= seen


def test_the_mean_is_over_all_workers(make_model: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of another worker are added; tests/distributed has real workers."""
    model = noisy(make_model("srformer", *SMALL, *NO_DROPOUT, *ALL))
    inputs, others = batch((9, 4)), batch((3, 2, 2))
    apart = [update(model, each) for each in (inputs, others)]
    sent: list[Tensor] = []
    monkeypatch.setattr(monitoring.distributed, "get_data_parallel_world_size", lambda: 2)

    def keep(moments: Tensor, group: Any) -> Tensor:
        sent.append(moments.clone())
        return moments

    monkeypatch.setattr(monitoring.distributed, "all_reduce", keep)
    update(model, others)
    monkeypatch.setattr(
        monitoring.distributed, "all_reduce", lambda moments, group: moments + sent[0]
    )
    line = update(model, inputs)
    assert len(sent) == 1, "one reduction for all layers"
    for name, mask in (("fusion_gate_decoder_1", 2), ("saturation_recurrence_0", 0)):
        counts = [int(each[mask].ne(PAD).sum()) for each in (inputs, others)]
        expected = sum(n * one[name] for n, one in zip(counts, apart)) / sum(counts)
        assert line[name] == pytest.approx(expected, abs=1e-4)
        assert apart[0][name] != pytest.approx(apart[1][name], abs=1e-3)


def test_a_failed_forward_pass_ends_the_look(make_model: Build) -> None:
    model = make_model("srformer", *SMALL, *ALL).train()
    model.set_num_updates(0)
    with pytest.raises(TypeError):
        model(*batch(), unknown=1)
    assert not any(m.watched for m in model.modules() if isinstance(m, MonitoredModule))


# ---- nothing changes


def test_off(make_model: Build) -> None:
    model = make_model("srformer", *SMALL, *ALL, "--monitor-interval", "0")
    with log() as line:
        model.train().set_num_updates(0)
        model(*batch())
    assert line == {"step_time": None} and model.monitor is None


def test_the_same_to_the_last_bit(make_model: Build) -> None:
    """Outputs, gradients and random state: with and without monitoring in this update, and off."""
    plain = make_model("srformer", *SMALL, *ALL, "--monitor-interval", "0").train()
    watched = make_model("srformer", *SMALL, *ALL, *EVERY).train()
    assert plain.state_dict().keys() == watched.state_dict().keys()
    watched.load_state_dict(plain.state_dict())
    copied = copy.deepcopy(watched)
    inputs, results = batch(), []
    for model in (plain, watched, copied):
        torch.manual_seed(3)
        model.set_num_updates(0)
        model(*inputs)[0].square().sum().backward()
        results.append([p.grad for p in model.parameters()] + [torch.get_rng_state()])
    assert watched.monitor.seen and any(x.any() for x in results[0])
    for one, other in ((0, 1), (1, 2)):
        assert all(torch.equal(x, y) for x, y in zip(results[one], results[other]))


# ---- the meters


def test_step_time_is_of_fairseqs_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates of 0.1 and 0.3 seconds, and 4.9 seconds between them."""
    clock = iter([0.0, 0.1, 5.0, 5.3])
    monkeypatch.setattr(meters.time, "perf_counter", lambda: next(clock))
    with metrics.aggregate(new_root=True) as line:
        assert math.isnan(step_time(line))
        for _ in range(2):
            metrics.log_start_time("train_wall", round=0)
            metrics.log_scalar("gnorm", 2.5)
            metrics.log_stop_time("train_wall")
        monkeypatch.undo()
    assert step_time(line) == 200.0
