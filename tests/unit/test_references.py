"""Modules that are built from flags equal the loops of `ops.naive`: outputs and all gradients.

Weights are taken from a module, options from the flags.
"""

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.modules import parts
from fairseq_recur.modules.context import Context, Padding, Source, additive_mask
from fairseq_recur.ops import naive
from tests.conftest import SMALL
from tests.unit import (
    test_comparison_systems,
    test_cross_mixture,
    test_modules,
    test_ops,
    test_self_attention,
    test_srformer_module,
)
from tests.unit.test_memory_model import MEMORY, SEGMENT, STARTS, small
from tests.unit.test_modules import attend, feed_forward, norm_of
from tests.unit.test_ops import assert_same
from tests.unit.test_self_attention import attention

Build = Callable[..., nn.Module]
HEADS, PAD = 2, 1
NARROW: list[str] = [
    word for name in ("embed", "input", "output") for word in (f"--decoder-{name}-dim", "8")
]
"""The width of a block-recurrent layer, whose loops go through the channels."""


def build(make_model: Build, arch: str, *flags: str) -> nn.Module:
    """In float64 and evaluation mode, no weight at a value that hides a mistake."""
    model = make_model(arch, *flags).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def random(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, requires_grad=True)


def joined(outputs: list[Tensor]) -> Tensor:
    """All numbers of several tensors, which the gradients weight differently."""
    return torch.cat([out.flatten() for out in outputs])


def real_places(lengths: tuple[int, ...], side: str) -> list[range]:
    """Where each row's real tokens are if it is padded on one side."""
    longest = max(lengths)
    return [range(longest - n, longest) if side == "left" else range(n) for n in lengths]


# ---- the weights of the modules, for the loops


def attention_weights(module: Any, heads: int, turned: int = 0, masked: bool = False) -> Any:
    maps = (m.weight for m in (module.q_proj, module.k_proj, module.v_proj, module.out_proj))
    bias = module.out_proj.bias
    return naive.BlockAttention(module.norm.weight, *maps, bias, heads, turned, masked)


def network_weights(first: Any, second: Any) -> Any:
    return naive.Network(first.weight, first.bias, second.weight, second.bias)


def block_weights(layer: Any, heads: int, turned: int) -> Any:
    gates = [
        naive.Gate(*((m.weight, m.bias) for m in (gate.update, gate.write, gate.keep)))
        for gate in layer.gates
    ]
    return naive.BlockRecurrence(
        layer.identity,
        attention_weights(layer.input_self, heads, turned, masked=True),
        attention_weights(layer.state_self, heads, turned),
        attention_weights(layer.input_to_state, heads),
        attention_weights(layer.state_to_input, heads),
        layer.input_proj.weight,
        layer.state_proj.weight,
        (gates[0], gates[1]),
        network_weights(layer.input_ffn[0], layer.input_ffn[2]),
        network_weights(layer.state_ffn[0], layer.state_ffn[2]),
    )


def latent_weights(block: Any) -> Any:
    norm, first, _, second = block.network
    network = network_weights(first, second)
    return naive.LatentBlock(attention_weights(block.attention, HEADS), norm.weight, network)


# ---- a block-recurrent layer


