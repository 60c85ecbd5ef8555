"""Probing: sentence representations, and the classifiers trained on them."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fairseq_recur.cli import probe_run
from fairseq_recur.cli.probe_run import add_arguments, run, subwords
from fairseq_recur.errors import ConfigError
from fairseq_recur.probing.classifier import COMBINATIONS, BagOfWords, Classifier, Gate
from fairseq_recur.probing.protocol import Outcome, Protocol, accuracy, fit, probe
from fairseq_recur.probing.report import (
    BAG_OF_WORDS,
    ProbeSettings,
    Row,
    probe_model,
    reference_rows,
    split_inputs,
    word_numbers,
)
from fairseq_recur.probing.representations import SentenceEncoder
from fairseq_recur.probing.tasks import TASKS, Examples, TaskData
from fairseq_recur.text import Codec
from tests.conftest import SMALL

Build = Callable[..., nn.Module]
QUICK = Protocol(l2=(1e-5,), batch_size=16, epochs_per_check=2, max_epochs=20, learning_rate=0.02)

# Representations ----------------------------------------------------------------------

MODELS: dict[str, list[str]] = {
    "transformer": ["transformer"],
    "biarn": ["transformer_biarn"],
    "birnn": ["transformer_biarn", "--recurrence", "birnn", "--recurrence-layers", "2"],
    "pre-norm-biarn": ["transformer_biarn", "--encoder-normalize-before", "--recurrence-positions"],
    "multicolumn": ["transformer_rnn_multicolumn"],
}
WITHOUT_R = ("transformer", "multicolumn")
SENTENCES = ["w1", "w5 w6 w7 w8 w9 w10 w11", "w2 w3", "w9 w9 w9 w4", "w20 unheard w22"]


@pytest.fixture
def encoder_of(make_model: Build, dictionary: Dictionary) -> Callable[..., SentenceEncoder]:
    """Build the encoder of a random model: ``encoder_of("biarn")``."""
    task = TranslationTask(TranslationConfig(), dictionary, dictionary)

    def make(name: str, max_tokens: int = 20) -> SentenceEncoder:
        model = make_model(*MODELS[name], *SMALL, "--dropout", "0.5").train()
        device = torch.device("cpu")
        return SentenceEncoder(model, task, Codec(), device, max_tokens)

    return make


def single(encoder: SentenceEncoder, sentence: str) -> list[Tensor]:
    """The representations of one sentence, computed without a batch, token by token."""
    words = [encoder.task.source_dictionary.index(word) for word in sentence.split()]
    tokens = torch.tensor([[*words, encoder.task.source_dictionary.eos()]])
    out = encoder.encoder(tokens, torch.tensor([tokens.size(1)]))
    kinds = ["encoder_out", "recurrence_out"]
    return [sum(state[0] for state in out[k][0]) / len(out[k][0]) for k in kinds if k in out]


@pytest.mark.parametrize("name", MODELS)
def test_representations_do_not_depend_on_the_batch(
    encoder_of: Callable[..., SentenceEncoder], name: str
) -> None:
    encoder, count = encoder_of(name), 1 + (name not in WITHOUT_R)
    assert encoder.has_recurrence == (count == 2)
    assert [x.dtype for x in encoder.represent(SENTENCES)] == [torch.float32] * count
    encoder.encoder.double()  # in which rounding does not hide a small mistake
    expected = [torch.stack(r) for r in zip(*(single(encoder, s) for s in SENTENCES))]
    assert [x.shape for x in expected] == [(5, 16), (5, 32)][:count]
    tokens = [encoder.tokens(s) for s in SENTENCES]
    pad = encoder.task.source_dictionary.pad()
    right = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=pad)
    left = nn.utils.rnn.pad_sequence(tokens, True, pad, padding_side="left")
    for batch in (encoder.represent(SENTENCES), encoder.means(right), encoder.means(left)):
        assert len(batch) == count
        for means, of_single in zip(batch, expected):
            torch.testing.assert_close(means, of_single, rtol=1e-5, atol=1e-6)


def test_sentences_are_checked(encoder_of: Callable[..., SentenceEncoder]) -> None:
    encoder = encoder_of("biarn")
    assert encoder.check(SENTENCES) == pytest.approx(1 / (17 + 5)), "words and sentence ends"
    encoder.max_positions = 8
    encoder.check(SENTENCES)
    encoder.task.prefix = ["w1"]  # of summarization, before every source
    with pytest.raises(ConfigError, match="8 subwords, .* at most 7; .*: w5 w6"):
        encoder.check(SENTENCES)


def task_data(sentences: list[str], labels: list[int]) -> TaskData:
    """A task with three equal splits."""
    split = Examples(sentences, labels)
    names = [str(i) for i in range(max(labels) + 1)]
    return TaskData(TASKS["Length"], names, dict.fromkeys(("train", "valid", "test"), split))


def test_inputs_and_labels_are_split_together() -> None:
    names = {"train": [1, 0, 1], "valid": [0], "test": [1, 1]}
    splits = {name: Examples(["x"] * len(labels), labels) for name, labels in names.items()}
    cut = split_inputs((torch.arange(6),), TaskData(TASKS["Length"], ["a", "b"], splits))
    rows = {name: split.tensors[0].tolist() for name, split in cut.items()}
    assert rows == {"train": [0, 1, 2], "valid": [3], "test": [4, 5]}
    assert {name: split.tensors[1].tolist() for name, split in cut.items()} == names


def test_encoders_stay_frozen_and_seeds_repeat(
    encoder_of: Callable[..., SentenceEncoder],
) -> None:
    encoder = encoder_of("biarn")
    before = {k: v.clone() for k, v in encoder.encoder.state_dict().items()}
    data = task_data(SENTENCES * 4, [i % 2 for i in range(20)])
    settings = ProbeSettings("gate", 4, QUICK._replace(dropout=(0.0, 0.5)), (1, 2))
    torch.manual_seed(11)
    first = probe_model("m", encoder, data, settings)
    torch.manual_seed(12)
    assert probe_model("m", encoder, data, settings) == first, "whatever the caller's seed"
    assert [o.seed for o in first.outcomes] == [1, 2] and first.combine == "gate"
    after = encoder.encoder.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert all(p.grad is None and not p.requires_grad for p in encoder.encoder.parameters())


@pytest.fixture
def codes(tmp_path: Path) -> str:
    (tmp_path / "codes").write_text("#version: 0.2\nt h\nth e</w>\n")
    return str(tmp_path / "codes")


def bpe_options(bpe: str | None, sentencepiece: str | None, codes: str | None) -> Namespace:
    return Namespace(bpe=bpe, sentencepiece_model=sentencepiece, bpe_codes=codes)


def test_subwords(codes: str) -> None:
    assert subwords(bpe_options(None, None, None)).pieces("the cat") == "the cat"
    made = subwords(bpe_options("subword_nmt", None, codes))
    assert made.pieces("the cat") == "the c@@ a@@ t"


@pytest.mark.parametrize(
    "bpe, sentencepiece, bpe_codes, message",
    [
        ("subword_nmt", None, None, "needs --bpe-codes"),
        ("sentencepiece", None, None, "needs --sentencepiece-model"),
        (None, None, "codes", "--bpe-codes belongs to --bpe subword_nmt, but --bpe is .none."),
        ("subword_nmt", "codes", "codes", "--sentencepiece-model belongs to --bpe sentencepiece"),
        ("subword_nmt", None, "no", "no: no such file"),
        ("sentencepiece", "codes", None, "probe run: bpe=.sentencepiece.* cannot be built"),
    ],
)
def test_subword_files_are_checked(
    codes: str, bpe: str, sentencepiece: str, bpe_codes: str, message: str, monkeypatch
) -> None:
    monkeypatch.chdir(Path(codes).parent)
    with pytest.raises(ConfigError, match=message):
        subwords(bpe_options(bpe, sentencepiece, bpe_codes))


# Classifiers --------------------------------------------------------------------------


HUGE = str(10**25)
WRONG: dict[str, str] = {
    f"--seed {HUGE}": "expected 0 to 9223372036854775807",
    "--seed -1": "expected 0 to",
    "--runs 1001": "expected 1 to 1000",
    f"--batch-size {HUGE}": "expected 1 to 2147483647",
    f"--max-tokens {HUGE}": "expected 1 to 2147483647",
    "--hidden 65537": "expected 0 to 65536",
    "--l2 inf": "expected 0 to 2147483647",
    "--l2 nan": "expected 0 to",
    "--learning-rate inf": "expected 1e-12 to 2147483647",
    "--hidden 0 --dropout 0 0.5": "--dropout has no effect with --hidden 0; leave out one",
}


@pytest.mark.parametrize("given", WRONG)
def test_numbers_out_of_range_are_refused(given: str) -> None:
    """Before anything is read."""
    parser = ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["none", "--path", "a=b", *given.split()])
    with pytest.raises(ConfigError) as error:
        run(args)
    assert WRONG[given] in str(error.value) and given[:9] in str(error.value)


@pytest.mark.parametrize("earlier", [False, True])
def test_an_interrupted_run_leaves_the_files_of_an_earlier_one(
    earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run saves what it has after each task."""
    tasks, last = [TASKS["Length"], TASKS["WordContent"]], []

    def probe_model(name: str, encoder: Any, data: TaskData, settings: ProbeSettings) -> Row:
        if data.task in last:
            raise KeyboardInterrupt
        return Row(name, "gate", data.task.name, [50.0], [])

    encoder = Namespace(has_recurrence=True, check=lambda sentences: 0.0)
    for name, function in {
        "choose_tasks": lambda folder, names: tasks,
        "read_task": lambda folder, task: task_data(["a", "b"], [0, 1])._replace(task=task),
        "load_encoder": lambda *of_model: encoder,
        "reference_rows": lambda *of_task: [],
        "probe_model": probe_model,
    }.items():
        monkeypatch.setattr(probe_run, name, function)
    parser = ArgumentParser()
    add_arguments(parser)
    files = [tmp_path / "out.json", tmp_path / "out.md"]
    model = Path(__file__).resolve().parents[1] / "frozen" / "srformer.pt"
    given = ["none", "--path", f"a={model}", "--json", str(files[0]), "--markdown", str(files[1])]
    if earlier:
        assert run(parser.parse_args(given)) == 0
        complete = [file.read_text() for file in files]
    last.append(tasks[1])
    with pytest.raises(KeyboardInterrupt):
        run(parser.parse_args(given))
    if earlier:
        assert [file.read_text() for file in files] == complete
    assert files[0].read_text().count('"mean"') == (2 if earlier else 1)


