"""What must hold for every language model with a memory of earlier segments."""

from argparse import Namespace
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from itertools import combinations
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_recur.errors import ConfigError
from fairseq_recur.integration import loading
from fairseq_recur.models.presets import LANGUAGE_MODELS
from fairseq_recur.modules.block_recurrent import BlockRecurrentLayer
from fairseq_recur.modules.context import Context
from fairseq_recur.modules.latent_bottleneck import LatentBottleneck
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.parts import MEMORY as MEMORIES
from fairseq_recur.modules.parts import MIXTURE, SELF_ATTENTION
from fairseq_recur.modules.stream_memory import is_memory
from fairseq_recur.modules.xl import SinusoidalLags
from fairseq_recur.ops.precision import at_least_float32
from tests.conftest import MEMORY_MODELS, fast_or_slow
from tests.systems import RSA_PARAMETERS, covering, option_values, without_decay
from tests.unit.test_context import HostReads

Build = Callable[..., nn.Module]
SEGMENT, MEMORY = 4, 6
SMALL_XL: list[str] = (
    "--decoder-embed-dim 16 --decoder-input-dim 16 --decoder-output-dim 16 --decoder-layers 3 "
    "--decoder-ffn-embed-dim 24 --decoder-attention-heads 2 --dropout 0 --activation-dropout 0 "
    f"--tokens-per-sample {SEGMENT} --memory-length {MEMORY}"
).split()


def small(name: str) -> list[str]:
    """Flags that make a preset small; a latent bottleneck has no --memory-length."""
    return SMALL_XL[:-2] if "tlb" in name else SMALL_XL


def shrunk(arch: str) -> list[str]:
    """Further flags, with which each part of a preset acts on short texts."""
    config, flags = ARCH_MODEL_REGISTRY[arch].config_class(), []
    latent = config.decoder_memory == "latent"
    if latent:
        flags += "--latent-chunk 2 --latent-states 5".split()
    if config.decoder_memory == "block_recurrent":
        flags += "--recurrent-block 2 --recurrent-layer 2".split()
    if config.adaptive_input:
        flags += "--adaptive-input-cutoff 20,40 --adaptive-softmax-cutoff 20,40".split()
    if config.decoder_head_dim:
        flags += ["--decoder-head-dim", "5"]
    if config.decoder_self_attention_mixture == "rsa":  # a head of each kind; a chunk has lag 1
        kinds = [min(1, int(count)) for count in config.rsa_heads.split(",")]
        dilations = ["1" if latent else lag for lag in ("2", "3", "2")][: sum(kinds[3:])]
        flags += ["--rsa-heads", ",".join(map(str, kinds)), "--rsa-dilations", ",".join(dilations)]
        flags += ["--decoder-attention-heads", str(sum(kinds))]
    return flags


def is_adaptive(arch: str) -> bool:
    """Whether a preset has an adaptive softmax."""
    return bool(ARCH_MODEL_REGISTRY[arch].config_class().adaptive_softmax_cutoff)


def structure(arch: str) -> tuple[tuple[str, str], ...]:
    """The options of a preset that is made small; the tests draw the gates anew."""
    config, flags = ARCH_MODEL_REGISTRY[arch].config_class(), [*SMALL_XL, *shrunk(arch)]
    small = {name[2:].replace("-", "_"): value for name, value in zip(flags[::2], flags[1::2])}
    names = {f.name for f in fields(config)} - {"_name", "rsa_gate_init"}
    return tuple(sorted({**{name: str(getattr(config, name)) for name in names}, **small}.items()))


MEMORY_STRUCTURES: list[str] = sorted(
    {structure(p): p for p in sorted(MEMORY_MODELS, key=len, reverse=True)}.values()
)
"""Of the presets that make the same small model the one with the shortest name."""

TRAINED: dict[str, list[str]] = {preset: [preset, *shrunk(preset)] for preset in MEMORY_STRUCTURES}
"""Every preset, with a mixture all of whose parameters matter in short texts."""


def in_state(arch: str) -> bool:
    """Whether a preset keeps a state alone, and no positions."""
    return bool(ARCH_MODEL_REGISTRY[arch].config_class().decoder_memory == "latent")