@pytest.mark.parametrize(
    "flags, size, heads, turned, known",
    [
        ("--recurrent-block 3 --recurrent-state-length 3", 3, HEADS, 4, True),
        ("--recurrent-block 3 --recurrent-state-length 3", 3, HEADS, 4, False),
        ("--recurrent-state-length 1", SEGMENT // 2, HEADS, 4, True),
        # Of wide heads only some channels are turned.
        ("--decoder-head-dim 35 --decoder-attention-heads 1 --recurrent-block 3 "
         "--recurrent-state-length 2", 3, 1, 32, False),
    ],
    ids=["with a state", "new text", "half a segment", "wide head"],
)  # fmt: skip
def test_block_recurrent_layer(
    make_model: Build, flags: str, size: int, heads: int, turned: int, known: bool
) -> None:
    """Five positions, so that the last block is not full."""
    model = build(make_model, "brt_lm_tiny", *small("brt"), *NARROW, *flags.split())
    layer = model.decoder.layers[0]
    x, state = random(5, 2, 8), random(2, len(layer.identity), 8)
    out, after = layer(x, state if known else None, Context())
    slow, zeros = [], torch.zeros_like(state)
    for b in range(2):
        before = list((state if known else zeros)[b])
        weights = block_weights(layer, heads, turned)
        tokens, states = naive.block_recurrent_layer(list(x[:, b]), before, size, weights)
        slow += [*tokens, *states]
    fast = [part for b in range(2) for part in (out[:, b], after[b])]
    inputs = [x, *layer.parameters(), *([state] if known else [])]
    assert_same(joined(fast), joined(slow), inputs)


# ---- a latent bottleneck


def dot_layer(layer: Any) -> Callable[[list[Tensor]], list[Tensor]]:
    """A pre-norm layer of the host in the loops, causal."""

    def run(x: list[Tensor]) -> list[Tensor]:
        norms = norm_of(layer.self_attn_layer_norm), norm_of(layer.final_layer_norm)
        normed, out = [norms[0](token) for token in x], []
        for t, token in enumerate(x):
            read = attend(layer.self_attn, normed[: t + 1])
            state = naive.sublayer(token, read, norms[0], before=True)
            out.append(naive.sublayer(state, feed_forward(layer), norms[1], before=True))
        return out

    return run


def latent_chunks(
    decoder: Any, tokens: list[Tensor], state: list[Tensor], size: int, every: int
) -> tuple[list[Tensor], list[Tensor]]:
    layers = [dot_layer(layer) for layer in decoder.layers]
    readers = [latent_weights(block) for block in decoder.bottleneck.readers]
    writer, normed = latent_weights(decoder.bottleneck.writer), decoder.bottleneck.normed
    return naive.latent_chunks(tokens, state, size, layers, every, readers, writer, normed)


@pytest.mark.parametrize("norm", ["none", "rms"])
@pytest.mark.parametrize("size, every, known", [(3, 1, True), (2, 2, False), (5, 3, True)])
def test_latent_bottleneck(
    make_model: Build, size: int, every: int, known: bool, norm: str
) -> None:
    """Seven positions, so that the last chunk is not full; the second row has five real ones.

    Its state is that of these five, whether a chunk is padded at its end or as a whole.
    """
    flags = f"--latent-chunk {size} --latent-every {every} --latent-states 4 --tokens-per-sample 9"
    flags += f" --latent-state-norm {norm}"
    decoder = build(make_model, "tlb_lm_tiny", *small("tlb"), *flags.split()).decoder
    x, state, words = random(7, 2, 16), random(2, 4, 16), torch.full((2, 7), 9)
    words[1, 5:] = PAD
    out, after = decoder.read_chunks(x, words, state if known else None, None)
    first = [list(state[b]) if known else naive.latent_code(4, x[0, 0]) for b in range(2)]
    tokens, states = latent_chunks(decoder, list(x[:, 0]), first[0], size, every)
    others, last = latent_chunks(decoder, list(x[:5, 1]), first[1], size, every)
    inputs = [x, *decoder.layers.parameters(), *decoder.bottleneck.parameters()]
    inputs += [state] if known else []
    fast = joined([out[:, 0], after[0], out[:5, 1], after[1]])
    assert_same(fast, joined([*tokens, *states, *others, *last]), inputs)


# ---- the self-attention of Transformer-XL


def xl_heads(attention: Any, x: list[Tensor], read: list[Tensor], *options: Any) -> Tensor:
    """What the last positions *x* read in all positions *read* (S of (C,)): (T, C)."""
    count, terms = attention.num_heads, attention.positions
    q, k, v = (
        [project(state).chunk(count) for state in states]
        for project, states in (
            (attention.q_proj, x), (attention.k_proj, read), (attention.v_proj, read)
        )
    )  # fmt: skip
    rows = terms.key_proj.weight.chunk(count)
    heads = [
        naive.xl_head(
            *([state[h] for state in states] for states in (q, k, v)),
            rows[h], terms.content_bias[h], terms.position_bias[h], *options,
        )
        for h in range(count)
    ]  # fmt: skip
    return attention.out_proj(torch.cat(heads, dim=1))


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("remembered, padded", [(0, "left"), (0, "right"), (4, "right")])
def test_self_attention_of_transformer_xl(side: str, remembered: int, padded: str) -> None:
    """In both directions and causal, with lags beyond the clamp; the second row has three tokens.

    The padding is before or behind these; a memory is before all positions.
    """
    module = attention("xl", side, xl_clamp_length=2)
    x, memory = random(5, 2, 16), random(4, 2, 16)[:remembered]
    places = real_places((5, 3), padded)
    mask = torch.ones(2, remembered + 5, dtype=torch.bool)
    for row, place in zip(mask, places):
        row[: remembered + place.stop] = False
        row[remembered : remembered + place.start] = True
    padding, future = Padding.of(mask), None
    if side == "decoder":
        future = torch.full((5, remembered + 5), -torch.inf).triu(1 + remembered).to(x)
    context = Context(
        padding, additive_mask(future, padding, x.dtype), memory=memory if remembered else None
    )
    out, _ = module(x, context)
    slow = []
    for b, place in enumerate(places):
        tokens = [x[t, b] for t in place]
        slow.append(xl_heads(module, tokens, [*memory[:, b], *tokens], side == "decoder", 2))
    fast = [out[list(place), b] for b, place in enumerate(places)]
    inputs = [x, *module.parameters(), *([memory] if remembered else [])]
    assert_same(joined(fast), joined(slow), inputs)


# ---- whole decoders over the segments of a text, with what they remember between them


def xl_layer(layer: Any, before: bool, clamp: int, reach: int) -> Any:
    """A layer of Transformer-XL in the loops: its input and the memory to its output."""

    def run(x: list[Tensor], earlier: list[Tensor]) -> list[Tensor]:
        norms = norm_of(layer.self_attn_layer_norm), norm_of(layer.final_layer_norm)
        read = [*earlier, *x]
        read = [norms[0](state) for state in read] if before else read
        found = xl_heads(layer.self_attn, read[len(earlier) :], read, True, clamp, reach)
        out = []
        for token, attended in zip(x, found):
            state = naive.sublayer(token, lambda _, out=attended: out, norms[0], before)
            out.append(naive.sublayer(state, feed_forward(layer), norms[1], before))
        return out

    return run


def carrying(layer: Any) -> Any:
    """A block-recurrent layer in the loops, which keeps its state from segment to segment."""
    state = list(torch.zeros_like(layer.identity))

    def run(x: list[Tensor], _: list[Tensor]) -> list[Tensor]:
        nonlocal state
        out, after = naive.block_recurrent_layer(x, state, 3, block_weights(layer, HEADS, 4))
        state = [vector.detach() for vector in after]
        return out

    return run


def by_loops(decoder: Any, x: list[Tensor], name: str) -> list[Tensor]:
    """The decoder's states for one text (T of (C,))."""
    if name == "latent":
        state, out = naive.latent_code(4, x[0]), []
        for first in range(0, len(x), SEGMENT):
            read, after = latent_chunks(decoder, x[first : first + SEGMENT], state, 3, 2)
            state = [vector.detach() for vector in after]
            out += read
        return out
    before, clamp = name == "pre-norm", 3 if name == "clamped" else 0
    reach = MEMORY if name == "same length" else 0
    layers = [
        carrying(layer) if hasattr(layer, "identity") else xl_layer(layer, before, clamp, reach)
        for layer in decoder.layers
    ]
    return naive.segments_with_memory(x, SEGMENT, MEMORY, layers)


DECODERS = {
    "xl": "xl_lm_tiny",
    "clamped": "xl_lm_tiny --xl-clamp-length 3",
    "same length": "xl_lm_tiny --memory-same-length",
    "pre-norm": "xl_lm_tiny --decoder-normalize-before",
    "block-recurrent": "brt_lm_tiny --recurrent-block 3 --recurrent-layer 2 "
    f"--recurrent-state-length 2 {' '.join(NARROW)}",
    "latent": "tlb_lm_tiny --latent-chunk 3 --latent-every 2 --latent-states 4",
}


@pytest.mark.parametrize("name", DECODERS)
def test_segments_of_a_text(make_model: Build, name: str) -> None:
    """Three segments, the last one not full and padded in the second row.

    The first one begins without a memory; no gradient flows into what is remembered.
    """
    arch, *flags = DECODERS[name].split()
    model = build(make_model, arch, *small(arch), *flags)
    decoder = model.decoder.train()  # its memory; nothing is dropped
    decoder.memory.segment = SEGMENT
    words = torch.randint(4, 60, (2, 11))
    words[1, 10:] = PAD
    parts = words.split(SEGMENT, dim=1)
    found = [
        decoder.extract_features(part, starts=STARTS + n * SEGMENT)[0]
        for n, part in enumerate(parts)
    ]
    fast = torch.cat(found, dim=1)
    slow = []
    for row, length in enumerate((11, 10)):
        embedded = decoder.embed(words[row : row + 1, :length], None)[:, 0]
        out = by_loops(decoder, list(embedded), name)
        if decoder.layer_norm is not None:
            out = [norm_of(decoder.layer_norm)(state) for state in out]
        slow += out
    inputs = [p for n, p in decoder.named_parameters() if "output_projection" not in n]
    assert_same(joined([fast[0], fast[1, :10]]), joined(slow), inputs)


# ---- the cross-attentions over segments that SRformer is compared with


def rnn(module: nn.RNN) -> Callable[[list[Tensor]], list[Tensor]]:
    names = "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"
    weights = [getattr(module, name) for name in names]
    return lambda tokens: naive.plain_rnn(tokens, *weights)


def cross_heads(
    part: Any, kind: str, x: list[Tensor], states: list[Tensor], size: int, target: int
) -> Tensor:
    """What the queries (T of (C,)) read in one source (S of (C,)): (T, C)."""
    key_of, value_of = part.k_proj, part.v_proj
    queries = [part.q_proj(vector).chunk(HEADS) for vector in x]
    keys, values = [key_of(s) for s in states], [value_of(s) for s in states]
    sides, heads = (keys, values), []
    if kind == "rnn_all_heads":
        # One RNN over all heads at once.
        sides += rnn(part.rnns.keys)(keys), rnn(part.rnns.values)(values)
    if kind == "transient":
        tokens = naive.transient_tokens(states, size, part.norm.weight)
        sides += [key_of(token) for token in tokens], [value_of(token) for token in tokens]
    for h in range(HEADS):
        q = [query[h] for query in queries]
        of_head = [[vector.chunk(HEADS)[h] for vector in side] for side in sides]
        if kind == "raw":
            out = naive.xl_cross_head(q, *of_head, size, target)
        elif kind == "rnn":
            chains = rnn(part.rnns.keys), rnn(part.rnns.values)
            out = naive.xl_cross_head(q, *of_head, size, target, chains)
        elif kind == "rnn_all_heads":
            out = naive.published_xl_head(q, *of_head, size, target)
        elif kind == "segmented":
            nothing = torch.zeros(len(q[0]), len(q[0]), dtype=q[0].dtype)
            q = [query / len(query) ** 0.5 for query in q]
            scalars = nothing, nothing[0, 0], nothing[0, 0] + 1
            out, _ = naive.srformer_head(q, *of_head, size, target, *scalars)
        elif kind == "mean":
            means = (naive.segment_means(side, size) for side in of_head)
            out = naive.global_head(q, *of_head, *means, size, target)
        else:
            out = naive.global_head(q, *of_head, size, target)
        heads.append(out)
    return part.out_proj(torch.cat(heads, dim=1))


def padding_of(places: list[range]) -> Padding | None:
    mask = torch.ones(len(places), max(place.stop for place in places), dtype=torch.bool)
    for row, place in zip(mask, places):
        row[list(place)] = False
    return Padding.of(mask)


CROSS = {
    "segmented": "segmented",
    "raw": "xl --xl-memory raw",
    "rnn": "xl --xl-memory rnn",
    "rnn_all_heads": "xl --xl-memory rnn_all_heads",
    "mean": "global --global-tokens mean",
    "transient": "global --global-tokens transient",
}


@pytest.mark.parametrize("kind", CROSS)
@pytest.mark.parametrize(
    "sources, targets, side, target",
    [
        ((7, 2, 5), (6, 4, 6), "left", 5),
        ((7, 2, 5), (6, 4, 6), "left", 2),  # fewer than segments, so that some are skipped
        ((5, 7, 8), (4, 6, 5), "right", 5),
        ((6, 6), (6, 6), "none", 2),
    ],
    ids=["left", "left, skipping", "right", "unpadded, skipping"],
)
def test_cross_attention_of_the_comparison_systems(
    make_model: Build, kind: str, sources: tuple[int, ...], targets: tuple[int, ...], side: str,
    target: int,
) -> None:  # fmt: skip
    """Sources and targets padded on the left, on the right and not at all; last segments short."""
    flags = [*CROSS[kind].split(), "--segment-size", "2", "--target-length", str(target)]
    model = build(make_model, "srformer", *SMALL, "--cross-attention", *flags)
    part = model.decoder.layers[0].encoder_attn
    read, asking = real_places(sources, side), real_places(targets, side)
    states, x = random(max(sources), len(sources), 16), random(max(targets), len(targets), 16)
    source, padding = Source.of(states, padding_of(read)), padding_of(asking)
    context = Context(
        padding=padding, encoder_out=states, source=source,
        segments=part.segments(source, len(x), padding),
    )  # fmt: skip
    out, _ = part(x, context)
    fast, slow = [], []
    for b, (tokens, queries) in enumerate(zip(read, asking)):
        fast.append(out[list(queries), b])
        vectors = [x[t, b] for t in queries], [states[j, b] for j in tokens]
        slow.append(cross_heads(part, kind, *vectors, size=2, target=target))
    assert_same(joined(fast), joined(slow), [x, states, *part.parameters()])


# ---- every part has a reference

FOUND_BY_OPS = test_ops.REFERENCES
REFERENCE_OF: dict[str, dict[str, Callable[..., None]]] = {
    "SELF_ATTENTION": {
        "dot": test_modules.test_fused_decoder_layer,
        "relative": FOUND_BY_OPS["relative_attention"],
        "xl": test_self_attention_of_transformer_xl,
        "directional": FOUND_BY_OPS["directional_attention"],
        "prob_sparse": FOUND_BY_OPS["prob_sparse_attention"],
        "log_sparse": FOUND_BY_OPS["log_sparse_mask"],
    },
    "MIXTURE": {
        "rsa": test_self_attention.test_module_equals_the_equations,
        "toeplitz": test_self_attention.test_learned_matrices,
        "full_matrix": test_self_attention.test_learned_matrices,
    },
    "CROSS_ATTENTION": {
        "dot": test_modules.test_fused_decoder_layer,
        "srformer": test_srformer_module.test_module_equals_algorithm_1,
        "segmented": test_cross_attention_of_the_comparison_systems,
        "xl": test_cross_attention_of_the_comparison_systems,
        "global": test_cross_attention_of_the_comparison_systems,
    },
    "CROSS_MIXTURE": {"rsa": test_cross_mixture.test_equations},
    "RECURRENCE": {"birnn": test_ops.test_birnn, "biarn": test_ops.test_biarn},
    "FUSION": {
        "stack": test_modules.test_fusion,
        "gated_sum": test_modules.test_fusion,
        "replace": test_modules.test_fused_decoder_layer,
        "multicolumn": test_comparison_systems.test_multi_column_equals_the_loops,
    },
    "MEMORY": {
        "xl": test_segments_of_a_text,
        "block_recurrent": test_segments_of_a_text,
        "latent": test_segments_of_a_text,
    },
}
"""The test that compares a part with its loops, by the table of its slot and its name."""


def test_every_part_has_a_reference() -> None:
    """Of the package's own; another test of the process may have registered a user's part."""
    tables = {
        name: table
        for name, table in vars(parts).items()
        if name.isupper()
        and isinstance(table, dict)
        and table
        and all(map(inspect.isclass, table.values()))
    }
    assert tables.keys() == REFERENCE_OF.keys()
    for slot, table in tables.items():
        ours = {n for n, part in table.items() if part.__module__.startswith("fairseq_recur.")}
        assert ours == REFERENCE_OF[slot].keys(), slot


@pytest.mark.parametrize(
    "test",
    dict.fromkeys(test for tests in REFERENCE_OF.values() for test in tests.values()),
    ids=lambda test: test.__name__,
)
def test_references_are_the_loops(test: Callable[..., None]) -> None:
    """The test, or what it calls in its file, names a function of `ops.naive`."""
    module = ast.parse(inspect.getsource(inspect.getmodule(test)))  # type: ignore[arg-type]
    functions = {f.name: f for f in module.body if isinstance(f, ast.FunctionDef)}
    names, seen = [test.__name__], set()
    while names:
        name = names.pop()
        seen.add(name)
        called = {n.id for n in ast.walk(functions[name]) if isinstance(n, ast.Name)}
        if "naive" in called:
            return
        names += (called & functions.keys()) - seen
    pytest.fail(f"{test.__name__} calls nothing of ops.naive")


def test_every_loop_is_used() -> None:
    """By a test, or by another function of `ops.naive`."""
    here = Path(__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in here.glob("*.py")]
    used = set(re.findall(r"\bnaive\.(\w+)", " ".join(texts)))
    folder = Path(naive.__path__[0])
    for path in folder.glob("*.py"):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            own = getattr(statement, "name", "")
            names = (n.id for n in ast.walk(statement) if isinstance(n, ast.Name))
            used |= {name for name in names if name != own}
    loops = {
        name
        for name, function in vars(naive).items()
        if getattr(function, "__module__", "").startswith(f"{naive.__name__}.")
    }
    assert len(loops) > 30 and loops - used == set()
