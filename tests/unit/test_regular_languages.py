"""Regular languages: automata against brute force, strings, batches, loss and accuracy."""

import itertools
import random
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from fairseq.logging import metrics

from fairseq_recur.compat import data
from fairseq_recur.criterions.string_accuracy import StringAccuracyCriterion
from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.languages import TARGETS, language
from fairseq_recur.tasks.regular_languages import (
    RegularLanguagesConfig,
    RegularLanguagesTask,
    StringDataset,
)
from fairseq_recur.tasks.strings import (
    SAMPLING,
    draw_letters,
    draw_splits,
    draw_uniform,
    members_by_length,
)
from tests.configuring import model_config

# Each language said once more, without automata.


def nested_pattern(depth: int) -> str:
    """D_n as a regular expression: D_0 is the empty string, D_n = (a D_{n-1} b)*."""
    return f"(a{nested_pattern(depth - 1)}b)*" if depth else ""


def is_tomita_3(string: str) -> bool:
    pairs = re.findall("(1+)(0+)", string)
    return not any(len(ones) % 2 and len(zeros) % 2 for ones, zeros in pairs)


MEMBER: dict[str, Callable[[str], bool]] = {
    "parity": lambda s: re.fullmatch("(0*10*1)*0*", s) is not None,
    "tomita_3": is_tomita_3,
    "tomita_5": lambda s: s.count("0") % 2 == 0 and s.count("1") % 2 == 0,
    "tomita_6": lambda s: abs(s.count("0") - s.count("1")) % 3 == 0,
    "d_1": lambda s: re.fullmatch("(ab)*", s) is not None,
    "d_2": lambda s: re.fullmatch(nested_pattern(2), s) is not None,
    "d_4": lambda s: re.fullmatch(nested_pattern(4), s) is not None,
}
PAPER = ["parity", "tomita_3", "tomita_5", "tomita_6", "d_2", "d_4"]

every_language = pytest.mark.parametrize("name", MEMBER)


def all_strings(letters: str, longest: int) -> Iterator[str]:
    for length in range(longest + 1):
        yield from map("".join, itertools.product(letters, repeat=length))


@every_language
def test_automaton_accepts_exactly_the_members(name: str) -> None:
    automaton = language(name)
    for string in all_strings(automaton.letters, 11):
        assert automaton.accepts(string) == MEMBER[name](string), string


@every_language
def test_counts_of_members(name: str) -> None:
    automaton = language(name)
    counts = members_by_length(automaton, 10)
    found = Counter(len(s) for s in all_strings(automaton.letters, 10) if MEMBER[name](s))
    assert [counts[n][0] for n in range(11)] == [found[n] for n in range(11)]


def target_by_search(kind: str, name: str, letters: str, prefix: str) -> list[int]:
    """The expected target, computed only from the definition of membership."""
    if kind == "member":
        return [int(not MEMBER[name](prefix)), int(MEMBER[name](prefix))]
    ends = [""] if kind == "next_member" else list(all_strings(letters, 5))
    return [int(any(MEMBER[name](prefix + x + end) for end in ends)) for x in letters]


@every_language
@pytest.mark.parametrize("kind", TARGETS)
def test_targets(name: str, kind: str) -> None:
    automaton = language(name)
    for prefix in all_strings(automaton.letters, 6):
        state = (automaton.states(prefix) or [0])[-1]
        wanted = target_by_search(kind, name, automaton.letters, prefix)
        assert list(TARGETS[kind](automaton, state)) == wanted, prefix


def usual_targets(name: str, string: str) -> str:
    automaton = language(name)
    rule = TARGETS[automaton.targets]
    return " ".join("".join(map(str, rule(automaton, s))) for s in automaton.states(string))


def test_targets_of_the_published_data() -> None:
    """D_n: 10 outside, 01 at the deepest, else 11. Tomita 3: an odd run of zeros counts as dead."""
    assert usual_targets("d_2", "aabbab") == "11 01 11 10 11 10"
    assert usual_targets("d_4", "aaaabbbb") == "11 11 11 01 11 11 11 10"
    assert usual_targets("parity", "0110") == "01 10 01 01"
    assert usual_targets("tomita_5", "0011") == "10 01 10 01"
    assert usual_targets("tomita_6", "000110") == "10 10 01 10 10 10"
    assert usual_targets("tomita_3", "100") == "01 10 01"
    assert usual_targets("tomita_3", "1100") == "01 11 11 11"


