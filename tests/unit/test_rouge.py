"""ROUGE: the figures of rouge-score itself, one sentence per line, and fairseq's scorer."""

import csv
import json
import socket
from pathlib import Path

import numpy
import pytest
from fairseq.scoring import build_scorer
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.scoring import BootstrapAggregator

from fairseq_recur import cli
from fairseq_recur.errors import ConfigError
from fairseq_recur.scorers.rouge import RougeScorerConfig
from fairseq_recur.scoring.metrics import build_metric, score_corpus
from fairseq_recur.scoring.rouge import VARIANTS, Rouge, hide_unknown
from fairseq_recur.scoring.sentences import one_sentence_per_line, split_sentences

# One sentence per line, as rouge-score expects.
REFERENCES = [
    "Police arrested three men on Friday.\nThey were charged with burglary.",
    "The U.S. economy grew 3.5 percent.\nMr. Smith of Acme was pleased.\nAnalysts expected less.",
    "one sentence without a point",
    "Nothing in common.",
    "",
]
HYPOTHESES = [
    "They were charging burglars on Friday.\nThree men were arrested by police.",
    "Analysts were expecting less than 3.5 percent.\nThe economy of the U.S. grew.",
    "a sentence without any points",
    "zzz yyy",
    "something",
]


def official(use_stemmer: bool = True) -> list[dict[str, float]]:
    """The F-measures of each pair, by rouge-score."""
    scorer = RougeScorer(list(VARIANTS), use_stemmer=use_stemmer)
    return [
        {name: score.fmeasure for name, score in scorer.score(r, h).items()}
        for r, h in zip(REFERENCES, HYPOTHESES)
    ]


@pytest.mark.parametrize("stemmer", [True, False])
@pytest.mark.parametrize("separator", ["\n", "<q>", " <q> ", "\t"])
def test_pairs_score_as_in_rouge_score(stemmer: bool, separator: str) -> None:
    rouge = Rouge(stemmer=stemmer, separator=separator.strip(" ").replace("\t", "\\t"))
    found = [
        rouge.score([r.replace("\n", separator)], h.replace("\n", separator))
        for r, h in zip(REFERENCES, HYPOTHESES)
    ]
    assert found == official(stemmer)
    assert 0 < found[0]["rougeL"] < found[0]["rougeLsum"] < 1, "the variants must differ"
    assert official(True) != official(False)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_corpus_scores_as_in_rouge_score(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its aggregator's middle is the mean once each of its samples is the corpus itself."""
    aggregator = BootstrapAggregator(n_samples=3)
    scorer = RougeScorer([name], use_stemmer=True)
    for reference, hypothesis in zip(REFERENCES, HYPOTHESES):
        aggregator.add_scores(scorer.score(reference, hypothesis))
    monkeypatch.setattr(numpy.random, "choice", lambda indices, size: indices)
    middle = aggregator.aggregate()[name].mid.fmeasure
    (score,) = score_corpus(HYPOTHESES, [REFERENCES], [build_metric(name)])
    assert score.name == name
    assert score.value == pytest.approx(100 * middle, abs=1e-12)


def test_the_command_of_rouge_score_prints_the_same(tmp_path: Path) -> None:
    for name, texts in (("references", REFERENCES), ("hypotheses", HYPOTHESES)):
        (tmp_path / name).write_text("".join(text + "|" for text in texts))
    from rouge_score import rouge as command

    command.FLAGS([
        "rouge", "--use_stemmer", "--noaggregate", "--delimiter=|",
        f"--rouge_types={','.join(VARIANTS)}", f"--target_filepattern={tmp_path}/references",
        f"--prediction_filepattern={tmp_path}/hypotheses",
        f"--output_filename={tmp_path}/scores.csv",
    ])  # fmt: skip
    command.main([])
    with open(tmp_path / "scores.csv") as stream:
        rows = list(csv.DictReader(stream))
    printed = [{name: float(row[f"{name}-F"]) for name in VARIANTS} for row in rows]
    rouge = Rouge()
    found = [rouge.score([r], h) for r, h in zip(REFERENCES, HYPOTHESES)]
    assert len(printed) == len(found)
    for one, other in zip(found, printed):
        assert one == pytest.approx(other, abs=1e-6)  # the file has six decimals


def test_of_several_references_the_best_counts() -> None:
    rouge = Rouge()
    pair = [REFERENCES[0], REFERENCES[1]]
    alone = [rouge.score([r], HYPOTHESES[1]) for r in pair]
    assert rouge.score(pair, HYPOTHESES[1]) == {
        name: max(scores[name] for scores in alone) for name in VARIANTS
    }
    metric = build_metric("rouge1")
    (score,) = score_corpus(HYPOTHESES[1:2], [pair[:1], pair[1:]], [metric])
    assert score.value == pytest.approx(100 * max(scores["rouge1"] for scores in alone))
    assert "nrefs:2" in score.signature


def test_unknown_variants_are_refused() -> None:
    with pytest.raises(ConfigError, match="found rouge3, expected some of rouge1, rouge2"):
        Rouge(["rouge1", "rouge3"])
    with pytest.raises(ConfigError, match="found nothing"):
        Rouge([])


SENTENCES = {
    "Mr. Smith met Dr. Jones at 5 p.m. on Friday. He left.": [
        "Mr. Smith met Dr. Jones at 5 p.m. on Friday.",
        "He left.",
    ],
    "The U.S. economy grew 3.5 percent. It cost $1.5 million.": [
        "The U.S. economy grew 3.5 percent.",
        "It cost $1.5 million.",
    ],
    '"I am here," she said. "Where are you?" He left.': [
        '"I am here," she said.',
        '"Where are you?"',
        "He left.",
    ],
    'He said: "We won. It was hard." Then he left': [
        'He said: "We won. It was hard."',
        "Then he left",
    ],
    "england won 3 - 2 . rooney scored twice .": ["england won 3 - 2 .", "rooney scored twice ."],
    "What a day! Was it? Yes...": ["What a day!", "Was it?", "Yes..."],
    "no point at the end": ["no point at the end"],
    "": [],
    " \t ": [],
}


@pytest.mark.parametrize("text", SENTENCES)
def test_sentences_end_where_they_do(text: str) -> None:
    assert split_sentences(text) == tuple(SENTENCES[text])
    assert one_sentence_per_line(text).split("\n") == (SENTENCES[text] or [""])


# With quotes, brackets, marks that pySBD uses itself, and what begins a list.
PIECES = st.sampled_from(
    ["The", "U.S.", "a", "b.", "c!", "?", '"', "'", "(", ")", "...", "1.", "2)", "∯", "ȸ", "&ᓰ&",
     "don't", "Mr.", "«", "»", "x.y", "\u00e9", ";", ":", "<unk>", "i.e."]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=12))
