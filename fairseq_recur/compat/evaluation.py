"""fairseq-eval-lm: no text is left out, and pieces become words."""

import inspect
from typing import Any

import numpy

from fairseq_recur.compat.registry import Function, mend, source_of
from fairseq_recur.errors import ConfigError

EVALUATED = "fairseq.tasks.language_modeling:LanguageModelingTask.eval_lm_dataloader"
PROGRAM = "fairseq_cli.eval_lm:eval_lm"

blocks = mend(
    "blocks of eval-lm",
    reason="blocks of --tokens-per-sample that are longer than the model's positions are left out, "
    "and the perplexity is that of the others",
    until="a fairseq whose eval_lm_dataloader ignores no invalid inputs",
    needed=lambda: "ignore_invalid_inputs=True" in source_of(EVALUATED),
)


@blocks.patch(EVALUATED)
def eval_lm_dataloader(load: Function, self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse a length of the blocks that would leave text out; with eos a block is a sentence."""
    given = inspect.signature(load).bind(self, dataset, *args, **kwargs)
    given.apply_defaults()
    positions, window = (given.arguments[name] for name in ("max_positions", "context_window"))
    if isinstance(positions, int) and self.args.sample_break_mode != "eos":
        asked = window + self.args.tokens_per_sample
        longest = window + int(numpy.max(dataset.sizes, initial=0))
        if min(asked, longest) > positions:
            raise ConfigError(
                f"--tokens-per-sample {asked}: blocks of up to {longest} tokens, of which the "
                f"model reads {positions}, so that text would be left out; give "
                f"--tokens-per-sample {positions}"
            )
    return load(self, dataset, *args, **kwargs)


pieces = mend(
    "pieces of eval-lm",
    reason="--remove-bpe alone is subword_nmt, and eval-lm looks for pieces that end in this word: "
    "it finds none, and the loss stays one of pieces",
    until="a fairseq whose eval_lm looks for @@",
    needed=lambda: "post_process.rstrip()" in source_of(PROGRAM),
)


@pieces.patch(PROGRAM)
def eval_lm(evaluate: Function, *args: Any, **kwargs: Any) -> Any:
    """Name the end of a piece."""
    given = inspect.signature(evaluate).bind(*args, **kwargs)
    if given.arguments.get("post_process") == "subword_nmt":
        given.arguments["post_process"] = "@@ "
    return evaluate(*given.args, **given.kwargs)
