"""Figures of checkpoints and of gates over a training."""

from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from fairseq_recur.cli import main
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.training_log import read_log
from fairseq_recur.inspection.matrices import head_label, memory_lengths, read_layers
from fairseq_recur.modules.learned_matrices import ToeplitzMatrix
from fairseq_recur.plotting.curves import choose_panels
from fairseq_recur.plotting.figures import new_figure
from fairseq_recur.plotting.matrices import draw, draw_kernels, place_of

Trained = Callable[..., Path]
RSA = ["rsa_transformer_tiny", "--rsa-heads", "0,0,0,1,1,0", "--rsa-dilations", "2,3"]


@pytest.fixture
def checkpoint(trained: Trained) -> str:
    return str(trained(*RSA) / "checkpoint_last.pt")


def test_layers_are_those_of_the_checkpoint(checkpoint: str) -> None:
    layers = read_layers(checkpoint)
    assert list(layers) == ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]
    saved = torch.load(checkpoint, weights_only=True)["model"]
    for name, mixture in layers.items():
        side, index = name.split(".")
        prefix = f"{side}.layers.{index}.self_attn.mixture."
        assert torch.equal(mixture.mu, saved[prefix + "mu"])
        assert torch.equal(mixture.eta, saved[prefix + "eta"])
        assert mixture.causal == (side == "decoder")
        assert mixture.dilation.tolist() == [2, 3]
        assert head_label(mixture, 0).endswith("d=2") and "cos" in head_label(mixture, 1)


def test_layers_are_shown_in_the_order_of_the_model() -> None:
    names = {"cross.1", "decoder.10", "cross.0", "encoder.0", "decoder.2", "encoder.11"}
    ordered = ["encoder.0", "encoder.11", "decoder.2", "decoder.10", "cross.0", "cross.1"]
    assert sorted(names, key=place_of) == ordered


def test_memory_length(checkpoint: str) -> None:
    """lambda = 0.5, dilated by 2: 0.5 + 0.25 + ... reaches 95% of its sum with the fifth lag."""
    mixture = read_layers(checkpoint)["decoder.0"]
    torch.nn.init.constant_(mixture.eta, torch.atanh(torch.tensor(0.5)).item())
    assert memory_lengths(mixture)[0] == 2 * 5


def test_later_keys_count_where_their_kernel_is_another_one(trained: Trained) -> None:
    flags = ["rsa_transformer_tiny", "--encoder-self-attention", "toeplitz"]
    layers = read_layers(str(trained(*flags) / "checkpoint_last.pt"))
    mixture = layers["encoder.0"]
    assert isinstance(mixture, ToeplitzMatrix) and mixture.future is not None
    torch.nn.init.zeros_(mixture.past)
    torch.nn.init.zeros_(mixture.future)[:, :10] = 1
    assert memory_lengths(mixture) == [10] * mixture.heads
    figure = new_figure(4, 3)
    draw_kernels(figure, "a", {"encoder.0": mixture}, 12)
    past, *_, future = figure.axes[0].lines
    assert list(past.get_data()[0]) == list(range(1, 13)) and not any(past.get_data()[1])
    assert list(future.get_data()[0]) == [-lag for lag in range(1, 13)]
    assert list(future.get_data()[1]) == [1.0] * 10 + [0.0] * 2


def test_figures(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "parts.png"
    show = ["--show", "gates", "memory", "kernels", "matrices", "--lags", "12"]
    assert main(["plot", "checkpoint", checkpoint, checkpoint, "--label", "a", "--label", "b",
                 "--output", str(output), *show]) == 0  # fmt: skip
    assert output.read_bytes().startswith(b"\x89PNG")
    figure = draw([("a", checkpoint)], ["gates", "kernels"], "encoder.1", 12)
    gates, kernels = (part.axes[0] for part in figure.subfigs)
    mixture = read_layers(checkpoint)["encoder.1"]
    assert gates.lines[0].get_ydata()[1] == pytest.approx(torch.sigmoid(mixture.mu).item())
    expected: list[float] = mixture.kernels(13)[0][0, 1:].tolist()
    assert list(kernels.lines[0].get_ydata()) == expected
    (boxes,) = draw([("a", checkpoint), ("b", checkpoint)], ["boxes"], None, 12).subfigs
    of_layers = [torch.sigmoid(layer.mu).item() for layer in read_layers(checkpoint).values()]
    median = [numpy.median(of_layers)] * 2
    drawn = (line.get_data() for line in boxes.axes[0].lines)
    assert {round(numpy.mean(x)) for x, y in drawn if list(y) == pytest.approx(median)} == {1, 2}
    assert [label.get_text() for label in boxes.axes[0].get_xticklabels()] == ["a", "b"]


def test_gates_over_the_training(trained: Trained) -> None:
    log = read_log(trained(*RSA) / "train.log")
    panels = choose_panels([log], ["gate", "rem"])
    layers = [f"{side}_{index}" for side in ("decoder", "encoder") for index in (0, 1)]
    assert panels == {k: [f"train_{k}_{layer}" for layer in layers] for k in ("gate", "rem")}
    curve = log.curve("train_gate_encoder_0")
    assert [updates for updates, _ in curve] == list(range(1, 41)), "every line has them"
    first = torch.sigmoid(torch.tensor(0.0)).item()  # where the preset begins
    assert curve[0][1] == pytest.approx(first, abs=6e-4) and curve[-1][1] != curve[0][1]


def test_wrong_use(
    trained: Trained, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = ["--output", str(tmp_path / "a.png")]
    biarn = str(trained("transformer_biarn_tiny") / "checkpoint_last.pt")
    broken = tmp_path / "broken.pt"
    broken.write_bytes(Path(checkpoint).read_bytes()[:5000])
    log = str(Path(checkpoint).parent / "train.log")
    for arguments, message in (
        ([biarn], "has no recurrence encoding matrices"),
        ([checkpoint, log], "train.log"),
        ([checkpoint, "--layer", "encoder.7"], "has encoder.0, encoder.1, decoder.0, decoder.1"),
        ([checkpoint, "--lags", "1"], "--lags 1: expected at least 2"),
        ([str(broken)], "broken.pt"),
        ([str(tmp_path / "none.pt")], "no such checkpoint"),
    ):
        assert main(["plot", "checkpoint", *arguments, *output]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()
    with pytest.raises(ConfigError, match="has no recurrence encoding matrices"):
        read_layers(biarn)
