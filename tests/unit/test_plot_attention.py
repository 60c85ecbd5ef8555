"""Captured attention equals the equations, and the figures draw it."""

import math
import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import font_manager
from torch import Tensor, nn

from fairseq_recur.cli import build_parser
from fairseq_recur.cli.plot_attention import given_options
from fairseq_recur.errors import ConfigError
from fairseq_recur.inspection.capture import captured, places
from fairseq_recur.inspection.panels import Labels, panels
from fairseq_recur.inspection.passes import look
from fairseq_recur.modules.fusion import GatedSumFusion
from fairseq_recur.modules.segmented_comparisons import MemoryAttention
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops import naive
from fairseq_recur.plotting import figures
from fairseq_recur.plotting.attention import boxes, draw
from fairseq_recur.plotting.figures import font_package, fonts_for, new_figure, save
from tests.conftest import SMALL, SYSTEMS

Make = Callable[..., nn.Module]
NOT_ONE = (MemoryAttention,)
"""Attentions whose shown weights need not sum to one."""

SOURCE, TARGET, EOS = torch.tensor([9, 4, 30, 11, 17, 2]), torch.tensor([8, 20, 7, 5, 2]), 2
BIARN_GATED = (
    "--recurrence-fusion gated_sum --recurrence-fused-layers all --recurrence-layers 2 "
    "--recurrence-steps 3"
).split()
LABELS = Labels("s0 s1 s2 s3 s4 s5".split(), "r0 r1 r2 r3 r4".split(), "t0 t1 t2 t3 t4".split())


def visible_to(masked: bool, every: Sequence[int], t: int) -> Sequence[int]:
    """The positions that query *t* sees."""
    return range(t + 1) if masked else every


def small(make_model: Make, arch: str, *flags: str) -> nn.Module:
    """A small model in float64, whose attention is far from uniform."""
    model = make_model(arch, *SMALL, *flags).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "attn" in name or "attention" in name:
                weight.mul_(4)
    return model


def arguments_of(model: nn.Module, modules: dict[Any, nn.Module]) -> dict[Any, tuple[tuple, dict]]:
    """The arguments of the modules in the pass over the sentence, without any capture."""
    seen: dict[Any, tuple[tuple, dict]] = {}
    handles = []
    for place, module in modules.items():

        def keep(_: nn.Module, args: tuple, kwargs: dict, place: Any = place) -> None:
            seen[place] = args, kwargs

        handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    inputs = torch.cat([torch.tensor([EOS]), TARGET[:-1]])[None]
    with torch.no_grad():
        model(SOURCE[None], torch.tensor([len(SOURCE)]), inputs)
    for handle in handles:
        handle.remove()
    return seen


def naive_weights(
    query: Tensor, key: Tensor, visible: Callable[[int], range], scale: float
) -> Tensor:
    """(T, D) and (S, D): softmax over the keys that each query sees, 0 elsewhere."""
    out = torch.zeros(len(query), len(key), dtype=query.dtype)
    for t, q in enumerate(query):
        scores = {s: math.exp(float(q.dot(key[s])) * scale) for s in visible(t)}
        for s, score in scores.items():
            out[t, s] = score / sum(scores.values())
    return out


def heads_of(
    attention: nn.Module, arguments: tuple[tuple, dict]
) -> tuple[list[Tensor], list[Tensor]]:
    """Each head's projected queries (T, D) and keys (S, D)."""
    args, named = arguments
    if "query" in named:  # fairseq's own attention, as the fusion calls it
        query, key = named["query"], named["key"]
    else:
        query, context = args
        key = query if isinstance(attention, SelfAttention) else context.encoder_out
    query, key = query[:, 0], key[:, 0]
    with torch.no_grad():
        q, k = attention.q_proj(query), attention.k_proj(key)
    return list(q.chunk(attention.num_heads, -1)), list(k.chunk(attention.num_heads, -1))


