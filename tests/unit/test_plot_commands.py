"""The `plot` commands: names of files, columns and runs as labels, and options without effect."""

import lzma
import shutil
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text

from fairseq_recur.cli import main
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.experiments.training_log import TrainingLog
from fairseq_recur.inspection.matrices import read_layers
from fairseq_recur.plotting import curves, forecast, matrices
from fairseq_recur.plotting.figures import new_figure, save
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)

FROZEN = Path(__file__).resolve().parents[1] / "frozen"
LOG = (
    "2026-01-31 12:00:00 | INFO | train_inner | "
    '{"epoch": 1, "update": 0.5, "loss": "8", "num_updates": "2", "wall": "10"}\n'
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with input for each command, whose names would be wrong equations."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.log").write_text(LOG)
    (tmp_path / "forecasts.csv").write_text("window,date,a$_$,a$_$ actual\n0,1/1/2010,1,2\n")
    rows = "".join(f"2016-07-01 {hour:02}:00:00,{hour % 3}\n" for hour in range(20))
    (tmp_path / "s.csv").write_text(f"date,open_$ close_$\n{rows}")
    (tmp_path / "x$_$.txt").write_text("the cat sat " * 20)
    shutil.copy(FROZEN / "rsa_transformer.pt", tmp_path / "x$_$.pt")
    return tmp_path


@pytest.mark.parametrize("line", [
    "curves run.log --label $A_$B --output a.png",
    "curves run.log --label $A_$B --output a.pdf",
    "curves run.log --label $A_$B --output a.svg",
    "forecast forecasts.csv --output a.png",
    "recurrence s.csv --lags 5 --output a.png",
    "recurrence x$_$.txt --lags 5 --output a.png",
    "checkpoint x$_$.pt --show gates kernels matrices boxes --lags 4 --output a.png",
])  # fmt: skip
def test_a_name_is_no_equation(line: str, folder: Path) -> None:
    words = line.split()
    assert main(["plot", *words]) == 0
    assert (folder / words[-1]).stat().st_size > 3000


def test_forecasts_of_one_row_can_be_seen() -> None:
    columns = {"a": [1.0, 2.0, 3.0], "a actual": [1.0, 1.0, 1.0]}
    data = forecast.Forecasts("f", [0, 1, 1], ["d"] * 3, columns)
    _, one, two = forecast.draw(data, None, 0, 2).axes[0].lines
    assert (one.get_marker(), two.get_marker()) == (".", "")


