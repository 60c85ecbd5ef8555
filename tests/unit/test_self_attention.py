"""The parts of the self-attention slots: parameters, initial values, forms, padding, decoding."""

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fairseq_recur.models.config import part_fields, self_attention_slots
from fairseq_recur.modules import mixture
from fairseq_recur.modules.context import Context, Padding, additive_mask
from fairseq_recur.modules.mixture import FORMS, normalised
from fairseq_recur.modules.parts import MIXTURE, SELF_ATTENTION, build_self_attention
from fairseq_recur.modules.rem import RecurrenceEncodingMatrices, two_sided
from fairseq_recur.modules.rem_heads import parse_rem_heads
from fairseq_recur.ops import naive
from tests.systems import SMALL
from tests.unit.test_ops import LENGTHS

ALL_KINDS = {"rsa_heads": "2,1,1,1,1,1", "rsa_dilations": "2,3,3"}


def attention(part: str, side: str, **options: Any) -> nn.Module:
    """A part of eight heads of width two, in float64; parameters that start at zero are random."""
    slots = [*self_attention_slots("encoder"), *self_attention_slots("decoder")]
    values = {name: made.default for name, _, made in part_fields(slots)}
    chosen = {f"{side}_self_attention": part}
    cfg = TransformerConfig.from_namespace(
        Namespace(
            **{**values, **chosen, **options}, host="transformer",
            encoder_embed_dim=16, decoder_embed_dim=16,
            encoder_attention_heads=8, decoder_attention_heads=8, attention_dropout=0.0,
        )
    )  # fmt: skip
    module = build_self_attention(cfg, side).double().eval()
    for parameter in module.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    return module


def context_of(module: nn.Module, x: Tensor, mask: Tensor | None = None) -> Context:
    """Of teacher forcing over *x* (T, B, C), with padding where *mask* (B, T) is true."""
    future = torch.full((len(x), len(x)), -math.inf).triu(1).to(x) if module.causal else None
    padding = Padding.of(mask)
    causal = module.causal and padding is None
    return Context(padding, additive_mask(future, padding, x.dtype), causal)


def run(module: nn.Module, x: Tensor, padding: Tensor | None = None) -> Tensor:
    """Teacher forcing: (T, B, C) to (T, B, C)."""
    return module(x, context_of(module, x, padding))[0]


