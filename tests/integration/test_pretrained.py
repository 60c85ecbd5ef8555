"""`fairseq_recur.from_pretrained` gives the results of fairseq's commands, and takes raw text."""

import io
import math
import multiprocessing
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from sacremoses import MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_recur import from_pretrained
from fairseq_recur.cli import main
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.pretrained import Hypothesis, Pretrained
from tests.conftest import SEGMENTS, SMALL, TRAIN
from tests.running import USER_DIR, generate, hypotheses, token_scores
from tests.unit.test_language_model import SMALL_LM

Cli = Callable[..., str]
Trained = Callable[..., Path]

SYSTEMS: dict[str, list[str]] = {
    "transformer": [],
    "transformer_biarn_tiny": [],
    "rsa_transformer": [],
    "srformer": SEGMENTS,
}
CORPUS = Path(__file__).parents[2] / "examples" / "quickstart" / "data"
SEARCH: dict[str, Any] = {"beam": 3, "nbest": 2, "lenpen": 0.7, "max_len_b": 12}
LONG = "w1 " * 1500


def flags(search: dict[str, Any]) -> list[Any]:
    """The same options for fairseq's commands."""
    return [word for k, v in search.items() for word in (f"--{k.replace('_', '-')}", v)]


@pytest.fixture(params=[
    pytest.param(s, marks=() if s == "transformer_biarn_tiny" else pytest.mark.slow)
    for s in SYSTEMS
])  # fmt: skip
def folder(request: pytest.FixtureRequest, trained: Trained) -> Path:
    """Of a trained model."""
    return trained(request.param, *SYSTEMS[request.param])


def lines(corpus: Path, name: str) -> list[str]:
    return (corpus / name).read_text(encoding="utf-8").splitlines()


def same(found: Hypothesis, expected: Any) -> None:
    """A hypothesis and an H- line."""
    assert found.text == expected.words
    assert found.score == pytest.approx(expected.score, abs=1e-5)


def test_translations_are_those_of_generate(folder: Path, corpus: Path) -> None:
    """Words, order and scores; of several batches as of one; attention is of real tokens."""
    model = from_pretrained(folder, "checkpoint_last.pt", device="cpu")
    texts = lines(corpus, "test.src")
    found = model.hypotheses(texts, **SEARCH)
    output = generate(corpus / "bin", folder / "checkpoint_last.pt", *flags(SEARCH))
    expected, best_tokens = hypotheses(output), token_scores(output)
    assert len({of_one[0].text for of_one in found}) > 3
    for number, of_one in enumerate(found):
        assert len(of_one) == 2
        for ours, theirs in zip(of_one, expected[number]):
            same(ours, theirs)
        worst = of_one[-1]  # of n-best lines the last one is kept by token_scores
        assert worst.token_scores == pytest.approx(best_tokens[number], abs=6e-5)
        assert worst.tokens == [*worst.text.split(), "</s>"]
        assert worst.source == [*texts[number].split(), "</s>"]
        total = sum(worst.token_scores) / len(worst.tokens) ** 0.7
        assert worst.score == pytest.approx(total, abs=1e-5)
        if worst.attention is not None:
            assert worst.attention.shape == (len(worst.tokens), len(worst.source))
    in_batches = model.translate(texts, beam=3, lenpen=0.7, max_len_b=12, batch_size=3)
    assert in_batches == [of_one[0].text for of_one in found]
    assert model.translate(texts[3], beam=3, lenpen=0.7, max_len_b=12) == found[3][0].text


def test_scores_are_those_of_score_reference(folder: Path, corpus: Path) -> None:
    model = from_pretrained(folder, "checkpoint_last.pt", device="cpu")
    sources, targets = lines(corpus, "test.src"), lines(corpus, "test.tgt")
    found = model.score(sources, targets, batch_size=6)
    output = generate(corpus / "bin", folder / "checkpoint_last.pt", "--score-reference")
    expected, tokens = hypotheses(output), token_scores(output)
    for number, ours in enumerate(found):
        same(ours, expected[number][0])
        assert ours.token_scores == pytest.approx(tokens[number], abs=6e-5)
        assert ours.log_probability == pytest.approx(
            expected[number][0].score * len(ours.tokens) * math.log(2), abs=1e-4
        )
    assert model.score(sources[2], targets[2]).score == pytest.approx(found[2].score, abs=1e-5)
    small = model.score(sources, targets, max_tokens=1)  # a batch holds the longest text
    assert [s.score for s in small] == pytest.approx([s.score for s in found], abs=1e-5)