def test_unknown_language() -> None:
    for name in ("tomita_4", "d_0", "D_2", "d_123", ""):
        with pytest.raises(ConfigError, match="parity, tomita_3.*d_N"):
            language(name)


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_splits(name: str, sampling: str) -> None:
    automaton = language(name)
    splits = draw_splits(automaton, 300, 100, 30, sampling, seed=5)
    assert {part: len(strings) for part, strings in splits.items()} == {
        "train": 300, "bin0": 100, "bin1": 100,
    }  # fmt: skip
    everything = sum(splits.values(), [])
    assert len(set(everything)) == 500, "a string occurs twice"
    assert all(map(MEMBER[name], everything))
    for part, (shortest, longest) in {"train": (2, 30), "bin0": (2, 30), "bin1": (31, 60)}.items():
        lengths = {len(string) for string in splits[part]}
        assert shortest <= min(lengths) and max(lengths) <= longest
        assert len(lengths) > 8
    draw_splits.cache_clear()
    assert draw_splits(automaton, 300, 100, 30, sampling, seed=5) == splits
    assert draw_splits(automaton, 300, 100, 30, sampling, seed=6) != splits


@pytest.mark.parametrize("name", PAPER)
def test_sizes_and_lengths_of_the_paper(name: str) -> None:
    automaton = language(name)
    nested = name.startswith("d_")
    assert automaton.train_size == (5000 if nested else 10000)
    assert automaton.bin_size == (1000 if nested else 2000)
    assert automaton.longest == (100 if nested else 50)


def test_train_and_bin0_are_alike() -> None:
    """Short strings are drawn first and are soon used up: they must not all be in one split."""
    splits = draw_splits(language("parity"), 1000, 1000, 50, seed=1)
    shares = [sum(len(s) < 8 for s in splits[part]) / 1000 for part in ("train", "bin0")]
    assert 0.5 < shares[0] / shares[1] < 2


