"""The task summarization through fairseq's commands, from preprocessing to ROUGE."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_hypotheses
from fairseq_recur.scoring.metrics import build_metric, score_corpus
from fairseq_recur.scoring.rouge import VARIANTS
from tests.conftest import SMALL, TRAIN
from tests.distributed.several import run_plan
from tests.running import USER_DIR, generate, hypotheses, saved_weights, weights

Cli = Callable[..., str]
PREFIX = "summarize :"
TASK = ["--task", "summarization"]
# Sources of at most 12 tokens with prefix and end; summaries that are trained on of at most 8.
LENGTHS = "--max-source-positions 12 --max-target-positions 8 --truncate-source".split()


def write_pairs(folder: Path, name: str, pairs: int, seed: int) -> None:
    """Sources of two or three sentences in subwords, the first words of each as a summary."""
    rng = random.Random(seed)
    sources, targets = [], []
    for _ in range(pairs):
        words = [f"w{rng.randrange(3)}@@ s{rng.randrange(2)}" for _ in range(rng.randint(2, 7))]
        sources.append(" ".join(words) + " .")
        targets.append(" <q> ".join(word for word in words[: rng.randint(2, 4)]))
    sources[0] = f"{PREFIX} {sources[0]}"
    (folder / f"{name}.source").write_text("".join(line + "\n" for line in sources))
    (folder / f"{name}.target").write_text("".join(line + "\n" for line in targets))


@pytest.fixture(scope="module")
def articles(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """A preprocessed corpus: (folder)/bin, (folder)/*.source, (folder)/*.target."""
    folder = tmp_path_factory.mktemp("articles")
    for name, pairs, seed in (("train", 30, 1), ("valid", 11, 2)):
        write_pairs(folder, name, pairs, seed)
    cli(
        "preprocess", "--source-lang", "source", "--target-lang", "target",
        "--joined-dictionary", "--trainpref", folder / "train", "--validpref", folder / "valid",
        "--destdir", folder / "bin",
    )  # fmt: skip
    return folder


TRAINING = [
    "--user-dir", USER_DIR, *TASK, "--arch", "transformer_biarn_tiny", *SMALL, *TRAIN, *LENGTHS,
    "--truncate-target", "--source-prefix", PREFIX, "--max-tokens", "36",
    "--eval-rouge", "--eval-rouge-args", '{"beam": 3, "max_len_b": 7, "min_len": 2}',
    "--eval-rouge-remove-bpe", "--best-checkpoint-metric", "rougeLsum",
    "--maximize-best-checkpoint-metric",
]  # fmt: skip


@pytest.fixture(scope="module")
def summarizer(tmp_path_factory: pytest.TempPathFactory, cli: Cli, articles: Path) -> Path:
    """A folder with checkpoint1.pt to checkpoint4.pt, checkpoint_best.pt and train.log."""
    folder = tmp_path_factory.mktemp("summarizer")
    log = cli(
        "train", articles / "bin", *TRAINING, "--lr", 0.02, "--dropout", 0, "--max-epoch", 4,
        "--eval-rouge-print-samples", "--save-dir", folder,
    )  # fmt: skip
    (folder / "train.log").write_text(log)
    return folder


GENERATE = [*TASK, "--gen-subset", "valid", "--beam", 3, "--max-len-b", 7, "--min-len", 2,
            "--remove-bpe", "--scoring", "rouge", "--batch-size", 4]  # fmt: skip


def validated(log: str) -> list[dict[str, float]]:
    """ROUGE of each epoch's validation."""
    lines = re.findall(r"on 'valid' subset \| (.*)", log)
    return [
        {name: float(re.search(rf"\b{name} ([\d.]+)", line)[1]) for name in VARIANTS}
        for line in lines
    ]


@pytest.mark.slow
def test_rouge_of_training_is_that_of_generate(articles: Path, summarizer: Path) -> None:
    """In every epoch, by fairseq-generate's own figures and by scoring its output."""
    epochs = validated((summarizer / "train.log").read_text())
    assert len(epochs) == 4
    assert len({tuple(figures.values()) for figures in epochs}) > 2, "models must differ"
    plain = (articles / "valid.target").read_text().replace("@@ ", "").splitlines()
    for epoch, figures in enumerate(epochs, 1):
        output = generate(articles / "bin", summarizer / f"checkpoint{epoch}.pt", *GENERATE)
        written = summarizer / "output"
        written.write_text(output)
        metrics = [build_metric(name) for name in VARIANTS]
        scores = score_corpus(read_hypotheses(written, 11), [plain], metrics)
        for score in scores:
            assert figures[score.name] == pytest.approx(score.value, rel=1e-5), epoch
            assert re.search(rf"beam=3: .*\b{score.name} = {score.value:.2f}\b", output), epoch
        assert "|sentences:newline or '<q>', else pysbd-" in output
    assert max(figures["rougeLsum"] for figures in epochs) > 5


def test_the_best_checkpoint_is_that_with_the_highest_rouge(summarizer: Path) -> None:
    figures = [f["rougeLsum"] for f in validated((summarizer / "train.log").read_text())]
    highest = figures.index(max(figures)) + 1
    assert highest < 4, "the last checkpoint must not be the best of this training"
    best = torch.load(summarizer / "checkpoint_best.pt", weights_only=True)
    assert best["extra_state"]["best"] == pytest.approx(max(figures), rel=1e-5)
    expected = saved_weights(summarizer / f"checkpoint{highest}.pt")
    assert all(torch.equal(w, expected[name]) for name, w in weights(best["model"]).items())


@pytest.mark.slow
def test_two_processes_log_the_rouge_of_one(
    articles: Path, summarizer: Path, tmp_path: Path
) -> None:
    """The validation of a model that does not change; the eleven texts are split unevenly."""
    plan = [
        str(articles / "bin"), *TRAINING, "--finetune-from-model",
        str(summarizer / "checkpoint_best.pt"), "--lr", "1e-12", "--max-update", "1",
        "--ddp-backend", "legacy_ddp", "--save-dir", str(tmp_path / "two"),
    ]  # fmt: skip
    run_plan(2, [plan], tmp_path)
    state = torch.load(tmp_path / "two" / "checkpoint_best.pt", weights_only=True)
    assert state["cfg"]["distributed_training"]["distributed_world_size"] == 2
    figures = [f["rougeLsum"] for f in validated((summarizer / "train.log").read_text())]
    assert state["extra_state"]["best"] == pytest.approx(max(figures), rel=1e-5)


def test_the_log_says_what_is_cut(articles: Path, summarizer: Path) -> None:
    log = (summarizer / "train.log").read_text()
    texts = {
        name: [line.split() for line in (articles / f"valid.{name}").read_text().splitlines()]
        for name in ("source", "target")
    }
    sources = sum(len(words) + 2 + 1 > 12 for words in texts["source"])
    summaries = sum(len(words) + 1 > 8 for words in texts["target"])
    assert 0 < sources < 11 and 0 < summaries < 11
    assert f"valid: {sources} of 11 sources are longer than 12 tokens and are truncated" in log
    assert f"valid: {summaries} of 11 summaries are longer than 8 tokens and are truncated" in log
    assert "every source begins with summarize :" in log
    assert log.count("example hypothesis: ") >= 4


def test_generation_reads_what_training_read(cli: Cli, articles: Path, summarizer: Path) -> None:
    """The prefix and the truncation come from the checkpoint, in generate and interactive."""
    checkpoint = summarizer / "checkpoint_best.pt"
    output = generate(articles / "bin", checkpoint, *GENERATE)
    sources = [line.split() for line in (articles / "valid.source").read_text().splitlines()]
    read = {int(n): text for n, text in re.findall(r"^S-(\d+)\t(.*)$", output, re.M)}
    for number, words in enumerate(sources):
        expected = " ".join([*PREFIX.split(), *words][:11]).replace("@@ ", "").removesuffix("@@")
        assert read[number] == expected
    typed = cli(
        "interactive", articles / "bin", "--user-dir", USER_DIR, *TASK, "--path", checkpoint,
        "--cpu", *GENERATE[4:11], "--buffer-size", 11, "--batch-size", 4,
        stdin=(articles / "valid.source").read_text(),
    )  # fmt: skip
    for found in (typed, output):
        assert len(hypotheses(found)) == 11
    for number, (best,) in hypotheses(output).items():
        assert hypotheses(typed)[number][0].words == best.words
        assert hypotheses(typed)[number][0].score == pytest.approx(best.score, abs=1e-5)


def test_another_prefix_counts_and_is_warned_of(articles: Path, summarizer: Path) -> None:
    checkpoint = summarizer / "checkpoint_best.pt"
    output = generate(articles / "bin", checkpoint, *GENERATE, "--source-prefix", "w1@@ s1")
    assert "'w1@@ s1', but the model was trained with 'summarize :'" in output
    assert output.count("S-") == len(re.findall(r"^S-\d+\tw1s1 ", output, re.M)) == 11
    without = generate(articles / "bin", checkpoint, *GENERATE, "--source-prefix", "")
    assert "'', but the model was trained with 'summarize :'" in without
    assert not re.findall(r"^S-[1-9]\d*\tsummarize", without, re.M)
    with pytest.raises(ConfigError, match="does not contain digest; give the --bpe"):
        generate(articles / "bin", checkpoint, *GENERATE, "--source-prefix", "digest")


def test_another_task_is_refused(cli: Cli, articles: Path, summarizer: Path) -> None:
    """Without --task, fairseq uses translation, which would silently omit the prefix."""
    flags = [flag for flag in GENERATE if flag not in TASK]
    with pytest.raises(ConfigError, match="trained with --task summarization"):
        generate(articles / "bin", summarizer / "checkpoint_best.pt", *flags)


def test_validate_repeats_rouge(cli: Cli, articles: Path, summarizer: Path) -> None:
    output = cli(
        "validate", articles / "bin", "--user-dir", USER_DIR, *TASK, "--cpu",
        "--path", summarizer / "checkpoint_last.pt", "--batch-size", 4, "--num-workers", 0,
    )  # fmt: skip
    last = validated((summarizer / "train.log").read_text())[-1]
    assert validated(output) == [pytest.approx(last, rel=1e-5)]


def test_a_translation_recipe_trains_with_one_flag_changed(
    cli: Cli, articles: Path, tmp_path: Path
) -> None:
    """Without the task's own options the losses are those of the task translation."""
    common = [articles / "bin", "--user-dir", USER_DIR, "--arch", "transformer_biarn_tiny"]
    common += [*SMALL, *TRAIN, "--max-epoch", 1, "--no-save", "--save-dir", tmp_path]
    logs = [cli("train", *common, "--task", task) for task in ("translation", "summarization")]
    losses = [re.findall(r"\bloss=?\s?([\d.]+)", log) for log in logs]
    assert losses[0] == losses[1] and len(losses[0]) > 2


def test_bad_combinations_are_one_error(cli: Cli, articles: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        cli(
            "train", articles / "bin", "--user-dir", USER_DIR, *TASK, "--arch",
            "transformer_biarn_tiny", *SMALL, *TRAIN, "--source-prefix", "digest:",
            "--best-checkpoint-metric", "rouge1", "--load-alignments", "--save-dir", tmp_path,
        )  # fmt: skip
    message = str(raised.value)
    assert message.count("\n- ") == 4
    for part in (
        "--load-alignments", "rouge1 needs --eval-rouge", "needs --maximize-best-checkpoint-metric",
        "the dictionary does not contain digest:",
    ):  # fmt: skip
        assert part in message