def test_a_model_has_no_name_of_a_reference() -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    path = Path(__file__).resolve().parents[1] / "frozen" / "srformer.pt"
    args = parser.parse_args(["none", "--path", f"{BAG_OF_WORDS}={path}", f"b={path}"])
    with pytest.raises(ConfigError, match="bag of words=...: the table has a row of this name"):
        run(args)


def test_gate_follows_the_paper() -> None:
    gate = Gate(3, 6).double()
    e, r = (torch.randn(4, n, dtype=torch.float64, requires_grad=True) for n in (3, 6))
    g = torch.sigmoid(torch.cat([e, r], 1) @ gate.gate.weight.T + gate.gate.bias)
    torch.testing.assert_close(gate(e, r), g * e + (1 - g) * (r @ gate.project.weight.T))
    assert torch.autograd.gradcheck(gate, (e, r))
    gate(e, r).pow(2).sum().backward()
    assert all(p.grad.abs().max() > 0 for p in gate.parameters())
    same = Gate(3, 3).double()
    nn.init.zeros_(same.gate.weight), nn.init.zeros_(same.gate.bias)
    torch.testing.assert_close(same(e, r[:, :3]), (e + r[:, :3]) / 2)


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_combinations_and_head(combine: str) -> None:
    """Each combination reads its inputs; SentEval's head has a sigmoid layer, or none."""
    model = Classifier(combine, (4, 8), classes=3, hidden=5, dropout=0.5).eval()
    e, r = torch.randn(2, 4, requires_grad=True), torch.randn(2, 8, requires_grad=True)
    combined = {"gate": model.combine(e, r), "concat": torch.cat([e, r], 1),
                "transformer": e, "recurrence": r}[combine]  # fmt: skip
    first, last = model.head[0], model.head[-1]
    expected = last(torch.sigmoid(first(combined)))
    torch.testing.assert_close(model(e, r), expected)
    model(e, r).sum().backward()
    assert (e.grad is not None) == (combine != "recurrence")
    assert (r.grad is not None) == (combine != "transformer")
    flat = Classifier(combine, (4, 8), classes=3, hidden=0, dropout=0.5)
    assert [type(layer) for layer in flat.head] == [nn.Linear]