def test_uniform_sampling_is_uniform() -> None:
    automaton = language("d_2")  # 1, 2 and 4 members of 2, 4 and 6 letters
    draw, rng = draw_uniform(automaton, 2, 7), random.Random(1)
    drawn = Counter(draw(rng) for _ in range(6000))
    assert set(drawn) == {s for s in all_strings("ab", 7) if MEMBER["d_2"](s) and len(s) >= 2}
    for string, count in drawn.items():
        wanted = 2000 / 2 ** (len(string) // 2 - 1)
        assert abs(count - wanted) < 5 * wanted**0.5, string


def test_published_lengths() -> None:
    """Letters with a chance of 1 in (1 + middle) to stop, cut at the longest."""
    draw, rng = draw_letters(language("tomita_6"), 51, 100), random.Random(1)
    strings = [s for s in (draw(rng) for _ in range(9000)) if s]
    # Strings of n < 100 letters have the chance (75/76)^n / 76, those of 100 (75/76)^100, and a
    # third of each is a member.
    share = sum(len(s) == 100 for s in strings) / len(strings)
    assert abs(share - (75 / 76) ** (100 - 51)) < 0.04


def test_too_few_strings() -> None:
    there = sum(2 <= len(s) and MEMBER["d_4"](s) for s in all_strings("ab", 8))
    message = f"only {there} different strings of d_4.*expected 55.*--longest-string"
    with pytest.raises(ConfigError, match=message):
        draw_splits(language("d_4"), 50, 5, 8)
    with pytest.raises(ConfigError, match="has no strings of 2 to 1 letters"):
        draw_splits(language("d_4"), 50, 5, 1)


def make_task(**settings: Any) -> RegularLanguagesTask:
    cfg = RegularLanguagesConfig(language="parity", train_size=40, bin_size=10, longest_string=9)
    cfg.tokens_per_sample = 1024
    for name, value in settings.items():
        setattr(cfg, name, value)
    return RegularLanguagesTask(cfg)


@pytest.mark.parametrize("start", [False, True])
def test_batches(start: bool) -> None:
    task = make_task(add_bos_token=start)
    task.load_dataset("bin0")
    dataset = task.dataset("bin0")
    batch = dataset.collater([dataset[i] for i in (3, 0, 7)])
    letters = task.source_dictionary
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    strings = [task.strings["bin0"][i] for i in (3, 0, 7)]
    assert tokens.shape == (3, max(map(len, strings)) + start)
    assert batch["ntokens"] == sum(map(len, strings)) + 3 * start and batch["nsentences"] == 3
    assert batch["net_input"]["src_lengths"].tolist() == [len(s) + start for s in strings]
    for row, string in enumerate(strings):
        wanted = [letters.bos()] * start + [letters.index(x) for x in string]
        assert tokens[row, : len(wanted)].tolist() == wanted
        assert (tokens[row, len(wanted) :] == letters.pad()).all()
        prefixes = [string[:i] for i in range(1 - start, len(string) + 1)]
        inside = torch.tensor([MEMBER["parity"](prefix) for prefix in prefixes]).float()
        assert torch.equal(target[row, : len(wanted)], torch.stack([1 - inside, inside], dim=1))
        assert (target[row, len(wanted) :] == 0).all()
    assert len(task.target_dictionary) == 2
    assert task.max_positions() == 18 + start


def test_targets_can_be_chosen() -> None:
    task = make_task(language="tomita_3", language_targets="next_legal")
    task.load_dataset("train")
    row = next(i for i, s in enumerate(task.strings["train"]) if s.startswith("1"))
    # After one 1 a 0 makes no member, but the beginning of one.
    assert task.dataset("train").targets[row, 0].tolist() == [1, 1]


def test_training_batches_are_cut_anew() -> None:
    task = make_task()
    task.load_dataset("train")
    train = task.dataset("train")
    orders = []
    for seed in (1, 1, 2):
        numpy.random.seed(seed)
        orders.append(train.ordered_indices().tolist())
    assert orders[0] == orders[1] != orders[2]
    assert not train.can_reuse_epoch_itr_across_epochs
    task.load_dataset("bin1")
    lengths = [task.dataset("bin1").size(i) for i in task.dataset("bin1").ordered_indices()]
    assert lengths == sorted(lengths)
    assert task.dataset("bin1").can_reuse_epoch_itr_across_epochs


def test_epochs_have_other_orders_where_fairseq_seeds_them_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As fairseq 0.12.2 does; its iterator tells the data the epoch."""
    monkeypatch.setattr(data, "epoch_in_seed", lambda: False)
    task = make_task()
    task.load_dataset("train")
    train, orders = task.dataset("train"), []
    for epoch in (1, 1, 2):
        train.set_epoch(epoch)
        numpy.random.seed(1)
        orders.append(train.ordered_indices().tolist())
    assert orders[0] == orders[1] != orders[2] and sorted(orders[2]) == sorted(orders[0])


@pytest.mark.parametrize("arch", ["transformer", "transformer_biarn"])
def test_a_model_with_an_encoder_is_refused(arch: str) -> None:
    with pytest.raises(ConfigError, match=f"--arch {arch} has an encoder"):
        make_task().build_model(Namespace(arch=arch))


def test_task_errors() -> None:
    with pytest.raises(ConfigError, match="(?s)--train-size -1.*--bin-size -2"):
        make_task(train_size=-1, bin_size=-2)
    with pytest.raises(ConfigError, match="--longest-string 1: expected at least 2"):
        make_task(longest_string=1)
    with pytest.raises(ConfigError, match="--max-target-positions 10: bin 1 has .* 18 symbols"):
        make_task(max_target_positions=10)
    with pytest.raises(ConfigError, match="train, bin0, bin1, not 'valid'"):
        make_task().load_dataset("valid")


class Fixed(torch.nn.Module):
    """A model that answers with given logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, src_tokens: torch.Tensor, src_lengths: torch.Tensor) -> Any:
        return self.logits, None


def batch_and_right_logits(task: RegularLanguagesTask) -> Any:
    task.load_dataset("bin0")
    dataset: StringDataset = task.dataset("bin0")
    sample = dataset.collater(list(range(10)))
    return sample, 6 * (sample["target"] * 2 - 1)


def measure(task: RegularLanguagesTask, sample: Any, logits: torch.Tensor) -> dict[str, float]:
    criterion = StringAccuracyCriterion(task)
    _, _, counts = criterion(Fixed(logits), sample)
    metrics.reset()
    with metrics.aggregate() as log:
        criterion.reduce_metrics([counts])
    return log.get_smoothed_values()