def test_splitting_loses_nothing(words: list[str]) -> None:
    assert " ".join(split_sentences(" ".join(words))).split() == " ".join(words).split()


def test_a_text_that_the_splitter_would_alter_stays_whole() -> None:
    text = "One ∯ two. Three."
    assert split_sentences(text) == (text,)


def test_given_boundaries_are_the_only_ones() -> None:
    assert one_sentence_per_line("A b. C d <q> e f. ") == "A b. C d\ne f."
    assert one_sentence_per_line("A b. C d\n\n e f. ") == "A b. C d\ne f."
    assert one_sentence_per_line("A b.\tC d. E", separator="\\t") == "A b.\nC d. E"
    assert one_sentence_per_line("A b. C d. <q> E", separator="") == "A b.\nC d.\n<q> E"
    assert one_sentence_per_line("A b. C d.\n") == "A b.\nC d.", (
        "the end of the line is no boundary"
    )


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert Rouge().score(["Dr. A. is in. B is out."], "Dr. A. is in. B is out.")["rougeLsum"] == 1


def test_unknown_words_match_nothing() -> None:
    pair = hide_unknown("<<unk>> <<unk>>", "<unk> <unk>")
    assert Rouge().score(["unk"], "unk")["rouge1"] == 1
    assert set(Rouge().score(pair[:1], pair[1]).values()) == {0.0}


def scorer_of(**options: object) -> object:
    """The scorer, made from the configuration as fairseq-generate has it."""
    config = OmegaConf.to_container(OmegaConf.structured(RougeScorerConfig(**options)))
    whole = OmegaConf.create({"scoring": {**config, "_name": "rouge"}})
    return build_scorer(whole.scoring, None)


def test_fairseqs_scorer_averages_the_pairs() -> None:
    scorer = scorer_of(rouge_variant="rouge2")
    for reference, hypothesis in zip(REFERENCES, HYPOTHESES):
        scorer.add_string(reference.replace("\n", "<q>"), hypothesis.replace("\n", "<q>"))
    expected = {n: 100 * sum(s[n] for s in official()) / len(REFERENCES) for n in VARIANTS}
    assert scorer.figures() == pytest.approx(expected, abs=1e-12)
    assert scorer.score() == pytest.approx(expected["rouge2"], abs=1e-12)
    line = scorer.result_string()
    assert line.startswith(f"rouge2 = {expected['rouge2']:.2f} rouge1 = {expected['rouge1']:.2f} ")
    assert "stemmer:porter|" in line and "rouge-score:" in line and "pysbd-" in line


def test_fairseqs_scorer_takes_its_options() -> None:
    plain = scorer_of(rouge_no_stemmer=True, rouge_separator="##")
    plain.add_string("Three men walked.##A dog.", "A dog.##Three men walk.")
    expected = RougeScorer(["rougeLsum"], use_stemmer=False).score(
        "Three men walked.\nA dog.", "A dog.\nThree men walk."
    )
    assert plain.score() == pytest.approx(100 * expected["rougeLsum"].fmeasure, abs=1e-12)
    assert plain.score() < 100
    assert "stemmer:no|sentences:newline or '##'" in plain.result_string()
    unknown = scorer_of()
    unknown.add_string("<<unk>>", "<unk>")
    assert unknown.score() == 0
    with pytest.raises(ConfigError, match="no summary was generated"):
        scorer_of().score()


def test_the_command_line_scores_rouge_beside_bleu(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for name, texts in (("references", REFERENCES), ("system", HYPOTHESES)):
        (tmp_path / name).write_text("".join(t.replace("\n", "##") + "\n" for t in texts))
    status = cli.main(
        ["score", "--reference", str(tmp_path / "references"), "--separator", "##",
         "--system", f"a={tmp_path / 'system'}", "--metrics", "bleu", *VARIANTS,
         "--json", str(tmp_path / "scores.json")]
    )  # fmt: skip
    assert status == 0
    printed = capsys.readouterr().out
    assert "BLEU  rouge1  rouge2  rougeL  rougeLsum" in printed
    scores = json.loads((tmp_path / "scores.json").read_text())["systems"]["a"]["scores"]
    found = {s["metric"]: s["score"] for s in scores}
    for name in VARIANTS:
        expected = 100 * sum(s[name] for s in official()) / len(REFERENCES)
        assert found[name] == pytest.approx(expected, abs=1e-12)
        assert f"{name}: nrefs:1|stemmer:porter|sentences:newline or '##', else pysbd-" in printed