def two_inputs(count: int, informative: bool) -> TensorDataset:
    """e is noise; the label is the sign of the first value of r, or random."""
    e, r = torch.randn(count, 4), torch.randn(count, 8)
    r[:, 0] += 2.0 * r[:, 0].sign()
    labels = r[:, 0].gt(0).long() if informative else torch.randint(2, (count,))
    return TensorDataset(e, r, labels)


@pytest.mark.slow
@pytest.mark.parametrize("informative", [True, False])
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_classifiers_learn_only_what_the_inputs_tell(combine: str, informative: bool) -> None:
    splits = {name: two_inputs(400, informative) for name in ("train", "valid", "test")}
    outcome = probe(lambda rate: Classifier(combine, (4, 8), 2, 8, rate), splits, QUICK, seed=1)
    if informative and combine != "transformer":
        assert outcome.test > 0.99
    else:  # five standard deviations of 400 fair coins
        assert abs(outcome.test - 0.5) < 0.125


def test_training_stops_and_keeps_the_best() -> None:
    train, valid = two_inputs(64, False), two_inputs(64, False)
    protocol = QUICK._replace(patience=3, max_epochs=1000, epochs_per_check=2)
    constant = Classifier("transformer", (4, 8), 2, 0, 0.0)
    _, epochs = fit(constant, train, valid, protocol._replace(learning_rate=1e-12), 0.0)
    assert epochs == 2 * (1 + 3 + 1), "the first check is the best, three may fail, the next stops"
    model = Classifier("concat", (4, 8), 2, 8, 0.0)
    best, _ = fit(model, train, valid, protocol, 0.0)
    assert accuracy(model, valid) == best
    _, epochs = fit(model, train, valid, protocol._replace(max_epochs=5), 0.0)
    assert epochs == 5


