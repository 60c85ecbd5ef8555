"""The experiment with linear and nonlinear RNNs: data, batched training and files."""

import json
import math
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fairseq_recur.experiments.steps import LOCK
from fairseq_recur.locks import hold

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "linear_and_nonlinear_rnn"
sys.path.insert(0, str(EXAMPLE))
import experiment  # noqa: E402
import models  # noqa: E402
import synthetic  # noqa: E402
from figure import summary  # noqa: E402
from fitting import Fit, Stopping, Training, fit  # noqa: E402

sys.path.remove(str(EXAMPLE))

SCALARS = {
    "tanh": math.tanh,
    "sigmoid": lambda u: 1 / (1 + math.exp(-u)),
    "relu": lambda u: max(u, 0.0),
}
TINY = ["--alpha-step", "1", "--segments", "3", "--segment-length", "8", "--max-epochs", "5"]
MODELS = {
    "linear": models.RNN(models.identity),
    "nonlinear": models.RNN(torch.tanh),
    "rsa regular": models.RSA("regular", 0.5),
    "rsa cyclical": models.RSA("cyclical", 0.5),
}


def doubles(model, count: int, seed: int) -> dict[str, Tensor]:
    """Initial parameters in float64, with noise so that no two heads or models are equal."""
    generator = torch.Generator().manual_seed(seed)
    first = model.draw(count, generator)
    return {
        name: (values + 0.1 * torch.randn(values.shape, generator=generator)).double()
        for name, values in first.items()
    }


@pytest.mark.parametrize("activation", SCALARS)
def test_sequences_follow_equation_nine(activation: str) -> None:
    layers, inputs, errors = synthetic.draw(seed=3, length=12, input_scale=1.5)
    alpha, states, clean = 0.3, [torch.zeros(2, dtype=torch.float64)] * 2, []
    for below in inputs:
        for i, layer in enumerate(layers):
            h = (layer.recurrent @ states[i] + layer.input @ below + layer.bias).tolist()
            mixed = [alpha * SCALARS[activation](u) + (1 - alpha) * u for u in h]
            below = states[i] = torch.tensor(mixed, dtype=torch.float64)
        clean.append(below)
    sequence = synthetic.generate(activation, alpha, seed=3, length=12, input_scale=1.5)
    expected = torch.stack(clean)
    torch.testing.assert_close(sequence.clean, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sequence.targets, expected + errors)
    assert torch.equal(sequence.inputs, inputs)


def test_weights_are_bounded_and_depend_on_the_seed() -> None:
    for seed in range(5):
        layers, _, _ = synthetic.draw(seed, 2, 1.0)
        for layer in layers:
            norm = torch.linalg.matrix_norm(layer.recurrent, ord=2)
            torch.testing.assert_close(norm.item(), synthetic.RECURRENT_NORM)
    other = synthetic.draw(6, 2, 1.0)[0][0]
    assert not torch.equal(layers[0].recurrent, other.recurrent)
    scaled = synthetic.draw(6, 2, 3.0)[0][0]
    assert torch.equal(scaled.input, 3 * other.input)
    assert torch.equal(scaled.recurrent, other.recurrent)


def test_segments_are_consecutive() -> None:
    sequence = synthetic.generate("tanh", 0.5, seed=1, length=12)
    cut = synthetic.segments(sequence, 4)
    assert cut.targets.shape == (3, 4, 2)
    assert torch.equal(cut.inputs[1], sequence.inputs[4:8])
    assert torch.equal(cut.clean[2, 3], sequence.clean[11])


@pytest.mark.parametrize("kind", ["regular", "cyclical"])
def test_rsa_layer_follows_equation_four(kind: str) -> None:
    model = models.RSA(kind, gate=0.3)
    own = {n[2:]: v for n, v in doubles(model, 3, seed=1).items() if n.startswith("0.")}
    length = 2 * models.CHUNK + 3
    inputs = torch.randn(3, length, 2, dtype=torch.float64)
    for n in range(3):
        gate = 1 / (1 + math.exp(-own["mu"][n, 0]))
        heads = []
        for k in range(2):
            query, key, value = (inputs[n] @ own[x][n, k] for x in ("query", "key", "value"))
            matrix = torch.zeros(length, length, dtype=torch.float64)
            for i in range(length):
                attention = torch.softmax(query[i] * key[: i + 1], dim=0)
                matrix[i, : i + 1] = (1 - gate) * attention
                for j in range(i):
                    matrix[i, j] += gate * rem_entry(own, n, k, i - j)
            heads.append(matrix @ value)
        expected = torch.stack(heads, dim=1) @ own["output"][n].T
        expected = expected + inputs[n] @ own["input"][n].T + own["bias"][n]
        actual = model.layer(own, inputs)[n]
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def rem_entry(own: dict[str, Tensor], n: int, head: int, lag: int) -> float:
    """Compute f(lag) for a head of model n."""
    if "eta" in own:
        return math.tanh(own["eta"][n, head]) ** lag
    gamma = 1 / (1 + math.exp(-own["nu"][n, 0]))
    wave = (math.cos, math.sin)[head]
    return gamma**lag * wave(lag * own["theta"][n, 0])


