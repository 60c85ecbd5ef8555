"""Lines that are too long, and empty ones, in fairseq-interactive."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fairseq.tasks.translation import TranslationTask

from fairseq_recur.errors import ConfigError
from tests.conftest import SMALL, TRAIN
from tests.running import SHORT

LIMIT = 12
LONG = " ".join(f"w{i % 20}" for i in range(40))
LINES = ["w1 w2", LONG, "w3", LONG + " w1 w2", "w4 w5 w6"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cli: Callable) -> Path:
    folder = tmp_path_factory.mktemp("short")
    cli(
        "train", corpus / "bin", "--arch", "transformer_biarn_tiny", *SMALL, *TRAIN, "--save-dir",
        folder, "--max-update", 3, "--max-source-positions", LIMIT, "--no-epoch-checkpoints",
    )  # fmt: skip
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def interactive(model: Path, corpus: Path, cli: Callable) -> Callable[..., dict]:
    def run(lines: list[str], *flags: object) -> dict[int, tuple[str, str]]:
        """Source and hypothesis by line number, in the order printed."""
        output = cli(
            "interactive", corpus / "bin", "--path", model, "--cpu", "--beam", 2, *SHORT,
            *flags,
            stdin="".join(line + "\n" for line in lines),
        )  # fmt: skip
        sources = dict(re.findall(r"^S-(\d+)\t(.*)$", output, re.M))
        found = re.findall(r"^H-(\d+)\t[-\d.]+\t(.*)$", output, re.M)
        return {int(i): (sources[i], text) for i, text in found}

    return run


@pytest.mark.parametrize(
    "given, buffer",
    [
        (["--max-source-positions", LIMIT], []),
        ([], ["--buffer-size", 5, "--batch-size", 5]),
        pytest.param(
            ["--max-source-positions", LIMIT], ["--buffer-size", 5, "--batch-size", 5],
            marks=pytest.mark.slow,
        ),
        pytest.param([], [], marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_long_lines_are_cut_and_none_is_lost(
    interactive: Callable, buffer: list, given: list
) -> None:
    """Without --max-source-positions the model's own limit counts."""
    found = interactive(LINES, "--truncate-source", *buffer, *given)
    assert list(found) == [0, 1, 2, 3, 4]
    for line, (source, _) in zip(LINES, found.values()):
        assert source == " ".join(line.split()[: LIMIT - 1])
    assert found[1] == found[3]
    cut = interactive([LINES[1].rsplit(" ", 40 - LIMIT + 1)[0]])
    assert cut[0] == found[1]  # the same as if the user had cut it


def test_short_lines_translate_as_without_the_flag(interactive: Callable) -> None:
    lines = ["w1 w2", "w3", "w4 w5 w6"]
    assert interactive(lines, "--truncate-source") == interactive(lines)


def test_a_long_line_without_the_flag_stops(interactive: Callable) -> None:
    expected = r"line 2 of the input has 41 tokens, expected at most 12: .*--truncate-source"
    with pytest.raises(ConfigError, match=expected):
        interactive(LINES, "--buffer-size", 5, "--batch-size", 5)


def test_constraints_do_not_count_as_source(interactive: Callable) -> None:
    """Only the source decides whether a line is too long."""
    lines = ["w1 w2\tw3 w4 w5 w6 w7 w8 w9 w1 w2 w3 w4 w5", "w1 w2", " ".join(["w3"] * 20), "w4"]
    with pytest.raises(ConfigError, match="line 3 of the input has 21 tokens, expected at most 12"):
        interactive(lines, "--constraints", "--buffer-size", 4, "--batch-size", 4)


def test_an_empty_line_keeps_its_place(interactive: Callable) -> None:
    lines = ["w1 w2", "", "w3", "   ", "w4"]
    for flags in ([], ["--truncate-source"], ["--buffer-size", 5, "--batch-size", 5]):
        found = interactive(lines, *flags)
        assert list(found) == [0, 1, 2, 3, 4]
        assert found[1] == found[3] == ("", "")
        assert all(found[number][1] for number in (0, 2, 4))


def test_the_end_of_sentence_stays(corpus: Path) -> None:
    from argparse import Namespace

    from fairseq.data import Dictionary

    words = Dictionary.load(str(corpus / "bin" / "dict.src.txt"))
    cfg = Namespace(truncate_source=True, max_source_positions=4)
    task = TranslationTask(cfg, words, words)
    tokens = [torch.arange(10, 10 + n) for n in (2, 4, 5, 9)]
    tokens = [torch.cat([t[:-1], torch.tensor([words.eos()])]) for t in tokens]
    data = task.build_dataset_for_inference(tokens, [len(t) for t in tokens])
    assert [len(data[i]["source"]) for i in range(4)] == [2, 4, 4, 4]
    assert list(data.src_sizes) == [2, 4, 4, 4]
    assert all(data[i]["source"][-1] == words.eos() for i in range(4))
    assert data[3]["source"].tolist() == [10, 11, 12, words.eos()]
    cfg.truncate_source = False
    assert len(task.build_dataset_for_inference(tokens, [2, 4, 5, 9])[3]["source"]) == 9
