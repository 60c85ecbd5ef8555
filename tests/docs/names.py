"""What pages call the labels of their records, where the two differ; see tests/docs/records.py."""

from pathlib import Path

RSA = {"I": "5,0,0,0,0,0", "II": "3,0,0,2,0,0", "III": "3,1,1,0,0,0", "IV": "3,0,0,0,1,1"}
HOSTS = ("informer", "log_sparse", "xl_forecaster")
WITH_AND_WITHOUT = {name: f"{name}|rsa_{name}" for name in HOSTS}
CONTINUED = "transformer|transformer_continued"
USUAL_SIZE = "pairs 32 & segments 4 & width 64"
ABLATIONS = {"I": "no `O_S`", "II": "no norm", "III": "no neuron", "IV": "the current segment"}

EVERYWHERE = {
    "ROUGE-1": "rouge1",
    "R-1": "rouge1",
    "R-2": "rouge2",
    "R-L": "rougeL",
    "R-Lsum": "rougeLsum",
    "difference from the Transformer": "difference",
    "p corrected": "corrected",
    "p, all seeds": "pooled & p",
    "p pooled": "pooled & corrected",
    "validation loss": "valid_loss",
    "paper": "accuracy|errors|published",
    "baseline": "transformer",
    "continued baseline": CONTINUED,
    "wider": "wider|transformer_large",
    "directional": "disan|directional",
    "directional self-attention": "disan|directional",
    "relative positions": "relpos|relative",
    "block-recurrent transformer": "brt_lm|rsa_brt_lm",
    "temporal latent bottleneck": "tlb_lm|rsa_tlb_lm",
    "first seven words": "first 7 words",
    "the three longest turns": "longest-3",
}