def test_open_gate_represents_a_linear_rnn() -> None:
    """Proposition 1: W_h = B diag(lambda) B^-1 is W_O = B and W_V = B^-1 W_x, at g = 1."""
    rnn, rsa = models.RNN(models.identity), models.RSA("regular", gate=60.0)
    linear, mixed = doubles(rnn, 1, seed=2), rsa.draw(1, torch.Generator().manual_seed(2))
    mixed = {name: values.double() for name, values in mixed.items()}
    eigenvalues = torch.tensor([0.9, -0.4], dtype=torch.float64)
    for layer in range(models.LAYERS):
        basis = torch.tensor([[1.0, 0.5], [-0.3, 0.8]], dtype=torch.float64) + 0.1 * layer
        inverse = torch.linalg.inv(basis)
        linear[f"{layer}.recurrent"] = (basis * eigenvalues @ inverse).unsqueeze(0)
        bias = linear[f"{layer}.bias"].zero_()  # RSA's heads do not carry the bias on
        mixed[f"{layer}.bias"], mixed[f"{layer}.input"] = bias, linear[f"{layer}.input"]
        mixed[f"{layer}.output"] = basis.unsqueeze(0)
        mixed[f"{layer}.value"] = inverse @ linear[f"{layer}.input"]
        mixed[f"{layer}.eta"] = torch.atanh(eigenvalues).unsqueeze(0)
    inputs = torch.randn(1, 50, 2, dtype=torch.float64)
    torch.testing.assert_close(
        rsa.predict(mixed, inputs), rnn.predict(linear, inputs), rtol=1e-10, atol=1e-10
    )


def fit_doubles(name: str, models_kept: slice, targets_change: float = 0.0) -> Fit:
    """Train a selection of six models on six segments, in float64."""
    data = synthetic.segments(synthetic.generate("tanh", 0.5, seed=1, length=6 * 30), 30)
    targets = data.targets.clone()
    targets[:, -1] += targets_change
    model = MODELS[name]
    first = {n: values[models_kept] for n, values in doubles(model, 6, seed=4).items()}
    training = Training(lr=0.05, tolerance=1e-2, patience=3, max_epochs=60)
    inputs, targets = (x[models_kept].unsqueeze(1) for x in (data.inputs, targets))
    return fit(model.predict, first, inputs, targets, training)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "linear" else pytest.mark.slow) for name in MODELS
])  # fmt: skip
def test_batched_training_equals_separate_training(name: str) -> None:
    together = fit_doubles(name, slice(None))
    assert len(together.epochs.unique()) > 1  # so some models left the batch early
    for i in range(6):
        single = fit_doubles(name, slice(i, i + 1))
        assert single.epochs.item() == together.epochs[i]
        torch.testing.assert_close(single.predictions[0], together.predictions[i])
        torch.testing.assert_close(single.losses[0], together.losses[i])


def test_the_predicted_target_is_not_used() -> None:
    assert torch.equal(
        fit_doubles("linear", slice(None)).predictions,
        fit_doubles("linear", slice(None), targets_change=5.0).predictions,
    )