def test_attention_is_the_softmax(make_model: Make) -> None:
    """Of a stock Transformer and of the fusion: encoder, decoder, cross, fusion, every layer."""
    model = small(make_model, "transformer_biarn", "--recurrence-fused-layers", "all")
    maps, modules = look(model, SOURCE, TARGET, EOS), places(model)
    attentions = {place: m for place, m in modules.items() if place[0] != "steps"}
    kinds = ["encoder", "decoder", "cross", "fusion"]
    assert list(attentions) == [(kind, layer) for kind in kinds for layer in (0, 1)]
    called = arguments_of(model, attentions)
    for (kind, layer), attention in attentions.items():
        queries, keys = heads_of(attention, called[kind, layer])
        for head, (q, k) in enumerate(zip(queries, keys)):
            masked, every = kind == "decoder", range(len(k))
            visible = partial(visible_to, masked, every)
            expected = naive_weights(q, k, visible, q.size(1) ** -0.5)
            found = maps[kind, layer][head].double()
            assert torch.allclose(found, expected, atol=1e-6), (kind, layer)
        assert maps[kind, layer].max() > 0.5, "a uniform map would test little"


@pytest.mark.parametrize("attention", ["additive", "multihead", "coverage"])
def test_steps_are_those_of_the_loops(make_model: Make, attention: str) -> None:
    kind = ["--recurrence-attention", attention]
    flags = [*BIARN_GATED, *(["--recurrence-coverage"] if attention == "coverage" else kind)]
    model = small(make_model, "transformer_biarn", *flags)
    maps = look(model, SOURCE, TARGET, EOS)
    modules = {place: m for place, m in places(model).items() if place[0] == "steps"}
    assert list(modules) == [("steps", 0), ("steps", 1)]
    for place, (arguments, _) in arguments_of(model, modules).items():
        biarn, tokens = modules[place], list(arguments[0][0])
        units = list(torch.eye(len(tokens), dtype=torch.float64))
        ways = torch.stack([naive_chain(biarn, tokens, units, way) for way in (0, 1)])
        heads = biarn.attention.heads if attention == "multihead" else 1
        assert ways.size(1) == heads
        assert torch.allclose(maps[place].double(), ways, atol=1e-6)
        assert not torch.allclose(ways[:, :, 0], ways[:, :, -1], atol=1e-3), "the steps differ"


def naive_chain(biarn: nn.Module, tokens: list[Tensor], units: list[Tensor], way: int) -> Tensor:
    """One direction by the loops: the weights of its steps, (H, R, S)."""
    read: list[Tensor] = []
    covering: list[naive.CoverageAttention] = []
    attention, heads = biarn.attention, getattr(biarn.attention, "heads", 1)

    def additive(state: Tensor) -> Tensor:
        keys = [attention.key(x) for x in tokens]
        query, score = attention.query(state), attention.score.weight[0]
        if attention.coverage is not None:
            if not read:
                w_seen = attention.coverage.weight[:, 0]
                covering.append(naive.CoverageAttention(keys, score, tokens, w_seen))
            before = covering[0].seen
            context = covering[0](query)
            read.append((covering[0].seen - before)[None])
            return context
        read.append(naive.additive_attention(query, keys, score, units)[None])
        return naive.additive_attention(query, keys, score, tokens)

    def multihead(state: Tensor) -> Tensor:
        query = attention.query(state).chunk(heads)
        keys = [attention.key(x).chunk(heads) for x in tokens]
        values = [attention.value(x).chunk(heads) for x in tokens]
        step, context = [], []
        for h in range(heads):
            of_head = [k[h] for k in keys]
            step.append(naive.dot_product_attention(query[h], of_head, units))
            context.append(naive.dot_product_attention(query[h], of_head, [v[h] for v in values]))
        read.append(torch.stack(step))
        return attention.out(torch.cat(context))

    mean = naive.mean_of_real_tokens(tokens)
    h0 = mean if len(mean) == biarn.state_dim else mean.chunk(2)[way]
    attend = multihead if heads > 1 else additive
    with torch.no_grad():
        naive.arn_chain(attend, h0, biarn.w_x[way], biarn.w_h[way], biarn.bias[way], biarn.steps)
    return torch.stack(read, dim=1)