def test_scores_by_fairseqs_hub(trained: Trained, corpus: Path) -> None:
    """``Model.from_pretrained(...).score``, which in fairseq fails for models with a source."""
    folder = trained("transformer_biarn_tiny")
    kind = ARCH_MODEL_REGISTRY["transformer_biarn_tiny"]
    hub = kind.from_pretrained(str(folder), "checkpoint_last.pt", str(corpus / "bin"))
    sources, targets = lines(corpus, "test.src")[:5], lines(corpus, "test.tgt")[:5]
    expected = from_pretrained(folder, data=corpus / "bin").score(sources, targets)
    for found in (
        hub.score(sources, targets=targets),
        [hub.score(*pair[:1], targets=pair[1]) for pair in zip(sources, targets)],
    ):
        for ours, of_hub in zip(expected, found):
            natural = [score * math.log(2) for score in ours.token_scores]
            assert of_hub["positional_scores"].tolist() == pytest.approx(natural, abs=1e-5)
    assert hub.score([], targets=[]) == []
    for given, wrong in (
        (sources, None), (sources, targets[0]), (sources, targets[:4]), ("ab", targets[:2]),
        (sources[:2], "ab"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="expected a translation for each sentence"):
            hub.score(given, targets=wrong)
    for pair, wrong in ((("w1", LONG), "1 of 1 targets are longer"), ((LONG, "w1"), "1 sources")):
        with pytest.raises(ConfigError, match=wrong):
            hub.score(pair[0], targets=pair[1])


def test_attention_is_that_of_the_top_layer(trained: Trained, corpus: Path) -> None:
    """In a padded batch, of a search and of a score; labelled as in the figures."""
    model = from_pretrained(trained("transformer"), "checkpoint_last.pt", device="cpu")
    texts = lines(corpus, "test.src")
    texts[0] = " ".join(texts[0].split()[:1])  # as long as its target: no shape tells them apart
    targets = ["w1", *lines(corpus, "test.tgt")[1:]]
    searched = [of_one[0] for of_one in model.hypotheses(texts, max_len_b=12)]
    for number in (0, 1, 5):
        for found, target in (
            (searched[number], None),
            (model.score(texts, targets)[number], targets[number]),
        ):
            search = {"max_len_b": 12} if target is None else {}
            maps, labels = model.look(texts[number], target, **search)
            assert (labels.source, labels.target) == (found.source, found.tokens)
            assert labels.read == ["</s>", *found.tokens[:-1]]
            torch.testing.assert_close(found.attention, maps["cross", 1].mean(0))


@pytest.mark.slow
def test_ensembles_and_half_precision(trained: Trained, corpus: Path) -> None:
    folder, texts = trained("transformer_biarn_tiny"), lines(corpus, "test.src")
    files = ["checkpoint5.pt", "checkpoint_last.pt"]
    together = ":".join(str(folder / name) for name in files)
    for names, path, more, precision in (
        (files, together, [], "fp32"),
        # One text per batch: bfloat16 sums depend on the shape of the batch.
        (files[1], folder / files[1], ["--bf16", "--batch-size", 1], "bf16"),
    ):
        model = from_pretrained(folder, names, device="cpu", precision=precision)
        expected = hypotheses(generate(corpus / "bin", path, *flags(SEARCH), *more))
        size = 1 if precision == "bf16" else None
        for number, (best, *_) in enumerate(model.hypotheses(texts, batch_size=size, **SEARCH)):
            same(best, expected[number][0])


@pytest.fixture(scope="module")
def summarizer(tmp_path_factory: pytest.TempPathFactory, cli: Cli, corpus: Path) -> Path:
    """A folder with a T5 that reads a prefix and cuts to 8 tokens, and its dictionaries."""
    folder = tmp_path_factory.mktemp("summaries")
    cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, "--task", "summarization", "--arch",
        "t5_small", *SMALL, *TRAIN, "--max-update", 30, "--lr", 0.02,
        "--source-prefix", "w19 w3", "--truncate-source", "--max-source-positions", 8,
        "--eval-rouge", "--eval-rouge-args", '{"beam": 3, "max_len_b": 6, "min_len": 2}',
        "--save-dir", folder, "--no-epoch-checkpoints",
    )  # fmt: skip
    (folder / "checkpoint_last.pt").unlink()
    for language in ("src", "tgt"):
        name = f"dict.{language}.txt"
        (folder / name).write_bytes((corpus / "bin" / name).read_bytes())
    return folder