def test_training_is_plain_adam_with_the_stopping_rule() -> None:
    """One model with one weight, y = w x, for all segments equals a loop over torch's Adam."""
    inputs = torch.randn(3, 20, 2, generator=torch.Generator().manual_seed(1))
    targets, training = 3 * inputs, Training(0.1, 0.02, 2, 500)
    first = {"w": torch.zeros(1)}
    pairs = inputs.unsqueeze(0), targets.unsqueeze(0)
    fitted = fit(lambda p, x: p["w"].view(-1, 1, 1) * x, first, *pairs, training)
    weight = torch.zeros(1, requires_grad=True)
    adam = torch.optim.Adam([weight], lr=0.1)
    least, stale, epochs = float("inf"), 0, 0
    while stale < 2:
        loss = (weight * inputs - targets)[:, :-1].square().mean()
        stale = 0 if loss.item() <= least - 0.02 else stale + 1
        least, epochs, prediction = min(least, loss.item()), epochs + 1, weight * inputs[:, -1]
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert 2 < epochs < 500 and fitted.epochs.tolist() == [epochs]
    torch.testing.assert_close(fitted.predictions[0], prediction.detach())


def test_stopping_rule() -> None:
    stopping = Stopping(4, tolerance=0.1, patience=2)
    losses = [  # and the epoch at which the model is done
        ([5, 4, 3, 2, 1], None),
        ([5, 4.95, 4, 3.95, 4.5], 4),  # stalls once, falls, stalls
        ([5, 6, 5.5, 5.2, 4.95], 2),  # rises, then falls to where it was
        ([5, 4, *[float("nan")] * 3], 3),  # diverges
    ]
    for epoch, values in enumerate(zip(*(values for values, _ in losses))):
        expected = [end is not None and epoch >= end for _, end in losses]
        assert stopping.update(torch.tensor(values)).tolist() == expected


def test_the_start_with_the_least_training_loss_counts() -> None:
    losses = torch.tensor([3.0, 1.0, float("nan"), 2.0, 4.0, 5.0])  # 2 starts of 3 models
    fitted = Fit(torch.arange(12.0).view(6, 2), torch.arange(6), losses)
    for found, values in zip(fitted.best_of(2), fitted):
        assert torch.equal(found, values[[3, 1, 5]])


@pytest.mark.parametrize("one_model", [False, True])
def test_every_start_gets_the_segments_in_order(one_model: bool, monkeypatch) -> None:
    def knows_the_last(predict, first, inputs, targets, training, progress) -> Fit:
        return Fit(targets[:, :, -1], torch.zeros(len(inputs)), torch.rand(len(inputs)))

    monkeypatch.setattr(experiment, "fit", knows_the_last)
    data = [synthetic.segments(synthetic.generate("tanh", a, 1, 40), 4) for a in (0.0, 1.0)]
    fits = experiment.fit_cells(MODELS["linear"], data, 3, 1, Training(), "", one_model)
    for one, fitted in zip(data, fits):
        assert len(fitted.losses) == (1 if one_model else 10)
        assert torch.equal(fitted.predictions.flatten(0, 1), one.targets[:, -1].float())


@pytest.mark.parametrize("starts", [1, 2])
def test_cells_fitted_together_equal_cells_fitted_separately(starts: int) -> None:
    training = Training(max_epochs=20)
    data = [
        synthetic.segments(synthetic.generate("tanh", alpha, 1, 60), 20) for alpha in (0.0, 1.0)
    ]
    together = experiment.fit_cells(MODELS["linear"], data, starts, 1, training, "")
    assert not torch.equal(together[0].predictions, together[1].predictions)
    for one, cell in zip(data, together):
        (single,) = experiment.fit_cells(MODELS["linear"], [one], starts, 1, training, "")
        torch.testing.assert_close(single.predictions, cell.predictions, rtol=1e-4, atol=1e-5)


def test_limit_of_epochs_is_reported() -> None:
    data = synthetic.segments(synthetic.generate("tanh", 0.5, seed=1, length=60), 30)
    model, training = MODELS["linear"], Training(tolerance=0.0, max_epochs=4)
    inputs, targets = data.inputs.unsqueeze(1), data.targets.unsqueeze(1)
    fitted = fit(model.predict, doubles(model, 2, 1), inputs, targets, training)
    measured = experiment.measure(fitted, data, training)
    assert measured["stopped_by_limit"] == 1.0 and measured["epochs"] == 4
    errors = fitted.predictions.flatten(0, 1) - data.targets[:, -1]
    assert measured["mspe"] == pytest.approx((errors**2).mean().item(), rel=1e-5)


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> dict:
    """Run a tiny experiment; return its results."""
    monkeypatch.setattr(sys, "argv", ["experiment.py", "--output", str(folder), *TINY, *arguments])
    experiment.main()
    return json.loads((folder / "results.json").read_text())