BY_LAG: dict[str, list[str]] = {
    **{preset: words for preset, words in TRAINED.items() if not in_state(preset)},
    "xl-clamped": ["xl_lm_tiny", "--xl-clamp-length", "3"],
    "rsa-chunked": ["rsa_xl_lm_tiny", *"--rsa-dilations 2,3 --rsa-form chunked".split()],
    "rsa-recurrent": [
        "rsa_xl_lm_tiny",
        *"--rsa-dilations 2,3 --rsa-form chunked --rsa-max-power 0".split(),
    ],
    "toeplitz": ["xl_lm_tiny", "--decoder-self-attention-mixture", "toeplitz"],
    "toeplitz-chunked": [
        "xl_lm_tiny",
        *"--decoder-self-attention-mixture toeplitz --rsa-form chunked".split(),
    ],
    "dot": ["xl_lm_tiny", "--decoder-self-attention", "dot"],
    "log-sparse": ["xl_lm_tiny", "--decoder-self-attention", "log_sparse"],
    "relative": ["xl_lm_tiny", "--decoder-self-attention", "relative", "--relative-clip", "3"],
    "relative-rsa": [
        "rsa_xl_lm_tiny",
        *"--decoder-self-attention relative --rsa-dilations 2,3".split(),
    ],
    "rsa-block-recurrent": [
        "rsa_brt_lm_tiny",
        *"--rsa-dilations 2,3 --recurrent-block 1 --recurrent-state-length 5".split(),
    ],
    "pre-norm": ["rsa_xl_lm_tiny", *"--rsa-dilations 2,3 --decoder-normalize-before".split()],
    "block-recurrent-pre-norm": [
        "brt_lm_tiny",
        *"--recurrent-block 2 --recurrent-layer 2 --decoder-normalize-before".split(),
    ],
    "fairseqs-host": [
        "rsa_xl_lm_tiny",
        *"--language-model-host transformer --rsa-dilations 2,3".split(),
    ],
    "dot-fairseqs-host": [
        "xl_lm_tiny",
        *"--language-model-host transformer --decoder-self-attention dot".split(),
    ],
}
"""Every map that reads a memory, without and with mixtures, in both hosts."""

LATENT: dict[str, list[str]] = {
    **{preset: words for preset, words in TRAINED.items() if in_state(preset)},
    "rsa-latent": [
        "rsa_tlb_lm_tiny",
        *"--rsa-dilations 1,2 --latent-chunk 2 --latent-every 1 --latent-states 3".split(),
    ],
    "latent-xl": [
        "tlb_lm_tiny",
        *"--decoder-self-attention xl --latent-chunk 1 --latent-every 3".split(),
    ],
}
"""Those that keep a state alone, and no positions."""

STEPS_ONLY = {
    "full-matrix": [
        "xl_lm_tiny",
        *"--decoder-self-attention-mixture full_matrix --learned-matrix-length 9".split(),
    ],
    "uneven-blocks": ["brt_lm_tiny", "--recurrent-block", "3"],
    "uneven-chunks": ["tlb_lm_tiny", "--latent-chunk", "3"],
}
"""Those that depend on where a segment begins."""

ALL = {**BY_LAG, **LATENT, **STEPS_ONLY}

AXES = (
    "decoder_memory", "decoder_self_attention", "decoder_self_attention_mixture",
    "language_model_host", "decoder_normalize_before", "adaptive_input", "rsa_form",
    "rsa_max_power",
)  # fmt: skip
"""The options of which the fast tests have every pair of values that a system has."""


def settings(words: list[str]) -> dict[str, str]:
    """The `AXES` of a system; a mixture's form and power only if it has a mixture."""
    config, given = ARCH_MODEL_REGISTRY[words[0]].config_class(), option_values(["--arch", *words])
    # A flag without a value turns something on.
    found = {name: given.get(name, str(getattr(config, name))) or "True" for name in AXES}
    if found["decoder_self_attention_mixture"] == "none":
        del found["rsa_form"], found["rsa_max_power"]
    return found


FAST = covering(
    {name: {*combinations(settings(words).items(), 2)} for name, words in ALL.items()}, ALL
)
"""The systems of the fast tests: what a position reads, and each way to compute it."""

STARTS = torch.tensor([1000, 5000])
TARGETS = torch.tensor([[5, 25, 50, 7], [30, 45, 6, 55]])
"""For a segment; half of it has words of every band of an adaptive softmax."""


def systems(*names: str) -> list[object]:
    """Parameters of a test, slow unless they are among `FAST`."""
    return [fast_or_slow(name, name, name in FAST) for name in names]


@pytest.fixture
def build(make_model: Build) -> Build:
    """A small float64 model in evaluation mode with weights large enough to matter."""

    def make(name: str, *flags: str) -> nn.Module:
        model = make_model(name, *small(name), *flags).double().eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        for module in model.modules():
            if hasattr(module, "segment"):
                module.segment = SEGMENT
        return model

    return make


def text(length: int = 14) -> Tensor:
    return torch.randint(4, 60, (2, length))


def words_of(model: nn.Module, out: Tensor) -> Tensor:
    """What a model says of the next words: logits, or an adaptive softmax's log-probabilities."""
    softmax = model.decoder.adaptive_softmax
    return out if softmax is None else softmax.get_log_prob(out, None)


def read(model: nn.Module, tokens: Tensor, **places: Tensor) -> Tensor:
    """What a model says after each token."""
    return words_of(model, model(tokens, **places)[0])


def in_segments(model: nn.Module, tokens: Tensor, size: int = SEGMENT) -> Tensor:
    """The same of a text that the model reads segment by segment."""
    out = []
    for first in range(0, tokens.size(1), size):
        out.append(read(model, tokens[:, first : first + size], starts=STARTS + first))
    return torch.cat(out, dim=1)


def loss(model: nn.Module, targets: Tensor, tokens: Tensor, **places: Tensor) -> Tensor:
    """The cross-entropy, of an adaptive softmax that of each band, as fairseq's criterion has it.

    fairseq's log-probabilities of all words have no gradients.
    """
    out, softmax = model(tokens, **places)[0], model.decoder.adaptive_softmax
    if softmax is None:
        bands = [(out.flatten(0, 1), targets.flatten())]
    else:
        bands = [pair for pair in zip(*softmax(out, targets.flatten())) if pair[1] is not None]
    return sum(nn.functional.cross_entropy(at_least_float32(x), y) for x, y in bands)