def test_one_wrong_position_makes_a_string_wrong() -> None:
    task = make_task()
    sample, logits = batch_and_right_logits(task)
    perfect = measure(task, sample, logits)
    assert perfect["accuracy"] == 1 and perfect["position_accuracy"] == 1
    for output in (0, 1):
        wrong = logits.clone()
        wrong[4, 1, output] *= -1
        result = measure(task, sample, wrong)
        assert result["accuracy"] == 0.9
        positions = sample["ntokens"]
        assert result["position_accuracy"] == pytest.approx((positions - 1) / positions, abs=1e-5)
    wrong[4] *= -1  # further errors in the same string do not matter
    assert measure(task, sample, wrong)["accuracy"] == 0.9


def test_padding_does_not_count() -> None:
    task = make_task()
    sample, logits = batch_and_right_logits(task)
    padding = sample["net_input"]["src_tokens"] == task.source_dictionary.pad()
    assert padding.any() and not padding.all()
    other = logits.clone()
    other[padding] = torch.randn(int(padding.sum()), 2) * 100
    assert measure(task, sample, other) == measure(task, sample, logits)
    model = Fixed(other)
    StringAccuracyCriterion(task)(model, sample)[0].backward()
    assert (model.logits.grad[padding] == 0).all() and (model.logits.grad[~padding] != 0).all()


def test_loss_is_the_mean_squared_error_of_the_sigmoids() -> None:
    task = make_task()
    sample, _ = batch_and_right_logits(task)
    logits = torch.randn_like(sample["target"])
    total = 0.0
    for row, length in enumerate(sample["net_input"]["src_lengths"].tolist()):
        for position in range(length):
            for output in range(2):
                guess = 1 / (1 + numpy.exp(-logits[row, position, output].item()))
                total += (guess - sample["target"][row, position, output].item()) ** 2 / 2
    loss, size, _ = StringAccuracyCriterion(task)(Fixed(logits), sample)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    assert size == sample["ntokens"]
    assert measure(task, sample, logits)["loss"] == pytest.approx(total / size, abs=1e-5)


def test_two_batches_weigh_by_their_strings() -> None:
    task = make_task()
    sample, logits = batch_and_right_logits(task)
    dataset = task.dataset("bin0")
    criterion = StringAccuracyCriterion(task)
    small = dataset.collater([0])
    counts = [
        criterion(Fixed(logits), sample)[2],
        criterion(Fixed(-6 * (small["target"] * 2 - 1)), small)[2],
    ]
    metrics.reset()
    with metrics.aggregate() as log:
        criterion.reduce_metrics(counts)
    assert log.get_smoothed_values()["accuracy"] == pytest.approx(10 / 11, abs=1e-4)


def test_sigmoids_of_half_precision_logits_are_float32() -> None:
    task = make_task()
    sample, _ = batch_and_right_logits(task)
    half = torch.randn_like(sample["target"]).half()
    low, full = (StringAccuracyCriterion(task)(Fixed(x), sample)[0] for x in (half, half.float()))
    assert low.dtype == torch.float32 and low == full


def test_letters_and_outputs_cannot_share_a_matrix() -> None:
    flags = "--decoder-layers 1 --decoder-embed-dim 16 --decoder-attention-heads 2".split()
    tied = [*flags, "--share-decoder-input-output-embed"]
    task = make_task()
    assert task.build_model(model_config("regular_languages", "rsa_transformer_lm", flags, []))
    with pytest.raises(ConfigError, match="embed: .* 6 input symbols and 2 outputs.*leave it out"):
        task.build_model(model_config("regular_languages", "rsa_transformer_lm", tied, []))


def test_a_preset_that_shares_the_matrix_does_not_do_so_here() -> None:
    flags = "--decoder-layers 1 --decoder-embed-dim 16 --decoder-attention-heads 2".split()
    widths = ["--decoder-input-dim", "16", "--decoder-output-dim", "16"]
    cfg = model_config("regular_languages", "xl_lm_tiny", [*flags, *widths], [])
    assert cfg.share_decoder_input_output_embed
    decoder = make_task().build_model(cfg).decoder
    assert not decoder.share_input_output_embed and decoder.output_projection.out_features == 2