def test_failures_are_counted_over_the_whole_training(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = iter([0.1, 0.0, 0.2, 0.0, 0.3, 0.0, 0.4, 0.0])
    monkeypatch.setattr("fairseq_recur.probing.protocol.accuracy", lambda *_: next(reached))
    data, protocol = two_inputs(16, False), QUICK._replace(patience=2, epochs_per_check=1)
    model = Classifier("concat", (4, 8), 2, 0, 0.0)
    assert fit(model, data, data, protocol, 0.0) == (0.3, 6), "a better check forgives no failure"


class Constant(nn.Module):
    """Predicts the same label for every sentence."""

    label = 0

    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.full((len(e),), self.label), 3).float()


def test_selection_uses_the_validation_split_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The selected l2 and dropout are best on the validation split, not on the test split."""
    valid = {(0.0, 0.1): 0.4, (0.0, 0.2): 0.6, (0.5, 0.1): 0.7, (0.5, 0.2): 0.7}
    dropouts = []

    def build(dropout: float) -> nn.Module:
        dropouts.append(dropout)
        return Constant()

    def fake_fit(model: Constant, train: TensorDataset, *rest: object) -> tuple[float, int]:
        model.label = len(dropouts) - 1
        return valid[dropouts[-1], rest[-1]], 4

    monkeypatch.setattr("fairseq_recur.probing.protocol.fit", fake_fit)
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    split = TensorDataset(torch.randn(10, 4), torch.randn(10, 8), labels)
    chosen = probe(
        build, dict.fromkeys(("train", "valid", "test"), split),
        QUICK._replace(l2=(0.1, 0.2), dropout=(0.0, 0.5)), seed=7,
    )  # fmt: skip
    assert chosen == Outcome(seed=7, valid=0.7, test=0.2, l2=0.1, dropout=0.5, epochs=4)


def test_each_candidate_starts_from_the_seed() -> None:
    splits = {name: two_inputs(50, False) for name in ("train", "valid", "test")}

    def outcome(l2: tuple[float, ...], seed: int) -> Outcome:
        protocol = QUICK._replace(l2=l2, max_epochs=3)
        return probe(lambda d: Classifier("gate", (4, 8), 2, 8, d), splits, protocol, seed)

    assert outcome((1e-3, 1e-3), 1) == outcome((1e-3,), 1)
    assert len({(o.valid, o.test) for o in (outcome((1e-3,), s) for s in range(5))}) > 1


# References ---------------------------------------------------------------------------


def test_bag_of_words_counts_words() -> None:
    data = task_data(["b a b", "a", "c"], [0, 1, 1])
    data.splits["test"] = Examples(["d b"], [0])
    words, size = word_numbers(data)
    assert size == 5  # padding, unknown, a, b, c
    assert words.tolist()[:3] == [[3, 2, 3], [2, 0, 0], [4, 0, 0]]
    assert words.tolist()[-1] == [1, 3, 0]
    model = BagOfWords(size, 2)
    nn.init.normal_(model.weight.weight)
    nn.init.normal_(model.bias)
    w = model.weight.weight
    torch.testing.assert_close(model(words)[0], w[2] + 2 * w[3] + model.bias)
    torch.testing.assert_close(model(words)[1], w[2] + model.bias)


def test_references() -> None:
    data = task_data(["x a", "x b", "x c", "y a", "y b"] * 8, [0, 0, 0, 1, 1] * 8)
    majority, bag = reference_rows(
        data, ProbeSettings("gate", 4, QUICK, (1, 2)), torch.device("cpu")
    )
    assert majority.accuracies == [60.0] and majority.spread is None
    assert bag.accuracies == [100.0, 100.0] and (bag.mean, bag.spread) == (100.0, 0.0)