OPTIONS: dict[str, dict[str, Any]] = {
    "all kinds": ALL_KINDS,
    "uncapped": dict(ALL_KINDS, rsa_max_power=0),
    "capped": dict(ALL_KINDS, rsa_max_power=3),
    "own": dict(ALL_KINDS, rsa_untie_conjugates=True),
    "some": {"rsa_heads": "1,1,1,0,0,0"},
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_forms_are_equal(options: dict[str, Any], side: str, length: int) -> None:
    """Outputs and the gradients of every parameter and of the input, with padding on both sides."""
    padding = torch.zeros(3, length, dtype=torch.bool)
    padding[1, length - length // 3 :] = True
    padding[2, : length // 4] = side == "encoder"
    compare_forms(attention("rsa", side, **options), length, padding)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_forms_are_equal_without_padding(options: dict[str, Any], length: int) -> None:
    """In a decoder: then torch's attention hides the future by its own rule."""
    compare_forms(attention("rsa", "decoder", **options), length, None)


@pytest.mark.parametrize("length", [1, 2, 17])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("mixed", MIXTURE)
@pytest.mark.parametrize("part", SELF_ATTENTION)
def test_every_mixture_goes_with_every_map(part: str, mixed: str, side: str, length: int) -> None:
    """All forms are equal in outputs and gradients, and step by step; here every row is mixed."""
    if side not in SELF_ATTENTION[part].sides:
        pytest.skip("a decoder's positions see no later ones")
    options = {f"{side}_self_attention_mixture": mixed, "prob_sparse_mixed_rows": "all"}
    module = attention(part, side, **options)
    padding = torch.zeros(3, length, dtype=torch.bool)
    padding[1, length - length // 3 :] = True
    forms = [f for f in module.mixture.forms if module.has_map or f != "mixed"]
    compare_forms(module, length, padding, forms)
    x = torch.randn(length, 2, 16, dtype=torch.float64)
    gate, closed = module.mixture.mu, -math.inf
    with torch.no_grad():
        q, k, v = (module.split(f(x)) for f in (module.q_proj, module.k_proj, module.v_proj))
        alone, _ = module.attend(q, k, v, context_of(module, x), False)
        product = module.mixture.product(v, length, None, "dense")
        g = torch.sigmoid(gate)
        expected = module.output((1 - g) * alone + g * product, None, False)[0]
        torch.testing.assert_close(run(module, x), expected, rtol=1e-9, atol=1e-11)
        if side == "decoder" and module.stepwise:
            state: dict[str, dict[str, Tensor]] = {}
            steps = [
                module(x[t : t + 1], Context(incremental_state=state, position=t))[0]
                for t in range(length)
            ]
            torch.testing.assert_close(torch.cat(steps), expected, rtol=1e-9, atol=1e-11)
        gate.fill_(closed)
        without = module.output(alone, None, False)[0]
        torch.testing.assert_close(run(module, x), without, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("name", [*OPTIONS, "normalised", "toeplitz"])
def test_forms_of_prob_sparse_are_equal(name: str, side: str, length: int) -> None:
    """The mixed map of the chosen rows, and products whose other rows are not used."""
    options = OPTIONS.get(name, {"rsa_normalize": name == "normalised", "rsa_gate_init": "0"})
    part = "toeplitz" if name == "toeplitz" else "rsa"
    mixed = {f"{side}_self_attention_mixture": part, "prob_sparse_factor": 1}
    module = attention("prob_sparse", side, **options, **mixed)
    padding = torch.zeros(3, length, dtype=torch.bool)
    padding[1, length - length // 3 :] = True
    padding[2, : length // 4] = True
    forms = FORMS[:2] if name == "normalised" else FORMS
    compare_forms(module, length, padding, forms)
    compare_forms(module, length, None, forms)


def compare_forms(
    module: nn.Module, length: int, padding: Tensor | None, forms: Sequence[str] = FORMS
) -> None:
    """Of real positions, in all forms."""
    x = torch.randn(length, 3, 16, dtype=torch.float64, requires_grad=True)
    real = 1.0 if padding is None else (~padding).t().unsqueeze(-1)
    results: list[list[Tensor]] = []
    for form in forms:
        module.mixture.form = form
        out = run(module, x, padding) * real
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        gradients = torch.autograd.grad((out * weight).sum(), [x, *module.parameters()])
        results.append([out, *gradients])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_module_equals_the_equations(side: str) -> None:
    """Kinds, order, sharing and dilations of the heads, against eq. 4 written as loops."""
    module = attention("rsa", side, **ALL_KINDS)
    p = module.mixture
    x = torch.randn(9, 1, 16, dtype=torch.float64)
    lam, gamma = torch.tanh(p.eta), torch.sigmoid(p.nu)
    zero = torch.zeros((), dtype=torch.float64)
    heads = [
        (lam[0], zero, False, 1), (lam[1], zero, False, 1),
        (gamma[0], p.theta[0], False, 1), (gamma[0], p.theta[0], True, 1),
        (lam[2], zero, False, 2),
        (gamma[1], p.theta[1], False, 3), (gamma[1], p.theta[1], True, 3),
    ]  # fmt: skip
    q, k, v = (f(x).view(9, 8, 2) for f in (module.q_proj, module.k_proj, module.v_proj))
    outputs = []
    for h in range(8):
        matrix, gate = torch.zeros(9, 9, dtype=torch.float64), zero
        if h < 7:
            decay, angle, sine, dilation = heads[h]
            times = list(range(9))
            matrix = naive.rem(decay, angle, sine, dilation, times, times, module.causal)
            gate = torch.sigmoid(p.mu)
        vectors = (list(m[:, h]) for m in (q, k, v))
        outputs.append(naive.rsa_head(*vectors, matrix, gate, module.causal))
    expected = module.out_proj(torch.cat(outputs, dim=1))
    torch.testing.assert_close(run(module, x)[:, 0], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("part", ["toeplitz", "full_matrix"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_learned_matrices(part: str, side: str) -> None:
    """A free value for each lag, or for each pair of positions; beyond the learned length none."""
    module = attention(part, side, learned_matrix_length=5)
    p, length = module.mixture, 8
    x = torch.randn(length, 1, 16, dtype=torch.float64)
    matrix = torch.zeros(8, length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            if part == "toeplitz" and 0 < i - j <= 5:
                matrix[:, i, j] = p.past[:, i - j - 1]
            if part == "toeplitz" and 0 < j - i <= 5 and side == "encoder":
                matrix[:, i, j] = p.future[:, j - i - 1]
            if part == "full_matrix" and max(i, j) < 5 and i != j:
                if j < i or side == "encoder":
                    matrix[:, i, j] = p.weight[:, i, j]
    q, k, v = (f(x).view(length, 8, 2) for f in (module.q_proj, module.k_proj, module.v_proj))
    outputs = [
        naive.rsa_head(
            *(list(m[:, h]) for m in (q, k, v)), matrix[h], torch.sigmoid(p.mu), module.causal
        )
        for h in range(8)
    ]
    expected = module.out_proj(torch.cat(outputs, dim=1))
    for form in p.forms:
        p.form = form
        torch.testing.assert_close(run(module, x)[:, 0], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "counts, dilations, added",
    [
        ("8,0,0,0,0,0", "", 9),  # "a layer with 8 regular heads adds 9"
        ("0,0,0,8,0,0", "64," * 7 + "64", 9),  # CodeT5: 12 layers, 108
        ("0,0,0,0,2,2", "6,6,12,12", 5),  # Text8, Enwik8: 14 layers, 70; BRT: 13 layers, 65
        ("0,0,0,2,2,2", "12,24,12,24,12,24", 7),  # WikiText-103: 16 layers, 112; BRT: 15, 105
        ("0,2,2,0,2,2", "2,2,2,2", 9),
    ],
)
def test_parameter_counts(counts: str, dilations: str, added: int) -> None:
    """The differences in the paper's table 7, per layer."""
    module = attention("rsa", "encoder", rsa_heads=counts, rsa_dilations=dilations)
    assert sum(p.numel() for p in module.mixture.parameters()) == added
    own = attention(
        "rsa", "encoder", rsa_heads=counts, rsa_dilations=dilations, rsa_untie_conjugates=True
    )
    cyclical = sum(int(n) for k, n in enumerate(counts.split(",")) if k in (1, 2, 4, 5))
    assert sum(p.numel() for p in own.mixture.parameters()) == added + cyclical


def test_initial_values() -> None:
    module = attention(
        "rsa", "encoder", rsa_heads="3,2,2,1,0,0", rsa_dilations="2", rsa_gate_init="0.5",
        rsa_eta_init="1,3", rsa_nu_init="0,2", rsa_theta_init=0.3,
    ).mixture  # fmt: skip
    assert module.mu.item() == 0.5
    assert module.eta.tolist() == [1.0, 3.0, -1.0, 1.0]
    assert module.nu.tolist() == [0.0, 2.0]
    assert module.theta.tolist() == pytest.approx([0.3, 0.3])
    assert two_sided(4, 1.0, 2.0).tolist() == [1.0, 2.0, -1.0, -2.0]
    gates = [
        attention("rsa", "encoder", rsa_gate_init="random").mixture.mu.item() for _ in range(40)
    ]
    assert len(set(gates)) == 40 and -3 <= min(gates) < -1 < 1 < max(gates) <= 3


def test_a_translation_model_begins_with_short_memories(make_model: Callable[..., Any]) -> None:
    """Rows of every matrix add up to less than 4, where long memories give as much as 54."""
    heads = "--encoder-attention-heads 4 --decoder-attention-heads 4".split()
    sums = {}
    for memory in ([], ["--rsa-eta-init", "1,2"]):
        model = make_model("rsa_transformer", *SMALL, *heads, *memory).double()
        found = [m for m in model.modules() if isinstance(m, RecurrenceEncodingMatrices)]
        assert len(found) == 4
        rows = [float(m.matrix(200, 200).abs().sum(-1).max()) for m in found]
        sums[bool(memory)] = max(rows)
        assert [m.gates().flatten().tolist() for m in found] == [[0.5] * m.heads for m in found]
    assert 3.5 < sums[False] < 4 and 50 < sums[True] < 54


def test_form_is_chosen_by_length() -> None:
    def form(
        length: int,
        part: str = "rsa",
        has_map: bool = True,
        few: bool = False,
        stored: bool = False,
        **options: Any,
    ) -> str:
        module = attention(part, "encoder", **options)
        return module.mixture.form_for(length, has_map, few, stored)

    mixed, dense = mixture.LONGEST_MIXED, mixture.LONGEST_DENSE
    assert [form(n) for n in (1, mixed, mixed + 1)] == ["mixed", "mixed", "dense"]
    assert form(1, has_map=False) == form(1, has_map=False, few=True) == "dense"
    assert form(9999, few=True) == "mixed"
    stored = mixture.LONGEST_STORED
    assert [form(n, stored=True) for n in (stored, stored + 1)] == ["mixed", "chunked"]
    assert form(dense + 1) == form(dense + 1, has_map=False) == "chunked"
    assert form(1, rsa_form="dense") == form(1, "full_matrix") == "dense"
    assert form(9999, rsa_normalize=True) == "dense"
    assert form(9999, rsa_dropout="mixed") == "mixed"


@pytest.mark.parametrize("part", ["dot", "log_sparse", "directional", "xl", "prob_sparse"])
def test_a_map_that_is_stored_is_mixed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, torch does for dropout and a learned bias. Some attentions always need it."""
    mixed: list[int] = []

    def count(self: nn.Module, query: Tensor, key: Tensor, value: Tensor, *more: Any) -> Any:
        mixed.append(query.size(2))
        return query, None

    options = {"encoder_self_attention_mixture": "rsa"}
    module = attention(part, "encoder", **options)
    monkeypatch.setattr(type(module), "attend_mixed", count)
    x = torch.randn(mixture.LONGEST_MIXED + 1, 2, 16, dtype=torch.float64)
    run(module, x)
    always = part in ("xl", "prob_sparse")
    assert mixed == [len(x)] * always
    learned = torch.zeros(1, 8, len(x), len(x), dtype=torch.float64, requires_grad=True)
    for dropout, mask in ((0.1, None), (0.0, learned)):
        mixed.clear()
        module.train().dropout_module.p = dropout
        module(x, Context(mask=mask))
        assert mixed == [len(x)]


@pytest.mark.parametrize("mixed", [False, True])
def test_dropout(mixed: bool) -> None:
    """Dropout of only the softmax, or of the mixture, where some recurrent outputs become zero."""
    module = attention("rsa", "encoder", rsa_dropout="mixed" if mixed else "softmax").train()
    module.dropout_module.p = 0.999999
    nn.init.constant_(module.mixture.mu, 0.0)
    x = torch.randn(6, 2, 16, dtype=torch.float64)
    recurrent = run(module, x) - module.out_proj.bias
    assert recurrent.any() == (not mixed)


def test_normalised_rows() -> None:
    """Rows above one are divided by their sum over the real keys; other rows do not change."""
    matrix = torch.tensor([[[0.0, 3.0, -1.0], [0.5, 0.0, 0.25], [2.0, 2.0, 0.0]]])
    expected = torch.tensor([[[0.0, 0.75, -0.25], [0.5, 0.0, 0.25], [0.5, 0.5, 0.0]]])
    torch.testing.assert_close(normalised(matrix, None), expected)
    padding = torch.tensor([[False, False, True]])
    found = normalised(matrix, padding)
    torch.testing.assert_close(found[0, 0, 0], torch.tensor([0.0, 1.0, -1 / 3]))
    torch.testing.assert_close(found[0, 0, 2], torch.tensor([0.5, 0.5, 0.0]))
    expected = normalised(matrix / 1.1, padding)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(normalised(matrix / 1.1, padding), expected)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_scores_beyond_float16(side: str) -> None:
    """They are finite in every form and step by step, and hidden keys stay hidden."""
    module = attention("rsa", side, rsa_gate_init="-inf").half().eval()
    with torch.no_grad():
        for proj in (module.q_proj, module.k_proj):
            proj.weight.copy_(torch.eye(16))
            proj.bias.zero_()
    # Scores are up to 600 * 600 * sqrt(2), far beyond 65504.
    sizes = torch.tensor([150.0, 600.0, 150.0, 300.0]).half()
    x = sizes[:, None, None].expand(-1, 2, 16)
    outs = {}
    for form in ("mixed", "dense"):
        module.mixture.form = form
        outs[form] = run(module, x)
        assert outs[form].isfinite().all()
    torch.testing.assert_close(outs["mixed"], outs["dense"])
    if side == "encoder":
        return
    for form in ("mixed", "dense"):
        module.mixture.form = form
        changed = x.clone()
        changed[1:] *= 2
        first = run(module, changed)[0]  # sees no other position
        torch.testing.assert_close(first, outs[form][0], rtol=1e-2, atol=0.3)
    state: dict[str, Any] = {}
    for step in range(4):
        context = Context(incremental_state=state, position=step)
        torch.testing.assert_close(module(x[step : step + 1], context)[0][0], outs["dense"][step])


@pytest.mark.parametrize("part", ["relative", "xl"])
def test_a_hidden_key_with_a_large_score_stays_hidden(part: str) -> None:
    """Its score in float32 exceeds what hides a key in float16."""
    module = attention(part, "decoder").half().eval()
    with torch.no_grad():
        for proj in (module.q_proj, module.k_proj):
            proj.weight.copy_(torch.eye(16))
    x = torch.tensor([150.0, 600.0]).half()[:, None, None].expand(-1, 2, 16)
    changed = torch.cat([x[:1], -x[1:]])
    outs = [run(module, given)[0] for given in (x.contiguous(), changed)]
    assert torch.equal(*outs)


@pytest.mark.parametrize("dilation", [64, 20000])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_short_subsequences_are_not_padded_to_whole_chunks(side: str, dilation: int) -> None:
    """Of 600 positions, a dilation of 64 connects ten, and a longer one than the text none."""
    dilations = ",".join([str(dilation)] * 8)
    module = attention("rsa", side, rsa_heads="0,0,0,4,2,2", rsa_dilations=dilations)
    values, outs, flops = torch.randn(1, 8, 600, 2, dtype=torch.float64), {}, {}
    for form in ("dense", "chunked"):
        with FlopCounterMode(display=False) as counter:
            outs[form] = module.mixture.product(values, 600, None, form)
        flops[form] = counter.get_total_flops()
    torch.testing.assert_close(outs["chunked"], outs["dense"])
    assert flops["chunked"] < flops["dense"] / 20


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("mixed", MIXTURE)
def test_the_last_rows_of_a_product(mixed: str, side: str) -> None:
    """They are those of the square, whatever the others read; short lags leave values out."""
    options = {"learned_matrix_length": 5}
    if mixed == "rsa":
        options = {"rsa_heads": "4,1,1,2,0,0", "rsa_dilations": "2,3", "rsa_max_power": 4}
    part = attention(mixed, side, **options).mixture
    values = torch.randn(2, 8, 300, 2, dtype=torch.float64)
    padding = Padding.of(torch.arange(300) >= torch.tensor([[300], [290]]))
    for form, queries, pad in product(
        part.forms[part.forms[0] == "mixed" :], (1, 70), (None, padding)
    ):
        with FlopCounterMode(display=False) as of_all:
            whole = part.product(values, 300, pad, form)
        with FlopCounterMode(display=False) as of_last:
            last = part.product(values, queries, pad, form)
        torch.testing.assert_close(last, whole[:, :, -queries:])
        assert form == "dense" or of_last.get_total_flops() < of_all.get_total_flops() / 2


def test_fully_padded_rows_are_finite() -> None:
    """A query that sees only padding, as with targets padded on the left."""
    for part in (*SELF_ATTENTION, *MIXTURE):
        if part in SELF_ATTENTION and "decoder" not in SELF_ATTENTION[part].sides:
            continue
        module = attention(part, "decoder")
        x = torch.randn(4, 1, 16, dtype=torch.float64)
        padding = torch.tensor([[True, True, False, False]])
        assert torch.isfinite(run(module, x, padding)).all()


def test_a_step_reads_a_table_made_once() -> None:
    """No kernel is computed at most steps: they cost a slice and a product."""
    module = attention("rsa", "decoder", **ALL_KINDS)
    calls: list[int] = []
    kernels = module.mixture.kernels
    module.mixture.kernels = lambda length: calls.append(length) or kernels(length)
    state: dict[str, dict[str, Tensor]] = {}
    x = torch.randn(150, 2, 16, dtype=torch.float64)
    steps = [
        module(s, Context(incremental_state=state, position=t))[0] for t, s in enumerate(x.split(1))
    ]
    assert calls == [64, 128, 256]
    torch.testing.assert_close(torch.cat(steps), run(module, x), rtol=1e-9, atol=1e-11)


def test_steps_leave_the_positions_of_a_full_matrix() -> None:
    """Whose first rows are cut to the keys so far, and which is zero beyond its length."""
    module = attention("full_matrix", "decoder", learned_matrix_length=4)
    state: dict[str, dict[str, Tensor]] = {}
    x = torch.randn(9, 2, 16, dtype=torch.float64)
    steps = [
        module(s, Context(incremental_state=state, position=t))[0] for t, s in enumerate(x.split(1))
    ]
    torch.testing.assert_close(torch.cat(steps), run(module, x), rtol=1e-9, atol=1e-11)


def test_weights_on_demand() -> None:
    for part in (*SELF_ATTENTION, *MIXTURE):
        if part == "dot":  # its weights are fairseq's, in float32
            continue
        module = attention(part, "encoder")
        x = torch.randn(5, 2, 16, dtype=torch.float64)
        context = context_of(module, x)
        out, mean = module(x, context, need_weights=True)
        _, heads = module(x, context, need_head_weights=True)
        assert mean.shape == (2, 5, 5) and heads.shape == (8, 2, 5, 5)
        torch.testing.assert_close(heads.mean(0), mean)
        torch.testing.assert_close(out, run(module, x))
        if SELF_ATTENTION.get(part, SELF_ATTENTION["dot"]).has_map or "sparse" in part:
            v = module.split(module.v_proj(x))
            read = heads.transpose(0, 1).to(v.dtype) @ v
            torch.testing.assert_close(out, module.output(read, None, False)[0])


def test_heads_that_do_not_fit_are_refused() -> None:
    assert parse_rem_heads("", "", 4).counts == (4, 0, 0, 0, 0, 0)
    every = parse_rem_heads("0,0,0,all,0,0", "64", 3)
    assert every.counts == (0, 0, 0, 3, 0, 0) and every.all_dilations == (64, 64, 64)
    assert parse_rem_heads("1,0,0,0,1,1", "4,5", 4).all_dilations == (1, 4, 5)
    with pytest.raises(ValueError, match="whole numbers"):
        parse_rem_heads("1,0,0,0,1,x", "", 4)


def test_xl_in_a_decoder_with_full_context_is_that_of_an_encoder() -> None:
    """Later keys have lags of their own there, too."""
    decoder, encoder = attention("xl", "decoder"), attention("xl", "encoder")
    encoder.load_state_dict(decoder.state_dict())
    x = torch.randn(6, 2, 16, dtype=torch.float64)
    torch.testing.assert_close(decoder(x, Context())[0], encoder(x, Context())[0])


def test_prob_sparse_draws_in_training_only() -> None:
    """Anew in each forward pass, the same again after the same seed; in evaluation always the same.

    What is drawn after it does not depend on the length of the batch.
    """
    module = attention("prob_sparse", "encoder", prob_sparse_factor=1)
    x = torch.randn(40, 2, 16, dtype=torch.float64)
    assert torch.equal(run(module, x), run(module, x))
    module.train()
    torch.manual_seed(3)
    first, second = run(module, x), run(module, x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(run(module, x), first)
    after = []
    for length in (5, 40):
        torch.manual_seed(3)
        run(module, x[:length])
        after.append(torch.rand(()))
    assert after[0] == after[1]


def test_prob_sparse_chooses_few_queries() -> None:
    """4 of 40 positions attend with a factor of 1; all others get the mean of the values."""
    module = attention("prob_sparse", "encoder", prob_sparse_factor=1)
    x = torch.randn(40, 1, 16, dtype=torch.float64)
    _, weights = module(x, context_of(module, x), need_head_weights=True)
    uniform = torch.isclose(weights, torch.tensor(1 / 40, dtype=weights.dtype)).all(dim=3)
    assert (40 - uniform.sum(dim=2)).tolist() == [[4]] * 8


@pytest.mark.parametrize("rows", ["chosen", "all"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_prob_sparse_mixes_the_rows_that_attend(side: str, rows: str) -> None:
    """By default the others keep the mean of the values, in a decoder their cumulative sum."""
    options: dict[str, Any] = {"prob_sparse_factor": 1, "prob_sparse_mixed_rows": rows}
    options[f"{side}_self_attention_mixture"] = "rsa"
    module = attention("prob_sparse", side, **options)
    mixture, query = module.mixture, torch.randn(2, 8, 40, 2, dtype=torch.float64)
    context = context_of(module, torch.randn(40, 2, 16, dtype=torch.float64))
    arguments = (query, query, query, context, False)
    out, local = mixture.mix(module, *arguments)[0], module.attend(*arguments)[0]
    chosen = module.choose(query, query, context).rows
    attends = torch.zeros(2, 8, 40, dtype=torch.bool).scatter(2, chosen, True).unsqueeze(3)
    assert attends.sum(2).eq(4).all()
    gate, recurrent = mixture.gates(), mixture.product(query, 40, None, "dense")
    mixed = (1 - gate) * local + gate * recurrent
    expected = mixed if rows == "all" else torch.where(attends, mixed, local)
    torch.testing.assert_close(out, expected)
    assert not torch.allclose(mixed, local)
    weights = mixture.mix(module, *arguments[:-1], True)[1]
    if rows == "all":
        assert weights is None
    else:
        torch.testing.assert_close(weights @ query, out)