def test_results_table_and_figure(tmp_path, monkeypatch, capsys) -> None:
    results = run(monkeypatch, tmp_path, "--seeds", "2")
    assert len(results["cells"]) == 3 * 2 * 2
    for cell in results["cells"]:
        for name in ("linear", "nonlinear", "rsa"):
            assert math.isfinite(cell[name]["mspe"]) and cell[name]["mspe"] > 0
    (described,) = results["runs"]
    assert described["command"].endswith("run.sh " + " ".join(TINY) + " --seeds 2")
    assert str(tmp_path) not in json.dumps(results)
    assert described["versions"]["torch"] == version("torch")
    assert (tmp_path / "mspe_ratios.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    of_cell = [c for c in results["cells"] if c["activation"] == "relu" and c["alpha"] == 1]
    ratios = [c["rsa"]["mspe"] / c["nonlinear"]["mspe"] for c in of_cell]
    shown = f"{sum(ratios) / 2:5.3f} ({min(ratios):5.3f}-{max(ratios):5.3f})"
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("relu      1.00")]
    assert line.endswith(shown)
    (row,) = [
        r for r in results["summary"]["ratios"] if (r["activation"], r["alpha"]) == ("relu", 1)
    ]
    assert row["seeds"] == 2 and row["rsa"] == [sum(ratios) / 2, min(ratios), max(ratios)]
    best = [min(c[m]["mspe"] for m in ("linear", "rsa")) > c["nonlinear"]["mspe"] for c in of_cell]
    claim = results["summary"]["claims"]["nonlinear is best at alpha 1"]
    assert claim["relu"] == {"cells": 2, "holds": sum(best)} and claim["all"]["cells"] == 6


def test_the_records_have_the_summary_of_their_cells() -> None:
    records = sorted((EXAMPLE / "results").glob("*.json"))
    assert [r.stem for r in records] == ["literal", "one_model", "results"]
    for record in records:
        results = json.loads(record.read_text())
        assert results["summary"] == summary(results)


def test_an_interrupted_run_resumes(tmp_path, monkeypatch, capsys) -> None:
    options = ("--activations", "tanh", "relu", "--seeds", "1")
    whole = run(monkeypatch, tmp_path / "whole", *options)["cells"]
    saved = []

    def stop_at_second(file: Path, results: dict) -> None:
        if saved:
            raise KeyboardInterrupt
        saved.append(file)
        keep(file, results)

    keep = experiment.save
    monkeypatch.setattr(experiment, "save", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, tmp_path / "stopped", *options)
    monkeypatch.setattr(experiment, "save", keep)
    capsys.readouterr()
    resumed = run(monkeypatch, tmp_path / "stopped", *options)
    assert "3 cells to compute, 1 in" in capsys.readouterr().out
    assert resumed["cells"] == whole and len(resumed["runs"]) == 2
    again = run(monkeypatch, tmp_path / "stopped", *options)
    assert "0 cells to compute, 4 in" in capsys.readouterr().out and again == resumed


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--alpha-step 0.3", "--alpha-step 0.3; expected 1 / N"),
        ("--alpha-step 0", "--alpha-step 0.0; expected 1 / N"),
        ("--seeds 0", "--seeds 0; expected at least 1"),
        ("--segment-length 1", "--segment-length 1; expected at least 2"),
    ],
)
def test_invalid_options_are_refused(arguments, message, tmp_path, monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path / "none", *arguments.split())
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("damaged", ["[]", '{"settings": {}}', '{"sett'])
def test_a_damaged_record_is_named(damaged, tmp_path, monkeypatch) -> None:
    (tmp_path / "results.json").write_text(damaged)
    with pytest.raises(SystemExit, match="error: .*results.json is damaged.*remove it"):
        run(monkeypatch, tmp_path, "--activations", "tanh", "--seeds", "1")


def test_cells_of_different_settings_are_not_mixed(tmp_path, monkeypatch) -> None:
    options = ("--activations", "tanh", "--seeds", "1")
    run(monkeypatch, tmp_path, *options)
    before = (tmp_path / "results.json").read_bytes()
    with pytest.raises(SystemExit, match="Choose another --output"):
        run(monkeypatch, tmp_path, *options, "--lr", "0.5")
    with (
        hold(tmp_path / LOCK),
        pytest.raises(SystemExit, match=f"error: {tmp_path} is in use by another run; wait, or"),
    ):
        run(monkeypatch, tmp_path, *options, "--seeds", "2")
    assert (tmp_path / "results.json").read_bytes() == before