@pytest.mark.slow
def test_summaries_are_those_of_interactive(
    summarizer: Path, corpus: Path, cli: Cli, capsys: pytest.CaptureFixture
) -> None:
    """With the prefix and truncation of the training, and the search of its validation."""
    model = from_pretrained(summarizer, device="cpu")
    texts = [*lines(corpus, "test.src"), "w1 " * 40]
    search = {"beam": 3, "max_len_b": 6, "min_len": 2}
    output = cli(
        "interactive", corpus / "bin", "--user-dir", USER_DIR, "--task", "summarization",
        "--path", summarizer / "checkpoint_best.pt", "--cpu", *flags(search),
        stdin="\n".join(texts) + "\n",
    )  # fmt: skip
    expected = hypotheses(output)
    found = model.hypotheses(texts, **search)
    assert model.summarize(texts) == [of_one[0].text for of_one in found]
    for number, (best,) in enumerate(found):
        same(best, expected[number][0])
    assert found[0][0].source[:2] == ["w19", "w3"]
    assert found[-1][0].source == ["w19", "w3", *["w1"] * 5, "</s>"]
    (summarizer / "text").write_text("".join(f"{text}\n" for text in texts))
    capsys.readouterr()
    words = ["summarize", str(summarizer), str(summarizer / "text"), "--cpu"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == model.summarize(texts)
    with open("/dev/full", "w") as full, redirect_stdout(full):
        assert main(words) == 2
    assert "No space left on device: the output; free some" in capsys.readouterr().err
    assert model.summarize("w1\nw2\r\nw3") == model.summarize("w1 w2 w3")
    assert model.summarize(texts[0], beam=1, max_len_b=3, min_len=3).split()[3:] == []


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """A model of Moses' tokens in subwords: (folder)/model, (folder)/bin, (folder)/codes."""
    folder = tmp_path_factory.mktemp("german")
    for language in ("en", "de"):
        tokenize = MosesTokenizer(language).tokenize
        raw = lines(CORPUS, f"valid.{language}")
        tokens = "".join(f"{tokenize(line, return_str=True)}\n" for line in raw)
        (folder / f"tok.{language}").write_text(tokens, encoding="utf-8")
    with open(folder / "codes", "w", encoding="utf-8") as codes:
        learn_bpe(io.StringIO((folder / "tok.de").read_text(encoding="utf-8")), codes, 150)
    with open(folder / "codes", encoding="utf-8") as codes:
        pieces = BPE(codes)
    for language in ("en", "de"):
        tokens = lines(folder, f"tok.{language}")
        encoded = "".join(f"{pieces.process_line(line)}\n" for line in tokens)
        (folder / f"bpe.{language}").write_text(encoded, encoding="utf-8")
    cli(
        "preprocess", "-s", "en", "-t", "de", "--trainpref", folder / "bpe",
        "--validpref", folder / "bpe", "--destdir", folder / "bin",
    )  # fmt: skip
    cli(
        "train", folder / "bin", "--user-dir", USER_DIR, "--arch", "transformer_biarn_tiny",
        *SMALL, *TRAIN, "--max-tokens", 2000, "--lr", 0.02, "--max-update", 20,
        "--disable-validation", "--no-epoch-checkpoints", "--save-dir", folder / "model",
    )  # fmt: skip
    return folder


@pytest.mark.slow
def test_raw_text_in_and_out(german: Path, cli: Cli) -> None:
    """Moses and subwords, found in the data's folder, give the results of interactive."""
    texts = lines(CORPUS, "test.en")[:8]
    search = {"beam": 2, "max_len_b": 30, "min_len": 12}
    output = cli(
        "interactive", german / "bin", "--user-dir", USER_DIR, "-s", "en", "-t", "de", "--cpu",
        "--path", german / "model" / "checkpoint_last.pt", *flags(search), "--tokenizer", "moses",
        "--bpe", "subword_nmt", "--bpe-codes", german / "codes", stdin="\n".join(texts) + "\n",
    )  # fmt: skip
    expected = re.findall(r"^D-(\d+)\t(\S+)\t(.*)$", output, re.M)
    (german / "codes.de").write_bytes((german / "codes").read_bytes())  # of one side alone
    model = from_pretrained(german / "model", tokenizer="moses", device="cpu")
    for (_, score, text), (best,) in zip(expected, model.hypotheses(texts, **search)):
        assert best.text == text
        assert best.score == pytest.approx(float(score), abs=1e-5)
        assert "@@" not in best.text and len(best.tokens) > len(best.text.split())
    target = lines(CORPUS, "test.de")[0]
    scored = model.score(texts[0], target)
    assert scored.text == target and len(scored.tokens) > len(target.split()) + 1
    # Text that is in subwords already goes in and comes out as it is.
    plain = from_pretrained(german / "model", bpe="none", device="cpu")
    (best,) = plain.hypotheses([model.source.pieces(texts[0])], **search)[0]
    assert best.score == pytest.approx(float(expected[0][1]), abs=1e-5)
    assert best.text == " ".join(best.tokens[:-1])
    scored = plain.score(model.source.pieces(texts[0]), model.target.pieces(target))
    assert scored.text == model.target.pieces(target) and "@@ " in scored.text


LANGUAGE_MODEL = [
    *SMALL_LM, *"--task language_modeling --tokens-per-sample 32 --sample-break-mode eos".split(),
    *"--optimizer adam --lr 0.01 --criterion cross_entropy --max-tokens 300 --cpu --seed 1".split(),
    *"--num-workers 0 --max-update 20 --share-decoder-input-output-embed".split(),
]  # fmt: skip


def test_language_model(tmp_path: Path, corpus: Path, cli: Cli) -> None:
    """Its scores are eval-lm's perplexity, its continuations interactive's."""
    sets = [f"--{name}pref={corpus / (name + '.src')}" for name in ("train", "valid", "test")]
    cli("preprocess", "--only-source", *sets, "--destdir", tmp_path / "bin")
    cli(
        "train", tmp_path / "bin", "--user-dir", USER_DIR, "--arch", "rsa_transformer_lm",
        *LANGUAGE_MODEL, "--save-dir", tmp_path / "lm", "--no-epoch-checkpoints",
    )  # fmt: skip
    model = from_pretrained(tmp_path / "lm", device="cpu")
    how = ["--user-dir", USER_DIR, "--path", tmp_path / "lm/checkpoint_best.pt", "--cpu"]
    output = cli(
        "eval_lm", tmp_path / "bin", *how, "--gen-subset", "test", "--sample-break-mode", "eos",
        "--num-workers", 0,
    )  # fmt: skip
    texts = lines(corpus, "test.src")
    scores = [score for found in model.score(texts, batch_size=3) for score in found.token_scores]
    assert len(scores) == sum(len(text.split()) + 1 for text in texts)
    perplexity = float(re.findall(r"Perplexity: ([\d.]+)", output)[-1])
    assert 2 ** (-sum(scores) / len(scores)) == pytest.approx(perplexity, abs=6e-3)
    beginnings = ["w1 w2", "w3", "w4 w5 w6"]
    output = cli(
        "interactive", tmp_path / "bin", *how, "--task", "language_modeling", "--beam", 3,
        "--max-len-b", 9, stdin="\n".join(beginnings) + "\n",
    )  # fmt: skip
    expected = hypotheses(output)
    found = model.hypotheses(beginnings, beam=3, max_len_b=9)
    for number, (best,) in enumerate(found):
        same(best, expected[number][0])
        assert best.text.startswith(beginnings[number])
    assert model.complete(beginnings[0], beam=3, max_len_b=9) == found[0][0].text
    assert len(model.complete("", max_len_b=9).split()) <= 9
    assert model.complete("w1 " * 8, max_len_b=9).startswith("w1 " * 8)
    with pytest.raises(ConfigError, match="truncate=True: a language model continues the end"):
        model.complete("w1", truncate=True)
    for length, limit, said in ((9, 9, "number 1, .* has 9 .*raise max_len_b to more than 9"),
                                (31, 200, "may have 31 .*shorten it, .* 32 pos")):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            model.complete(["w2", "w1 " * length], max_len_b=limit)
    for call, arguments, named in (
        ("translate", ["w1"], "complete"),
        ("summarize", ["w1"], "summarization"),
        ("look", ["w1"], "language model"),
        ("score", [["w1"], ["w2"]], "with targets"),
    ):
        with pytest.raises(ConfigError, match=named):
            getattr(model, call)(*arguments)
    with pytest.raises(ConfigError, match="no source_lang"):
        from_pretrained(tmp_path / "lm", source_lang="en")


@pytest.fixture(scope="module")
def model(trained: Trained) -> Pretrained:
    return from_pretrained(trained("transformer"), "checkpoint_last.pt", device="cpu")


def test_empty_texts_and_no_text(model: Pretrained) -> None:
    found = model.translate(["w1 w2", "", " \t", "w3"], max_len_b=12)
    assert found[1:3] == ["", ""] and found[0] and found[3]
    assert found[0] == model.translate("w1 w2", max_len_b=12)
    assert model.translate("") == "" and model.translate([]) == [] and model.score([], []) == []
    (found,) = model.hypotheses([""])
    assert found == [Hypothesis("", 0.0, [], [])]
    scored = model.score(["", "w1"], ["w2", ""])  # a probability all the same
    assert [each.tokens for each in scored] == [["w2", "</s>"], ["</s>"]]


@pytest.mark.parametrize("from_file", [True, False])
def test_the_command_writes_a_line_for_a_line(
    german: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
    from_file: bool,
) -> None:  # fmt: skip
    """Nothing else goes to standard output, and only a newline ends a line."""
    texts = ["Click the cell.", "", "a\u2028b\r", "word " * 3000, "Delete the row."]
    data = "".join(f"{text}\n" for text in texts).encode() + b"broken \xff byte"
    (tmp_path / "text").write_bytes(data)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    words = ["translate", str(german / "model"), *([str(tmp_path / "text")] * from_file)]
    assert main([*words, "--beam", "2", "--max-len-b", "15", "--cpu", "--tokenizer", "moses"]) == 0
    found = capsys.readouterr().out.split("\n")
    assert len(found) == len(texts) + 2 and found[1] == found[-1] == ""
    model = from_pretrained(german / "model", device="cpu", tokenizer="moses")
    assert found[0] == model.translate(texts[0], beam=2, max_len_b=15)
    assert found[4] == model.translate(texts[4], beam=2, max_len_b=15)


def test_bar(model: Pretrained, corpus: Path, capfd: pytest.CaptureFixture) -> None:
    """For several batches; never in standard output; as one wishes."""
    texts = lines(corpus, "test.src")
    for options, shown in (
        ({}, False),
        ({"batch_size": 7}, True),
        ({"batch_size": 7, "progress": False}, False),
        ({"progress": True}, True),
    ):
        model.translate(texts, max_len_b=4, **options)
        out, error = capfd.readouterr()
        assert ("20/20" in error, out) == (shown, "")


def test_unknown_words_warn(model: Pretrained, caplog: pytest.LogCaptureFixture) -> None:
    model.translate(["w1 w2 w3 Haus"], max_len_b=3)
    assert "not in the dictionary" not in caplog.text
    model.translate(["The house is small ."], max_len_b=3)
    assert "5 of 5 tokens are not in the dictionary" in caplog.text


@pytest.mark.parametrize(
    ("call", "arguments", "options", "message"),
    [
        ("translate", ["w1"], {"beam": 0}, "beam=0"),
        ("translate", ["w1"], {"beem": 3}, "did you mean beam"),
        ("translate", ["w1"], {"min_len": 9, "max_len_b": 8}, "min_len=9 is more than"),
        ("translate", ["w1"], {"sampling_topk": 3}, "sampling=True"),
        ("translate", ["w1"], {"sampling": True, "diversity_rate": 0.5}, "choose one"),
        ("translate", ["w1"], {"diverse_beam_groups": 2}, "beam=5 cannot be split"),
        ("translate", ["w1"], {"batch_size": 0}, "batch_size=0"),
        ("translate", ["w1"], {"max_tokens": "5"}, "max_tokens='5': expected a whole number"),
        ("translate", ["w1"], {"sampling": True, "sampling_topk": 9999}, "dictionary has .* words"),
        ("translate", ["w1"], {"max_tokens": 0}, "max_tokens=0: expected at least 1"),
        ("translate", [["w1", 3]], {}, "number 1 is a int"),
        ("translate", [["w1", LONG]], {}, "1 of 2 texts .* 1024 .* number 1 has 1501 .*truncate"),
        ("summarize", ["w1"], {}, "TranslationTask"),
        ("complete", ["w1"], {}, "expected a language model"),
        ("hypotheses", [["w1"]], {"nbest": 6}, "nbest=6 of beam=5"),
        ("hypotheses", [["w1"]], {"nbest": "2"}, "nbest='2': expected a whole number"),
        ("score", ["w1"], {}, "without targets"),
        ("score", [["w1", "w2"], ["w1"]], {}, "2 sources and 1 targets"),
        ("score", ["w1", ["w1"]], {}, "one text each"),
        ("score", ["w1", LONG], {}, "1 of 1 targets are longer"),
        ("look", [LONG], {}, "longer than the model.s limit of 1024"),
    ],
)
def test_calls_that_cannot_be_done(
    model: Pretrained, call: str, arguments: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        getattr(model, call)(*arguments, **options)


def test_long_text_is_cut_on_demand(model: Pretrained) -> None:
    (found,) = model.hypotheses([LONG], truncate=True, max_len_b=3)[0]
    assert found.source == ["w1"] * 1023 + ["</s>"]
    assert model.score(LONG, "w1", truncate=True).source == found.source


def test_sampling_is_repeatable(model: Pretrained) -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model.translate(["w1 w2 w3 w4"] * 4, sampling=True, beam=1, max_len_b=12))
    assert drawn[0] == drawn[1] != drawn[2]


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, trained: Trained, corpus: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    state = torch.load(trained("transformer") / "checkpoint_last.pt", weights_only=True)
    torch.save({**state, "extra_state": Evil()}, tmp_path / "average.pt")
    with pytest.raises(CheckpointError, match="refused"):
        from_pretrained(tmp_path, data=corpus / "bin")
    assert not (tmp_path / "ran").exists()


def test_dictionary_that_does_not_fit(tmp_path: Path, trained: Trained) -> None:
    for language in ("src", "tgt"):
        (tmp_path / f"dict.{language}.txt").write_text("w1 2\nw2 1\n")
    for arch in ("transformer", "transformer_biarn_tiny"):
        with pytest.raises(CheckpointError, match="dictionaries in .* not those"):
            from_pretrained(trained(arch) / "checkpoint_last.pt", data=tmp_path)


def test_look_beside_translate_in_threads(trained: Trained, corpus: Path) -> None:
    """look records only its own passes."""
    model = from_pretrained(trained("transformer"), "checkpoint_last.pt", device="cpu")
    texts = lines(corpus, "test.src")
    expected, _ = model.look(texts[0])
    translations = model.translate(texts)
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(model.translate, texts, batch_size=2) for _ in range(2)]
        looks = [model.look(texts[0])[0] for _ in range(5)]
        assert all(other.result() == translations for other in others)
    for found in looks:
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[place], expected[place]) for place in expected)


def test_a_child_process_can_translate(trained: Trained, corpus: Path) -> None:
    """Forked after the parent has computed with several threads."""
    model = from_pretrained(trained("transformer"), "checkpoint_last.pt", device="cpu")
    texts, threads = lines(corpus, "test.src"), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.randn(500, 500) @ torch.randn(500, 500)
        expected = model.translate(texts)
        fork = multiprocessing.get_context("fork")
        answers: Any = fork.Queue()
        child = fork.Process(target=lambda: answers.put(model.translate(texts)), daemon=True)
        child.start()
        assert answers.get(timeout=60) == expected
    finally:
        torch.set_num_threads(threads)