@pytest.mark.parametrize("gate", ["vector", "scalar"])
def test_gate_is_its_formula(make_model: Make, gate: str) -> None:
    """lam = sigma(W_d D + W_r R + b), R = LN(ATT(C_self, H_r) + C_self), channel by channel."""
    model = small(make_model, "transformer_biarn", *BIARN_GATED, "--recurrence-gate", gate)
    maps = look(model, SOURCE, TARGET, EOS)
    fusions = {place: m for place, m in places(model).items() if isinstance(m, GatedSumFusion)}
    assert list(fusions) == [("gate", 0), ("gate", 1)]
    for place, (arguments, _) in arguments_of(model, fusions).items():
        fusion, (c, d, context) = fusions[place], arguments
        states = context.recurrence
        with torch.no_grad():
            read, _ = fusion.attention(
                c, states, states, context.recurrence_padding, static_kv=True
            )
            r = fusion.layer_norm(read + c)
        weights = (fusion.gate_d.weight, fusion.gate_r.weight, fusion.gate_r.bias)
        w_d, w_r, bias = (weight.detach() for weight in weights)
        assert maps[place].shape == (len(TARGET), 16 if gate == "vector" else 1)
        for t in range(len(TARGET)):
            for g in range(len(bias)):
                energy = float(w_d[g].dot(d[t, 0]) + w_r[g].dot(r[t, 0]) + bias[g])
                lam = 1 / (1 + math.exp(-energy))
                assert maps[place][t, g].item() == pytest.approx(lam, abs=1e-6)


def test_rsa_is_the_mixed_map(make_model: Make) -> None:
    """(1 - g) softmax(Q K^T / sqrt(D)) + g P, also where the model would not make that map."""
    flags = "--rsa-form chunked --rsa-heads 1,0,0,0,0,0".split()
    model = small(make_model, "rsa_transformer", *flags)
    maps = look(model, SOURCE, TARGET, EOS)
    modules = {p: m for p, m in places(model).items() if p[0] in ("encoder", "decoder")}
    called = arguments_of(model, modules)
    for (kind, layer), module in modules.items():
        queries, keys = heads_of(module, called[kind, layer])
        times, mixture = list(range(len(keys[0]))), module.mixture
        masked, decay = kind == "decoder", torch.tanh(mixture.eta.detach())[0]
        p = naive.rem(decay, torch.zeros_like(decay), False, 1, times, times, masked)
        g = torch.sigmoid(mixture.mu.detach())
        for head, share in ((0, g), (1, 0 * g)):  # the second is an ordinary head
            visible = partial(visible_to, masked, times)
            scale = queries[head].size(1) ** -0.5
            softmax = naive_weights(queries[head], keys[head], visible, scale)
            expected = (1 - share) * softmax + share * p
            assert torch.allclose(maps[kind, layer][head].double(), expected, atol=1e-6)
        assert module.mixture.form == "chunked", "the capture leaves the form as it was"