@pytest.mark.parametrize(
    "content, message",
    [
        ("window,date,a,a actual\n0,today,one,2\n", "is not a file of forecasts (could not conve"),
        ("window,date,a,a actual\n0,today,1\n", "is not a file of forecasts (list index out"),
        ("window,date,a,a actual\n", "has no forecasts; give the --output of fairseq-recur forec"),
        ("window,date\n0,today\n", "has no forecasts; give the --output of fairseq-recur forec"),
    ],
)
def test_files_that_are_no_forecasts_are_refused(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, figure = tmp_path / "f.csv", tmp_path / "f.png"
    file.write_text(content)
    assert main(["plot", "forecast", str(file), "--output", str(figure)]) == 2
    assert f"{file} {message}" in capsys.readouterr().err and not figure.exists()


def test_every_text_of_a_figure_is_saved_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = new_figure(3.0, 3.0)
    part = figure.subfigures(1, 1)
    axes = part.subplots()
    axes.plot([0, 1], [0, 1], label="$l$")
    axes.set(title="$t$", xlabel="$x$", ylabel="$y$")
    axes.set_xticks([0, 1], ["$0$", "$1$"])
    axes.annotate("$a$", (0, 0))
    axes.legend()
    part.suptitle("$s$")
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "a.svg"
    link.symlink_to("elsewhere/a.svg")
    save(figure, link)
    texts = {text.get_text(): text.get_parse_math() for text in figure.findobj(Text)}
    assert {f"${name}$" for name in "ltxy01as"} <= texts.keys() and not any(texts.values())
    assert capsys.readouterr().out == f"{link}\n"
    assert link.is_symlink() and (tmp_path / "elsewhere" / "a.svg").is_file()


def test_a_label_that_begins_with_an_underscore_is_in_the_legend() -> None:
    log = TrainingLog(steps={update: {"loss": 1.0} for update in (1, 2)}, valid={})
    runs = [("_run", log), ("train", log)]
    (axes,) = curves.draw(runs, {"loss": ["train_loss"]}, "updates").axes
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == ["_run, training", "train, training"]
    of_legend = [line.get_color() for line in axes.get_legend().get_lines()]
    assert of_legend == [line.get_color() for line in axes.lines]
    checkpoint = str(FROZEN / "rsa_transformer.pt")
    (part,) = matrices.draw([("_a", checkpoint), ("b", checkpoint)], ["gates"], None, 9).subfigs
    assert [text.get_text() for text in part.axes[0].get_legend().get_texts()] == ["_a", "b"]


@pytest.mark.parametrize("show, most", [("kernels", 10_000), ("matrices", 2000)])
def test_lags_that_would_fill_the_memory_are_refused(
    show: str, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for lags, refused in ((most, False), (most + 1, True), (100_000_000, True)):
        words = f"plot checkpoint none.pt --show {show} --lags {lags} --output no/a.png"
        assert main(words.split()) == 2
        said = f"--lags {lags}: expected at most {most}"
        assert (said in capsys.readouterr().err) == refused


NO_EFFECT = [
    (
        "checkpoint none.pt --show gates memory --layer encoder.0 --lags 1",
        ["--layer encoder.0 has no effect with --show gates memory; leave it out",
         "--lags 1 has no effect with --show gates memory", "--lags 1: expected at least 2"],
    ),
    (
        "attention none.pt --source w1 --target w2 --beam 0 --lenpen 1 --max-len-b 200",
        ["--beam 0 has no effect with --target; leave it out", "--beam 0: expected at least 1",
         "--lenpen 1.0 has no effect", "--max-len-b 200 has no effect"],
    ),
]  # fmt: skip


@pytest.mark.parametrize("words, said", NO_EFFECT)
def test_options_without_effect_are_refused(
    words: str, said: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the checkpoint is read, which does not exist, and with all that is wrong."""
    assert main(["plot", *words.split(), "--output", "a.gif"]) == 2
    printed = capsys.readouterr().err
    for problem in [*said, "--output a.gif: expected"]:
        assert f"- {problem}" in printed


def test_all_checkpoints_without_a_layer_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plot", "checkpoint", "x$_$.pt", "x$_$.pt", "none.pt", "--layer", "encoder.9"]
    labels = [word for label in "abc" for word in ("--label", label)]
    assert main([*words, *labels, "--output", "a.png"]) == 2
    printed = capsys.readouterr().err
    assert "--layer encoder.9: a has encoder.0" in printed and "encoder.9: b has" in printed
    assert "no such checkpoint: none.pt" in printed


def test_a_logarithmic_axis_has_plain_numbers(tmp_path: Path) -> None:
    """matplotlib would write them as equations, which no text of a figure is."""
    figure = new_figure(3.0, 3.0)
    axes = figure.subplots()
    axes.plot([1, 2], [3, 300])
    axes.set_yscale("log")
    save(figure, tmp_path / "figure.png")
    labels = [label.get_text() for label in axes.yaxis.get_majorticklabels()]
    assert {"10", "100"} <= {*labels} and not any("$" in label for label in labels)


@pytest.mark.parametrize(
    "option, value", [("encoder_self_attention", "mine"), ("encoder_attention_heads", 4)]
)
def test_matrices_that_do_not_fit_their_options(option: str, value: object, tmp_path: Path) -> None:
    """A part of another plug-in, and weights of another shape."""
    state = torch.load(FROZEN / "rsa_transformer.pt", weights_only=True)
    state["cfg"]["model"][option] = value
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="options do not fit its weights encoder.layers.0"):
        read_layers(str(tmp_path / "model.pt"))


@pytest.fixture
def of_positions(tmp_path: Path) -> str:
    """A Transformer-XL with a learned matrix of positions (FL-XL): 5 rows, 8 columns."""
    with lzma.open(FROZEN / "rsa_xl_lm.pt.xz") as file:
        state = torch.load(file, weights_only=True)
    state["cfg"]["model"].update(
        decoder_self_attention_mixture="full_matrix", memory_length=3, learned_matrix_length=8
    )
    weights = state["model"]
    for name in [name for name in weights if name.rpartition(".")[2] in ("eta", "nu", "theta")]:
        del weights[name]
    for name in [name for name in weights if name.endswith("mixture.mu")]:
        weights[name[: -len("mu")] + "weight"] = torch.rand(2, 5, 8)
    torch.save(state, tmp_path / "model.pt")
    return str(tmp_path / "model.pt")


def test_learned_matrices_of_positions_have_the_columns_of_the_memory(of_positions: str) -> None:
    layers = read_layers(of_positions)
    weight = torch.load(of_positions, weights_only=True)["model"][
        "decoder.layers.0.self_attn.mixture.weight"
    ]
    drawn = matrices.draw([("a", of_positions)], ["gates", "matrices"], None, 4)
    gates, images = drawn.subfigs
    expected = [torch.sigmoid(mixture.mu).item() for mixture in layers.values()]
    assert list(gates.axes[0].lines[0].get_ydata()) == pytest.approx(expected)
    for axes, of_head in zip(images.axes[:2], weight):
        found = torch.tensor(axes.images[0].get_array())
        assert torch.equal(found, of_head[:4, :7].tril(2)), "what comes later is never read"
    whole = matrices.draw([("a", of_positions)], ["matrices"], "decoder.1", 50).subfigs[0]
    assert whole.axes[0].images[0].get_array().shape == (5, 8)


def test_learned_matrices_of_positions_have_no_kernels(of_positions: str) -> None:
    message = "--show memory kernels: a has learned a matrix of positions .*; choose gates, "
    with pytest.raises(ConfigError, match=message):
        matrices.draw([("a", of_positions)], ["gates", "memory", "kernels"], None, 4)
    runs = [("b", str(FROZEN / "rsa_transformer.pt")), ("a", of_positions)]
    with pytest.raises(ConfigError, match=message) as error:
        matrices.draw(runs, ["memory", "kernels"], None, 4)
    assert " b has" not in str(error.value)