BY_PAGE: dict[str, dict[str, str]] = {
    "docs/results.md": {
        "full attention": "full_continued",
        "plain segments": "segmented_16",
        "SRformer": "srformer_16",
        "unit scale": "srformer_unit_16",
        "without them": "srformer_unit_III_16",
    },
    "docs/rsa.md": {
        **WITH_AND_WITHOUT,
        **{f"rsa_{name}": both for name, both in WITH_AND_WITHOUT.items()},
        "Transformer, translation (not in the paper)": "transformer|rsa|short_0",
        "transformer": "transformer|rsa|short_0",
        "rsa_transformer": "transformer|rsa|short_0",
        "Transformer, regular languages (table 2)": "counts",
        "Informer (tables 1 and 4)": "informer|rsa_informer",
        "LogSparse Transformer": "log_sparse|rsa_log_sparse",
        "Transformer-XL, text (table 3b, figure 4)": "xl_lm|rsa_xl_lm",
        "Block-Recurrent Transformer (table 3b, figures 5 and 12)": "brt_lm|rsa_brt_lm",
        **dict.fromkeys(("xl_lm", "rsa_xl_lm"), "xl_lm|rsa_xl_lm"),
        **dict.fromkeys(("brt_lm", "rsa_brt_lm"), "brt_lm|rsa_brt_lm"),
        "Transformer-XL, time series": "xl_forecaster|rsa_xl_forecaster",
        "temporal latent bottleneck (figure 5)": "tlb_lm|rsa_tlb_lm",
        "tlb_lm": "tlb_lm|rsa_tlb_lm",
        "rsa_tlb_lm": "tlb_lm|rsa_tlb_lm",
    },
    "docs/srformer.md": {  # decoding also counts the end of the sentence
        f"source, tokens {n}": f"source {n}|source {n + 1}.0" for n in (256, 512, 1024, 2048, 4096)
    },
    "examples/copy_task/README.md": {
        "400 updates": "400",
        "below 1": "loss & below 1",
        "last loss": "loss",
    },
    "examples/linear_and_nonlinear_rnn/README.md": {
        "alpha = 0: the linear RNN beats the nonlinear one": "linear beats nonlinear at alpha 0",
        "alpha = 1: the nonlinear RNN is best": "nonlinear is best at alpha 1",
        "alpha above 0.6: RSA beats the linear RNN": "RSA beats linear above alpha 0.6",
    },
    "examples/modeling_recurrence/README.md": {
        "top layer": "biarn",
        "1 step": "steps_1",
        **{f"{n} steps": f"steps_{n}" for n in (4, 8, 16)},
        "transformer_continued (in the paper, the baseline)": CONTINUED,
        "from scratch, learning rate 0.003": "transformer|biarn",
        "from the trained baseline, as in the paper": "transformer_continued|steps_8",
        "the same with 16 steps": "transformer_continued|steps_16",
        "from scratch, learning rate 0.0015": "transformer_lr|biarn_lr",
        "from scratch, dropout 0.2 instead of 0.1": "transformer_dropout|biarn_dropout",
    },
    "examples/recall/README.md": {
        "full attention": f"full & {USUAL_SIZE}",
        "plain segments": f"segmented & {USUAL_SIZE}",
        "xl": f"xl & {USUAL_SIZE}",
        "global": f"global & {USUAL_SIZE}",
        "SRformer, the paper's scale": f"paper & {USUAL_SIZE}",
        "SRformer, unit scale": f"unit & {USUAL_SIZE}",
        **{f"{n}: {what}": f"paper_{n}|unit_{n}" for n, what in ABLATIONS.items()},
        **{f"{n} pairs": f"pairs {n}" for n in (16, 64)},
        **{f"{n} segments": f"segments {n}" for n in (2, 8, 16)},
        **{f"{n} updates": f"update {n}" for n in (0, 200, 800)},
        "outside after 200": "update 200 & outside",
        "scale of the paper": "paper",
        "scale of one": "unit",
        "without its norm": "unit_II",
        "without its neuron": "unit_III",
        "fire": "spike",
        "membrane / thr": "membrane",
        "deviation": "membrane_sd",
        "thr": "threshold",
        "gradients of W, leak, thr": "gradient_linear|gradient_leak|gradient_threshold",
    },
    "examples/regular_languages/README.md": {
        "bin 0": "bin0",
        "bin 0: paper": "accuracy",
        "bin 1": "bin1",
        "bin 1: paper": "accuracy",
        "Transformer* (Dai)": "transformer_xl",
        "Transformer* (Shaw)": "transformer_relative",
        **{f"RSA {name}": f"rsa_{n}" for n, name in enumerate(RSA, 1)},
        **{f"RSA {name} ({heads})": f"rsa_{n}" for n, (name, heads) in enumerate(RSA.items(), 1)},
    },
    "examples/summarization/README.md": {
        "full attention": "full",
        "plain segments": "segmented_8|segmented_16|segmented_32",
        "plain segments 32": "segmented_32",
        "segmented": "segmented|segmented_16",
        "SRformer": "srformer_8|srformer_16|srformer_32|srformer",
        "the paper's scale": "srformer_8|srformer_16|srformer_32",
        "SRformer 8 10": "srformer_8",
        "SRformer 32 10": "srformer_32",
        "SRformer, unit scale": "srformer_unit_8|srformer_unit_16|srformer_unit_32",
        "xl": "xl|xl_16",
        "global": "global|global_16",
        "srformer_unit": "srformer_unit|srformer_unit_16",
        "srformer_unit_III": "srformer_unit_III_16",
        "8 tokens": "segmented_8|srformer_8|srformer_unit_8",
        "16": "segmented_16|srformer_16|srformer_unit_16",
        "32": "segmented_32|srformer_32|srformer_unit_32",
        "test, seeds 1, 2, 3": "test",
    },
    "examples/summarization/ectsum/README.md": {"the first 44 words": "lead-44"},
    "examples/summarization/qmsum/README.md": {"the first 71 words of the meeting": "lead-71"},
    "examples/summarization/samsum/README.md": {"the first 20 words": "lead-20"},
    "examples/time_series/README.md": {
        **WITH_AND_WITHOUT,
        "the paper's": "errors|deviations",
        "the paper's lowest MSE": "errors",
        "nothing": "ETTh1/24",
        "matrices in all rows": "all rows",
        "dropout of the mixed map": "mixed dropout",
        "shuffled windows": "shuffled",
        "a rate of 0.0005": "rate 0.0005",
        "an initial mu of 2": "gate 2",
        "an initial mu of 3": "gate 3",
        "Table 1": "errors",
        "lowest in Table 6": "heads",
        "with RSA": f"{'|'.join(f'rsa_{name}' for name in HOSTS)} & mse",
        "MAE with RSA": f"{'|'.join(f'rsa_{name}' for name in HOSTS)} & mae",
        "`linear` MSE": "linear & mse",
        "`dlinear` MSE": "dlinear & mse",
        "no dilated heads at all": "8,0,0,0,0,0|6,1,1,0,0,0|4,2,2,0,0,0|heads",
        "dilated cosine heads 0": "4,0,0,4,0,0|2,1,1,4,0,0|0,2,2,4,0,0|heads",
        "dilated cosine heads 1": "4,0,0,2,1,1|2,1,1,2,1,1|0,2,2,2,1,1|heads",
        "dilated cosine heads 2": "4,0,0,0,2,2|2,1,1,0,2,2|0,2,2,0,2,2|heads",
        "1": "",  # a number of heads, not a seed
        "2": "",
    },
}


def names_of(page: Path) -> dict[str, str]:
    """The names of a page, from the project's folder; its own before those of all."""
    return {**EVERYWHERE, **BY_PAGE.get(page.as_posix(), {})}