def test_srformer_is_the_softmax_of_the_segment(make_model: Make) -> None:
    """Query t of q = 4 reads segment min(t m // q, m - 1) of m = 3."""
    model = small(make_model, "srformer", "--segment-size", "2", "--target-length", "4")
    maps = look(model, SOURCE, TARGET, EOS)
    modules = {p: m for p, m in places(model).items() if p[0] == "cross"}
    for place, arguments in arguments_of(model, modules).items():
        queries, keys = heads_of(modules[place], arguments)
        for head, (q, k) in enumerate(zip(queries, keys)):
            segments = [range(2 * i, 2 * i + 2) for i in (min(t * 3 // 4, 2) for t in range(5))]
            expected = naive_weights(q, k, segments.__getitem__, q.size(1) ** -0.5)
            assert torch.allclose(maps[place][head].double(), expected, atol=1e-6)
    without = small(make_model, "srformer", "--segment-size", "2", "--srformer-no-segmented-term")
    assert not [kind for kind, _ in places(without) if kind == "cross"]


def test_t5_is_not_scaled(make_model: Make) -> None:
    model = small(make_model, "t5_small")
    maps = look(model, SOURCE, TARGET, EOS)
    modules = {p: m for p, m in places(model).items() if p[0] == "cross"}
    for place, arguments in arguments_of(model, modules).items():
        for head, (q, k) in enumerate(zip(*heads_of(modules[place], arguments))):
            expected = naive_weights(q, k, partial(visible_to, False, range(len(k))), 1.0)
            assert torch.allclose(maps[place][head].double(), expected, atol=1e-6)


CHOSEN = [
    name for name in SYSTEMS
    if name.split("-", 1)[1] in (
        "default", "gated-sum-all-scalar", "deep-positions", "multihead", "birnn-deep-gated",
        "full-matrix", "normalized-dense", "xl", "global", "all-three", "ratio-sigma-pre-norm",
    )
]  # fmt: skip
"""Each part, in one or two of its forms."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_decoding_looks_at_what_teacher_forcing_does(make_model: Make, name: str) -> None:
    """And rows sum to one; nothing of the model changes."""
    system = SYSTEMS[name]
    model = small(make_model, *system[1:])
    run = {"src_lengths": torch.tensor([len(SOURCE)]), "prev_output_tokens": TARGET[None]}
    with torch.no_grad():
        before = model(SOURCE[None], **run)[0]
    at_once = look(model, SOURCE, TARGET, EOS)
    step_by_step = look(model, SOURCE, TARGET, EOS, step_by_step=True)
    assert list(at_once) and at_once.keys() == step_by_step.keys() == places(model).keys()
    modules = places(model)
    for place, values in at_once.items():
        assert torch.allclose(values, step_by_step[place], atol=1e-5), place
        if place[0] != "gate" and not (
            isinstance(modules[place], NOT_ONE) or getattr(modules[place], "mixture", None)
        ):
            assert torch.allclose(values.sum(-1), torch.ones(()), atol=1e-5), place
    with torch.no_grad():
        assert torch.equal(model(SOURCE[None], **run)[0], before)


def test_hooks_go_after_an_error(make_model: Make) -> None:
    model = small(make_model, "rsa_transformer", "--rsa-form", "dense")
    with pytest.raises(ZeroDivisionError):
        with captured(model):
            raise ZeroDivisionError
    for module in places(model).values():
        assert not module._forward_hooks and not module._forward_pre_hooks
        assert getattr(module, "form", "dense") == "dense"


def test_panels_are_the_maps(make_model: Make) -> None:
    model = small(make_model, "transformer_biarn", *BIARN_GATED)
    maps = look(model, SOURCE, TARGET, EOS)
    top = panels(model, maps, LABELS)
    kinds = ["encoder", "decoder", "cross", "steps", "steps", "fusion", "gate", "gate"]
    assert [p.kind for p in top] == kinds
    assert [p.layer for p in top] == [1] * 6 + [0, 1], "the gate is shown by layer"
    encoder, decoder, cross, forward, backward, fusion, _, gate = top
    assert torch.equal(cross.values, maps["cross", 1].mean(0))
    assert (cross.rows, cross.columns) == (LABELS.target, LABELS.source)
    assert (encoder.rows, decoder.columns) == (LABELS.source, LABELS.read)
    assert torch.equal(backward.values, maps["steps", 1][1, 0])
    assert forward.columns == fusion.columns == ["1", "2", "3"]
    assert forward.column_title == "state of the recurrence layer 0 below" and forward.head is None
    assert fusion.column_title == "state n: forward step n, backward step 4 \u2212 n"
    assert torch.allclose(gate.values[:, 0], maps["gate", 1].mean(1))
    assert torch.allclose(gate.values[:, 1], torch.quantile(maps["gate", 1], 0.1, dim=1))
    all_steps = panels(model, maps, LABELS, ["steps"], layer="all")
    assert all_steps[0].columns == LABELS.source and len(all_steps) == 4
    (second,) = panels(model, maps, LABELS, ["cross"], layer="0", head="1")
    assert torch.equal(second.values, maps["cross", 0][1]) and "head 1" in second.title
    assert len(panels(model, maps, LABELS, ["cross", "encoder"], layer="all", head="all")) == 8


def test_a_step_per_token_is_labelled_with_the_token(make_model: Make) -> None:
    """Its state stands where the token does."""
    flags = "--recurrence-steps -1 --recurrence-layers 2".split()
    model = small(make_model, "transformer_biarn", *flags)
    shown = panels(model, look(model, SOURCE, TARGET, EOS), LABELS, ["steps", "fusion"])
    assert [p.layer for p in shown] == [1, 1, 1]
    for panel in shown:
        assert (panel.column_title, panel.columns) == ("source", LABELS.source)


def test_panels_refuse_what_is_not_there(make_model: Make) -> None:
    model = small(make_model, "transformer_biarn", "--recurrence", "birnn", "--decoder-layers", "3")
    maps = look(model, SOURCE, TARGET, EOS)
    (fusion,) = panels(model, maps, LABELS, ["fusion"])
    assert fusion.columns == LABELS.source
    for options, message in (
        ({"show": ["steps"]}, "--show steps: it has no recurrence encoder that attends"),
        ({"show": ["gate"]}, "this model has encoder, decoder, cross, fusion"),
        ({"show": ["fusion"], "layer": "1"}, "--layer 1: fusion has layer 2"),
        ({"show": ["encoder"], "layer": "2"}, "--layer 2: encoder has layers 0 to 1"),
        ({"layer": "3"}, "encoder has layers 0 to 1; decoder has layers 0 to 2; cross has"),
        ({"head": "2"}, "--head 2: encoder has heads 0 to 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            panels(model, maps, LABELS, **options)
    biarn = small(make_model, "transformer_biarn")
    with pytest.raises(ConfigError, match="--head 1: no heads in steps of this model"):
        panels(biarn, look(biarn, SOURCE, TARGET, EOS), LABELS, ["steps"], head="1")
    uppermost = panels(model, maps, LABELS, layer="2")
    assert [p.kind for p in uppermost] == ["decoder", "cross", "fusion"]


def test_figure_shows_the_panels(make_model: Make) -> None:
    model = small(make_model, "transformer_biarn", *BIARN_GATED)
    labels = Labels(["$a$", "<unk> w", "c" * 40, "d", "e", "</s>"], LABELS.read, LABELS.target)
    shown = panels(model, look(model, SOURCE, TARGET, EOS), labels)
    figure = draw(shown, scale="one")
    matrices = [axes for axes in figure.axes if axes.images]
    assert len(matrices) == 6 and len(figure.axes) == 2 * 6 + 1, "a colour bar each, and the gates"
    for axes, panel in zip(matrices, shown):
        assert torch.equal(torch.from_numpy(axes.images[0].get_array().data), panel.values)
        assert axes.images[0].get_clim() == (0.0, 1.0)
        assert axes.get_title(loc="left").split() == panel.title.split()
    texts = [label.get_text() for label in matrices[2].get_xticklabels()]
    assert texts == ["$a$", "<unk> w", "c" * 23 + "\u2026", "d", "e", "</s>"]
    assert [label.get_text() for label in matrices[2].get_yticklabels()] == LABELS.target
    for line, panel in zip(figure.axes[-1].lines, shown[-2:]):
        assert line.get_label() == f"layer {panel.layer}"
        assert list(line.get_ydata()) == panel.values[:, 0].tolist()
    figure.canvas.draw()
    brightest = draw(shown[:1]).axes[0].images[0].get_clim()[1]
    assert brightest == pytest.approx(shown[0].values.max().item())


def test_panels_of_one_size_have_one_width(make_model: Make) -> None:
    """Titles do not change the width; those that are too long are wrapped."""
    model = small(make_model, "transformer_biarn", *BIARN_GATED)
    shown = panels(model, look(model, SOURCE, TARGET, EOS), LABELS, ["encoder"])
    short, long = (
        replace(shown[0], title=title) for title in ("short", "a title of many words " * 3)
    )
    one, other = boxes([short, long])
    assert one.right == other.right and one.width == other.width
    assert "\n" not in one.title and other.title.split() == long.title.split()
    assert other.above > one.above
    below = replace(shown[0], column_title="keys " * 20)
    assert boxes([below])[0].right == one.right and boxes([below])[0].below > one.below


def test_negative_entries_have_their_own_colours(make_model: Make) -> None:
    flags = "--rsa-heads 0,1,0,0,0,0 --rsa-gate-init 3".split()
    model = small(make_model, "rsa_transformer", *flags)
    (panel,) = panels(model, look(model, SOURCE, TARGET, EOS), LABELS, ["encoder"], head="0")
    assert panel.values.min() < -0.1 and panel.title.endswith("(1 \u2212 g) softmax + g P")
    low, high = draw([panel]).axes[0].images[0].get_clim()
    assert high == -low == pytest.approx(panel.values.abs().max().item())


@pytest.mark.slow
def test_figure_grows_and_labels_thin_out(make_model: Make) -> None:
    model = small(make_model, "transformer_biarn", "--recurrence", "none")

    def drawn(length: int) -> Any:
        source = torch.cat([torch.full((length - 1,), 9), torch.tensor([EOS])])
        labels = Labels([f"s{i}" for i in range(length)], LABELS.read, LABELS.target)
        return draw(panels(model, look(model, source, TARGET, EOS), labels, ["cross"]))

    widths, counts = [], []
    for length in (1, 30, 60, 250):
        figure = drawn(length)
        figure.canvas.draw()
        widths.append(figure.get_size_inches()[0])
        counts.append(len(figure.axes[0].get_xticks()))
    assert counts[:3] == [1, 30, 60] and 50 < counts[3] < 86
    assert widths[0] < widths[1] < widths[2] == widths[3] < 15


def test_missing_characters_are_named() -> None:
    families, missing = fonts_for(["abc \u00e4\u00df\u2581", "\U0010fffd"])
    assert families[0] == "DejaVu Sans" and missing == "\U0010fffd"
    assert fonts_for(["Datei"]) == (["DejaVu Sans"], "")


def test_a_figure_with_missing_characters_warns_once(
    make_model: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """And names the package of a font that has them; without any there is no warning."""
    model = small(make_model, "transformer_biarn", "--recurrence", "none")
    maps = look(model, SOURCE, TARGET, EOS)
    save(draw(panels(model, maps, LABELS, ["encoder"])), tmp_path / "x.png")
    assert not caplog.records
    boxed = replace(LABELS, source=["\U0010fffd", *LABELS.source[1:]])
    save(draw(panels(model, maps, boxed, ["encoder"])), tmp_path / "x.png")
    (record,) = caplog.records
    said = "no installed font has the characters \U0010fffd, .*; install one .*install fonts-noto"
    assert re.match(said, record.getMessage())


def test_a_font_serves_every_text_of_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also titles and legends, and those that need one only."""
    own = font_manager.findfont("DejaVu Sans Mono")
    latin, other = {*map(chr, range(127))}, {"\U0010fffd"}
    monkeypatch.setattr(figures, "characters", lambda font: other if font == own else latin)
    figure = new_figure(2, 2)
    axes = figure.subplots()
    axes.plot([1, 2], label="\U0010fffd")
    axes.set_title("\U0010fffd")
    axes.legend()
    save(figure, tmp_path / "x.svg")
    texts = [axes.title, *axes.get_legend().get_texts()]
    families = ["DejaVu Sans", "DejaVu Sans Mono"]
    assert [text.get_fontfamily() for text in texts] == [families, families]
    assert not caplog.records


def test_a_font_is_found_as_soon_as_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib keeps its list of fonts in a file; here a font is missing from it."""
    own = font_manager.findfont("DejaVu Sans Mono")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    monkeypatch.setattr(font_manager, "findfont", lambda *_: "removed.ttf")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [own, "damaged.ttf"])
    assert fonts_for(["Datei"]) == (["DejaVu Sans", "DejaVu Sans Mono"], "")
    assert font_package("中") == font_package("カ") == "fonts-noto-cjk"
    assert font_package("\u0985") == "fonts-noto"


def test_options_of_tokenizers_are_fairseqs() -> None:
    args = build_parser("plot attention").parse_args(
        "plot attention a.pt --source x --output a.png --bpe sentencepiece "
        "--sentencepiece-model m -s en -t de".split()
    )
    assert (args.subcommand, args.checkpoint, args.source_lang) == ("attention", "a.pt", "en")
    assert given_options(Namespace(sentencepiece_alpha=0.0)) == {"sentencepiece_alpha": 0.0}
    assert (args.bpe, given_options(args)) == ("sentencepiece", {"sentencepiece_model": "m"})