def alone(model: nn.Module, tokens: Tensor, size: int = SEGMENT) -> Tensor:
    """The same of a text each of whose segments is read as if nothing were before it."""
    return torch.cat([read(model, part) for part in tokens.split(size, dim=1)], dim=1)


def in_one_pass(model: nn.Module, tokens: Tensor) -> Tensor:
    """The same of a text that is one segment."""
    memory = model.decoder.memory
    memory.segment = tokens.size(1)
    found = read(model, tokens)
    memory.segment = SEGMENT
    return found


@pytest.mark.parametrize("name", systems(*BY_LAG))
def test_segments_with_a_memory_are_one_pass_with_the_same_reach(build: Build, name: str) -> None:
    model, tokens = build(*BY_LAG[name], "--memory-same-length"), text()
    whole, found = in_one_pass(model, tokens), in_segments(model, tokens)
    torch.testing.assert_close(found, whole, rtol=1e-6, atol=1e-8)
    assert (alone(model, tokens) - whole)[:, SEGMENT:].abs().max() > 1e-3


@pytest.mark.parametrize("name", systems(*BY_LAG))
def test_a_memory_of_all_segments_is_one_pass(build: Build, name: str) -> None:
    model, tokens = build(*BY_LAG[name], "--memory-length", "100"), text()
    whole = in_one_pass(model, tokens)
    torch.testing.assert_close(in_segments(model, tokens), whole, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", systems(*LATENT))
def test_a_latent_state_continues_from_segment_to_segment(build: Build, name: str) -> None:
    """Chunks see each other through the state alone, whether a segment ends between them or not."""
    model, tokens = build(*LATENT[name]), text()
    whole = in_one_pass(model, tokens)
    torch.testing.assert_close(in_segments(model, tokens), whole, rtol=1e-6, atol=1e-8)
    chunk = model.decoder.bottleneck.block
    chunks = alone(model, tokens, chunk)
    torch.testing.assert_close(chunks[:, :chunk], whole[:, :chunk], rtol=1e-6, atol=1e-8)
    assert (chunks - whole)[:, chunk:].abs().max() > 1e-4
    held = model.decoder.memory.held()
    assert held["states"].size() == (3, 0, 2, 16) and held["carried"].size(0) == 2


@pytest.mark.parametrize("name", systems(*LATENT))
@pytest.mark.parametrize("length", [1, 2, 3])
def test_padding_changes_no_latent_state(build: Build, name: str, length: int) -> None:
    """Neither beside real positions of a chunk, nor in one without any, nor in decoding."""
    model, tokens = build(*LATENT[name]), text(SEGMENT)
    tokens[1, length:] = 1
    states, memory = [], model.decoder.memory
    for rows, end in ((tokens[1:], length), (tokens, SEGMENT)):
        model(rows[:, :end], starts=STARTS[-len(rows) :])
        states.append(memory.held()["carried"][-1])
    torch.testing.assert_close(states[1], states[0], rtol=1e-9, atol=1e-11)
    steps: dict[str, dict[str, Tensor]] = {}
    for step in range(1, SEGMENT + 1):
        model.decoder(tokens[:, :step], incremental_state=steps)
    decoded = model.decoder.bottleneck.get_incremental_state(steps, "block")["state"]
    torch.testing.assert_close(decoded[1], states[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", systems(*ALL))
def test_a_text_by_itself_is_cut_like_a_stream(build: Build, name: str) -> None:
    """Also beside a shorter one, of which a segment is nothing but padding; no memory changes."""
    model, tokens = build(*ALL[name]), text()
    forced = in_segments(model, tokens)
    model(tokens[:, :SEGMENT], starts=0 * STARTS - SEGMENT)  # which the text's zeros would continue
    before = model.decoder.memory.held()
    tokens[1, 3:] = 1
    out, extra = model(tokens)
    found = words_of(model, out)
    torch.testing.assert_close(found[0], forced[0], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found[1, :3], forced[1, :3], rtol=1e-9, atol=1e-11)
    assert extra["inner_states"][-1].size() == (14, 2, 16)
    assert model.decoder.memory.held() is before
    kept = {n: x.clone() for n, x in model.decoder.memory.named_buffers()}
    model.train()(tokens)
    assert all(torch.equal(x, kept[n]) for n, x in model.decoder.memory.named_buffers())


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("name", systems(*ALL))
def test_step_by_step_is_teacher_forcing_across_segments(
    build: Build, name: str, same: bool
) -> None:
    if same and name not in BY_LAG:
        pytest.skip("it has no --memory-same-length")
    flags = ALL[name]
    model, tokens = build(*flags, *(["--memory-same-length"] if same else [])), text()
    forced, state = in_segments(model, tokens), {}
    for step in range(1, tokens.size(1) + 1):
        out, _ = model.decoder(tokens[:, :step], incremental_state=state)
        found = words_of(model, out)[:, -1]
        torch.testing.assert_close(found, forced[:, step - 1], rtol=1e-5, atol=1e-7)
    if model.decoder.bottleneck is None:
        kept = model.decoder.layers[-1].self_attn._get_input_buffer(state)["prev_key"].size(2)
        assert kept == (MEMORY if same else MEMORY + 2)


@pytest.mark.parametrize("name", ["rsa_xl_lm", "toeplitz"])
def test_matrices_over_a_memory_are_the_last_rows(build: Build, name: str) -> None:
    model = build(*BY_LAG[name])
    mixture = next(m for m in model.modules() if isinstance(m, Mixture))
    square = mixture.matrix(SEGMENT + MEMORY, SEGMENT + MEMORY)
    assert torch.equal(mixture.matrix(SEGMENT, SEGMENT + MEMORY), square[:, MEMORY:])
    mixture.reach = 3
    lags = torch.arange(SEGMENT + MEMORY)
    seen = (lags[:, None] - lags) < 3
    limited = mixture.matrix(SEGMENT + MEMORY, SEGMENT + MEMORY)
    assert torch.equal(limited, square * seen)


def test_the_keys_of_lags_are_a_table_that_grows(build: Build) -> None:
    """In decoding they are computed anew only where the table ends."""
    attention: Any = build("xl_lm_tiny").decoder.layers[0].self_attn
    state: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        for keys in (1, 2, 64, 65, 130):
            context = Context(incremental_state=state)
            expected = attention.positions.keys(1, keys, context)
            torch.testing.assert_close(attention.newest_keys(keys, context), expected)
    with torch.no_grad():
        attention.positions.key_proj.weight.zero_()
        assert attention.newest_keys(100, context).any()
        assert not attention.newest_keys(300, context).any()


def test_longer_lags_share_a_sinusoid() -> None:
    clamped, free = (SinusoidalLags("", 8, 2, 4, clamp) for clamp in (3, 0))
    free.load_state_dict(clamped.state_dict())
    context = Context()
    keys, whole = (x.keys(2, 6, context) for x in (clamped, free))  # of the lags 5 ... -1
    assert torch.equal(keys[:, 2:], whole[:, 2:])
    assert torch.equal(keys[:, :2], whole[:, 2:3].expand(-1, 2, -1))
    assert not torch.allclose(whole[:, 1], whole[:, 2])


@pytest.mark.parametrize("name", systems(*TRAINED))
def test_the_memory_is_empty_where_nothing_continues(build: Build, name: str) -> None:
    """After a gap, with other streams, in other rows, and for a batch without numbers.

    Where a batch is repeated, a recurrent state knows of it already: it is not read either.
    """
    model, tokens = build(*TRAINED[name]), text(SEGMENT)
    first, _ = model(tokens)

    def after_a_batch(rows: int, starts: Tensor) -> Tensor:
        model(tokens, starts=STARTS)
        return model(tokens[:rows], starts=starts)[0]

    for starts in (STARTS, STARTS - SEGMENT, STARTS + SEGMENT + 1, STARTS.flip(0) + SEGMENT):
        torch.testing.assert_close(after_a_batch(2, starts), first)
    assert not torch.allclose(after_a_batch(2, STARTS + SEGMENT), first)
    both = after_a_batch(2, STARTS + SEGMENT)
    torch.testing.assert_close(after_a_batch(1, STARTS[:1] + SEGMENT), both[:1])
    before = model.decoder.memory.evaluation
    torch.testing.assert_close(model(tokens)[0], first)
    assert model.decoder.memory.evaluation is before
    after_a_batch(2, STARTS + SEGMENT)
    states, carried = model.decoder.memory.read(STARTS + SEGMENT, MEMORY)
    assert carried is None and (states is None) == in_state(name)


def test_a_padded_row_changes_no_other(build: Build) -> None:
    """Also where the memory stands before the padding, in every form of the mixture."""
    for name in ("xl_lm", "rsa_xl_lm", "rsa-chunked", "dot"):
        model, tokens = build(*BY_LAG[name]), text(2 * SEGMENT)
        whole = in_segments(model, tokens)
        padded = tokens.clone()
        padded[1, -2:] = 1
        found = in_segments(model, padded)
        torch.testing.assert_close(found[0], whole[0], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(found[1, :-2], whole[1, :-2], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", systems(*ALL))
def test_no_layer_waits_for_the_device(
    build: Build, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two segments of training, then steps of decoding beyond the end of a segment.

    A batch looks up its place once, for positions and state together. The other lists are of the
    padding: of each batch, and of each step's prefix.
    """
    model, tokens = build(*ALL[name]).train(), text(2 * SEGMENT)
    if model.decoder.adaptive_softmax is not None:  # fairseq selects words of a band, both ways
        model.decoder.embed_tokens.requires_grad_(False)
    with HostReads(model, monkeypatch) as reads:
        for n, part in enumerate(tokens.split(SEGMENT, dim=1)):
            logits, _ = model(part, starts=STARTS + n * SEGMENT)
        reads.backward(logits)
        trained = reads.found["list"]
        model.eval()
        state: dict[str, dict[str, Tensor]] = {}
        for step in range(1, SEGMENT + 3):
            model.decoder(tokens[:, :step], incremental_state=state)
    assert trained == 2 + 1 and reads.found["list"] == trained + SEGMENT + 2
    assert reads.found["layer"] == 0


@pytest.mark.parametrize("name", systems(*TRAINED))
def test_gradients_stop_at_the_memory(build: Build, name: str) -> None:
    model = build(*TRAINED[name]).train()
    tokens = text(2 * SEGMENT)
    model(tokens[:, :SEGMENT], starts=STARTS)
    memory = model.decoder.memory
    kept = (0, 0) if in_state(name) else (SEGMENT, MEMORY)
    assert memory.states.size() == (3, kept[0], 2, 16) and not memory.states.requires_grad
    assert memory.evaluation == {} and not memory.carried.requires_grad
    loss(model, TARGETS, tokens[:, SEGMENT:], starts=STARTS + SEGMENT).backward()
    assert memory.states.size(1) == kept[1]
    gradients = {n: p.grad for n, p in model.named_parameters()}
    assert [n for n, g in gradients.items() if g is None or not g.any()] == []
    assert [n for n, g in gradients.items() if not g.isfinite().all()] == []


@pytest.mark.parametrize("name", systems(*TRAINED))
def test_a_short_text_gives_every_parameter_a_gradient(build: Build, name: str) -> None:
    """Several processes wait for all of them, but nothing reads the state after the last block."""
    model = build(*TRAINED[name]).train()
    loss(model, TARGETS[:, 1:3], text(2)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("name", systems(*TRAINED))
def test_a_checkpoint_continues_where_it_was(build: Build, name: str) -> None:
    """Its memory is that of training, which evaluation in between does not touch."""
    model, tokens = build(*TRAINED[name]).train(), text(3 * SEGMENT)
    first, second = tokens[:, :SEGMENT], tokens[:, SEGMENT : 2 * SEGMENT]
    model(first, starts=STARTS)
    model.eval()(tokens[:, 2 * SEGMENT :], starts=STARTS)
    weights = model.state_dict()
    with model.decoder.memory.saved(None):
        to_resume = model.state_dict()
    memory = {f"decoder.memory.{n}" for n in model.decoder.memory.rows}
    assert to_resume.keys() - weights.keys() == memory == set(filter(is_memory, to_resume))
    expected, anew = read(model.train(), second, starts=STARTS + SEGMENT), read(model, second)
    assert not torch.allclose(anew, expected)
    again = build(*TRAINED[name]).train()
    again.load_state_dict(to_resume)
    torch.testing.assert_close(read(again, second, starts=STARTS + SEGMENT), expected)
    again.load_state_dict(weights)  # and forgets what it held
    torch.testing.assert_close(read(again, second, starts=STARTS + SEGMENT), anew)
    with loading():
        again.load_state_dict(to_resume)
    assert not len(again.decoder.memory.starts)


@pytest.mark.parametrize("name", systems(*TRAINED))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_half_precision_stays_finite(build: Build, dtype: torch.dtype, name: str) -> None:
    model, tokens = build(*TRAINED[name]).to(dtype).train(), text(3 * SEGMENT)
    found = in_segments(model, tokens)
    assert found.dtype == dtype and found.isfinite().all()
    exact = in_segments(deepcopy(model).double(), tokens)
    assert (found.double() - exact).abs().max() < min(
        0.1, 16 * torch.finfo(dtype).eps
    ) * exact.std()
    loss(model, TARGETS, text(SEGMENT), starts=STARTS + 3 * SEGMENT).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", systems(*BY_LAG, *LATENT))
def test_beams_can_be_moved(build: Build, name: str) -> None:
    """Within a block and at its end, as the generator moves, repeats and drops hypotheses."""
    model = build(*ALL[name])
    prefix, state = text(1), {}
    for order in ([1, 0, 0], [2, 0], [1, 0, 1], [2], [0, 0], [1, 0]):
        found = words_of(model, model.decoder(prefix, incremental_state=state)[0])
        starts = torch.arange(len(prefix)) * 1000
        forced = torch.cat([
            read(model, part, starts=starts + SEGMENT * n)
            for n, part in enumerate(prefix.split(SEGMENT, dim=1))
        ], dim=1)  # fmt: skip
        torch.testing.assert_close(found[:, -1], forced[:, -1], rtol=1e-5, atol=1e-7)
        model.decoder.memory.evaluation = {}
        rows = torch.tensor(order)
        model.decoder.reorder_incremental_state_scripting(state, rows)
        prefix = torch.cat([prefix[rows], torch.randint(4, 60, (len(rows), 1))], dim=1)


@pytest.mark.parametrize("name", systems(*TRAINED))
def test_weight_decay_leaves_alone_the_matrices_only(build: Build, name: str) -> None:
    model = build(*TRAINED[name])
    own = {n for n, _ in model.named_parameters() if n.split(".")[-1] in RSA_PARAMETERS}
    assert without_decay(model) == own and bool(own) == name.startswith("rsa_")


def test_the_host_is_transformer_xl(make_model: Build) -> None:
    """Shared u and v, no biases in attention, one for each word, weights from N(0, 0.02)."""
    model = make_model("xl_lm_tiny")
    terms = [m for m in model.modules() if isinstance(m, SinusoidalLags)]
    assert len(terms) == 4
    assert all(t.content_bias is terms[0].content_bias for t in terms)
    assert all(t.position_bias is terms[0].position_bias for t in terms)
    names = [name for name, _ in model.named_parameters()]
    assert not [n for n in names if "self_attn" in n and n.endswith("proj.bias")]
    decoder = model.decoder
    assert decoder.output_projection.weight is decoder.embed_tokens.weight
    assert decoder.output_projection.bias.size() == (len(decoder.embed_tokens.weight),)
    attention = decoder.layers[0].self_attn.q_proj.weight
    for weight in (decoder.embed_tokens.weight[4:], decoder.layers[0].fc1.weight, attention):
        assert 0.018 < weight.std() < 0.022
    norm = decoder.layers[0].final_layer_norm.weight
    assert 0.015 < norm.std() < 0.025 and 0.99 < norm.mean() < 1.01
    assert not decoder.embed_tokens.weight[1].any()
    assert decoder.layer_norm is None and not decoder.layers[0].normalize_before


@pytest.mark.parametrize("arch", MEMORY_MODELS)
def test_initial_weights_have_the_deviation(arch: str, make_model: Build) -> None:
    """That of Dai et al., but in a Block-Recurrent Transformer of width 128."""
    expected = 0.04 if arch.endswith("brt_lm_tiny") else 0.02
    assert ARCH_MODEL_REGISTRY[arch].config_class().init_std == expected
    for flags, deviation in (([], expected), (["--init-std", "0.3"], 0.3)):
        model = make_model(arch, *small(arch), *shrunk(arch), *flags)
        assert 0.85 < model.decoder.layers[0].fc1.weight.std() / deviation < 1.15


@pytest.mark.parametrize(
    "arch, name, sizes",
    [
        ("xl_lm_tiny", "content_bias", []),
        ("xl_lm_tiny", "position_bias", []),
        ("brt_lm_tiny", "identity", ["--recurrent-state-length", "32"]),
    ],
)
def test_vectors_of_parts_start_with_a_deviation_of_0_02(
    arch: str, name: str, sizes: list[str], make_model: Build
) -> None:
    """The biases of lags (Dai et al.) and the identities of states (Hutchins et al.)."""
    named = make_model(arch, *sizes, "--init-std", "0.3").named_parameters()
    drawn = torch.cat([p.flatten() for n, p in named if n.endswith(name)])
    assert len(drawn) >= 128 and drawn.std().item() == pytest.approx(0.02, rel=0.25)
    assert abs(drawn.mean()) < 0.008


def test_a_segment_ends_a_block(make_model: Build) -> None:
    """So blocks of four positions start anew in each segment of ten."""
    flags = [*SMALL_XL[:-4], *"--tokens-per-sample 10 --recurrent-block 4".split()]
    model = make_model("brt_lm_tiny", *flags, "--recurrent-layer", "2")
    (layer,) = (m for m in model.modules() if isinstance(m, BlockRecurrentLayer))
    ends = [position for position in range(22) if layer.ends_block(position)]
    assert ends == [3, 7, 9, 13, 17, 19]


def test_an_adaptive_softmax_has_the_embeddings_and_a_bias_for_each_word(build: Build) -> None:
    """Its probabilities are those of the clusters times those within, with tied vectors."""
    # A flag of what the preset has does not turn it off.
    adaptive = "--adaptive-input-cutoff 20,40 --adaptive-softmax-cutoff 20,40 --adaptive-input"
    model = build("xl_lm_wikitext103", *adaptive.split(), "--decoder-head-dim", "5")
    decoder, tokens = model.decoder, text(SEGMENT)
    assert decoder.layers[0].self_attn.q_proj.weight.size() == (10, 16)
    with torch.no_grad():
        features, _ = decoder.extract_features(tokens)
        found = model.get_normalized_probs((features, None), log_probs=True)
    bands = [band[0].weight for band in decoder.embed_tokens.embeddings]
    assert [tuple(band.size()) for band in bands] == [(20, 16), (20, 16), (24, 16)]
    softmax = decoder.adaptive_softmax
    classes = softmax.head[0].class_proj.weight
    head = features @ torch.cat([bands[0], classes]).T + softmax.head[1].bias
    head = head.log_softmax(-1)
    tails = [
        (features @ band.T + tail[-1].bias).log_softmax(-1) + head[..., 20 + i, None]
        for i, (band, tail) in enumerate(zip(bands[1:], softmax.tail))
    ]
    torch.testing.assert_close(found, torch.cat([head[..., :20], *tails], dim=-1))


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--memory-same-length --memory-length 0", "lets a position see nothing"),
        ("--base-layers 1", "--base-layers 1: the memory has no place for layers"),
        ("--decoder-layerdrop 0.1", "--decoder-layerdrop 0.1: a layer that was dropped"),
        ("--decoder-self-attention directional", "be read by --decoder-self-attention direct"),
        ("--decoder-memory none --memory-length 3", "--memory-length 3 has no effect: it needs"),
        ("--memory-length -1", "--memory-length -1: expected 0 to"),
        ("--decoder-head-dim 8 --scale-heads", "--scale-heads needs heads of the usual width"),
        (
            "--decoder-head-dim 8 --language-model-host transformer",
            "--decoder-head-dim 8 has no effect with --language-model-host transformer",
        ),
        (
            "--decoder-self-attention-mixture full_matrix --memory-same-length",
            "--memory-same-length counts lags, and full_matrix positions",
        ),
        (
            "--adaptive-softmax-cutoff 20,9999 --adaptive-input --adaptive-input-cutoff 40,20",
            "-input-cutoff 40,20: expected rising .*\\n.*-softmax-cutoff 20,9999: expected rising",
        ),
        (
            "--adaptive-input --adaptive-input-cutoff 20,40",
            "--adaptive-input: bands of words have no single matrix .*; give --adaptive-softmax",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(make_model: Build, flags: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_model("xl_lm_tiny", *flags.split())


def test_a_recurrent_layer_that_is_missing_is_refused(make_model: Build) -> None:
    with pytest.raises(ConfigError, match="--recurrent-layer 5: expected at most --decoder-layers"):
        make_model("brt_lm_tiny", "--recurrent-layer", "5")
    flags = ["--tokens-per-sample", "8", "--recurrent-block", "8"]
    with pytest.raises(ConfigError, match="--recurrent-block 8: expected less than --tokens-per"):
        make_model("brt_lm_tiny", *flags)
    with pytest.raises(ConfigError, match="--latent-every 5: expected at most --decoder-layers 4"):
        make_model("tlb_lm_tiny", "--latent-every", "5")


@pytest.mark.parametrize("name, kept", [("rsa_xl_lm", "0,2"), ("brt_lm", "0,1"), ("brt_lm", "1,2")])
def test_layers_to_keep(build: Build, name: str, kept: str) -> None:
    """The pruned model is the full one without the other layers."""
    flags = ["--decoder-layers-to-keep", kept]
    full, part = build(*BY_LAG[name]), build(*BY_LAG[name], *flags)
    options = Namespace(arch=name, decoder_layers=3, decoder_layers_to_keep=kept)
    part.load_state_dict(full.state_dict(), model_cfg=options)
    # What is saved with the pruned weights builds the pruned model.
    assert (options.decoder_layers, options.decoder_layers_to_keep) == (2, None)
    decoder, numbers = full.decoder, [int(number) for number in kept.split(",")]
    decoder.layers = nn.ModuleList(decoder.layers[number] for number in numbers)
    decoder.memory.layers = len(numbers)
    if name == "brt_lm":
        assert decoder.memory.recurrent == numbers[part.decoder.memory.recurrent] == 1
        assert getattr(options, "recurrent_layer", 2) == 2 - part.decoder.memory.recurrent
        decoder.memory.recurrent = part.decoder.memory.recurrent
    tokens = text()
    torch.testing.assert_close(in_segments(part, tokens), in_segments(full, tokens))


def test_a_saved_memory_of_other_layers_is_not_read(build: Build) -> None:
    """A training that is resumed with fewer layers begins with an empty memory."""
    words = BY_LAG["rsa_xl_lm"]
    full = build(*words).train()
    full(text(SEGMENT), starts=STARTS)
    with full.decoder.memory.saved(None):
        saved = deepcopy(full.state_dict())
    for flags in ([], ["--decoder-layers-to-keep", "0,2"]):
        model = build(*words, *flags).train()
        model.load_state_dict(saved, model_cfg=Namespace(decoder_layers=3))
        memory, following = model.decoder.memory, STARTS + SEGMENT
        assert memory.place(following) == (None if flags else (0, SEGMENT))


@pytest.mark.parametrize(
    "arch, kept, said",
    [
        ("brt_lm_tiny", "0,2,3", "0,2,3 drops the block-recurrent layer, number 1 .*; keep it"),
        ("brt_lm_tiny", "1,x", "1,x: expected comma-separated numbers of layers"),
        ("tlb_lm_tiny", "0,1,2", "0,1,2: the blocks that read the latent state .*; leave it out"),
    ],
)
def test_pruning_that_would_drop_a_state_is_refused(
    make_model: Build, arch: str, kept: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"--decoder-layers-to-keep {said}"):
        make_model(arch, "--decoder-layers-to-keep", kept)


def test_activations_between_chunks_are_checkpointed(build: Build) -> None:
    """Also those of the blocks that read and write a latent state; the gradients are the same."""
    called, losses = [], []

    def recorded(function: Callable[..., Any], *args: Any, use_reentrant: bool) -> Any:
        called.append(function)
        return checkpoint(function, *args, use_reentrant=use_reentrant)

    tokens = text(SEGMENT)
    for flags in ([], ["--checkpoint-activations"]):
        torch.manual_seed(1)
        model = build(*LATENT["tlb_lm"], *flags).train()
        with patch("fairseq_recur.modules.layers.checkpoint", recorded):
            model(tokens, starts=STARTS)[0].square().mean().backward()
        losses.append([parameter.grad for parameter in model.parameters()])
    chunks = SEGMENT // model.decoder.bottleneck.block
    # Of each chunk: the layers, what reads the state after them, and what writes it.
    assert len(called) == chunks * (2 * len(model.decoder.layers) + 1)
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("norm, grows", [("rms", False), ("none", True)])
def test_the_state_of_a_long_text(build: Build, norm: str, grows: bool) -> None:
    """Only its norm keeps the state from growing from segment to segment."""
    model = build(*LATENT["tlb_lm"], "--latent-state-norm", norm).train()
    sizes = []
    for number in range(24):
        model(torch.randint(4, 60, (2, SEGMENT)), starts=STARTS + number * SEGMENT)
        sizes.append(float(model.decoder.memory.carried.square().mean().sqrt()))
    assert (sizes[-1] > 1.5 * sizes[7]) == grows
    assert grows or sizes[-1] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("arch, part, method", [
    ("tlb_lm_tiny", LatentBottleneck, "write"),
    ("brt_lm_tiny", BlockRecurrentLayer, "next_state"),
])  # fmt: skip
def test_a_state_that_nothing_reads_may_overflow(
    build: Build, arch: str, part: type, method: str
) -> None:
    """That after the only block of a segment: with gradients, too, it changes no output."""
    model = build(arch).train()
    tokens = text(next(m.block for m in model.modules() if isinstance(m, part)))
    expected, whole = model(tokens)[0], getattr(part, method)
    with patch.object(part, method, lambda *x: whole(*x) * torch.inf):
        found = model(tokens)[0]
    assert torch.equal(found, expected)
    found.square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_memory_of_evaluation_moves_with_the_model(build: Build) -> None:
    model = build(*TRAINED["xl_lm"]).eval()
    model(text(SEGMENT), starts=STARTS)
    held = model.double().decoder.memory.evaluation
    assert held["states"].dtype == torch.float64 and held["starts"].dtype == torch.int64
    assert all(x.is_meta for x in model.to("meta").decoder.memory.evaluation.values())


@pytest.mark.parametrize("has_memory", [True, False])
def test_a_saved_memory_is_left_out_of_a_model_without_one(
    make_model: Build, has_memory: bool
) -> None:
    """As when --finetune-from-model gets a checkpoint from within an epoch."""
    flags = SMALL_XL if has_memory else [*SMALL_XL[:-2], "--decoder-memory", "none"]
    first, second = make_model("xl_lm_tiny", *SMALL_XL), make_model("xl_lm_tiny", *flags)
    in_segments(first.train(), text())
    with first.decoder.memory.saved(None):
        state = first.state_dict()
    assert any(map(is_memory, state))
    second.load_state_dict(state)
    assert (getattr(second.decoder, "memory", None) is not None) == has_memory
    if has_memory:
        assert torch.equal(second.decoder.memory.states, first.decoder.memory.states)


def test_positions_of_a_segment_and_a_memory_are_refused(make_model: Build) -> None:
    with pytest.raises(ConfigError, match="--decoder-memory needs --no-token-positional"):
        make_model("rsa_transformer_lm", "--decoder-memory", "xl")


def test_every_memory_and_every_map_that_reads_one_is_tested() -> None:
    """In `ALL` with its presets' defaults, and in the fast tests; every memory in `TRAINED`.

    The fast tests also have every mixture and form, and every way to embed and to norm.
    """
    maps, mixtures = "decoder_self_attention", "decoder_self_attention_mixture"
    fast = {name: ALL[name] for name in FAST}
    for table, wanted in ((ALL, READERS), (fast, READERS), (TRAINED, set())):
        found = [settings(words) for words in table.values()]
        given = {name: {one.get(name) for one in found} - {None} for name in AXES}
        assert given["decoder_memory"] == set(MEMORIES)
        assert wanted <= {"dot" if name in MIXTURE else name for name in given[maps]}
        if wanted:
            assert given[mixtures] == {"none", *MIXTURE}
            assert {"auto", "chunked"} <= given["rsa_form"] and "0" in given["rsa_max_power"]
        assert given["adaptive_input"] == given["decoder_normalize_before"] == {"False", "True"}
    assert len(FAST) < len(ALL)


READERS = {name for name, part in SELF_ATTENTION.items() if part.reads_memory}


def test_all_presets_with_a_memory_are_listed() -> None:
    with_memory = [n for n, values in LANGUAGE_MODELS.items() if "decoder_memory" in values]
    assert sorted(with_memory) == MEMORY_MODELS and len(MEMORY_MODELS) == 30


def test_every_preset_is_one_of_the_small_models(make_model: Build) -> None:
    """Each builds the modules and the parameters of a model in `TRAINED` and in `ALL`."""

    def built(preset: str) -> tuple[str, dict[str, torch.Size]]:
        model = make_model(preset, *small(preset), *shrunk(preset))
        modules = str(model).removeprefix(type(model).__name__)  # each preset is a class
        return modules, {name: p.size() for name, p in model.named_parameters()}

    tested = [built(arch) for arch, *flags in TRAINED.values() if flags == shrunk(arch)]
    assert [preset for preset in MEMORY_MODELS if built(preset) not in tested] == []
    assert [name for name in TRAINED if ALL.get(name) != TRAINED[name]] == []
