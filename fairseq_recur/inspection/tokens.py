"""Converting between text and tokens with the options of fairseq's tokenizers and BPEs."""

from argparse import Namespace

from fairseq.data import Dictionary, encoders
from fairseq.tasks.translation import TranslationTask
from fairseq.tokenizer import tokenize_line
from torch import Tensor

from fairseq_recur.errors import ConfigError


class Tokens:
    """Converts text to tokens and back.

    Args:
        args: the options of fairseq's tokenizers and BPEs

    Raises:
        ConfigError: an option, a file or a library is missing, or a file is another library's
    """

    def __init__(self, args: Namespace) -> None:
        try:
            self.tokenizer = encoders.build_tokenizer(args)
            self.bpe = encoders.build_bpe(args)
        # These are the libraries' reactions to an unsuitable file; subword-nmt exits.
        except (
            ImportError, LookupError, OSError, RuntimeError, ValueError, SystemExit
        ) as error:  # fmt: skip
            raise ConfigError(
                f"--tokenizer {args.tokenizer} or --bpe {args.bpe} cannot be used: {error}; "
                "correct its options and files, or install it"
            ) from error
        # GPT-2's symbols are numbers; those of the other BPEs are readable.
        self.decodes_symbols = args.bpe == "gpt2"

    def encode(self, option: str, text: str, dictionary: Dictionary) -> tuple[Tensor, list[str]]:
        """Encode a text.

        Returns:
            (L,) int64 with the end of the sentence, and the words

        Raises:
            ConfigError: the text, which *option* gave, has no words
        """
        for encoder in (self.tokenizer, self.bpe):
            text = text if encoder is None else encoder.encode(text)
        words = tokenize_line(text)
        if not words:
            raise ConfigError(f"{option} has no words; give a sentence")
        ids = dictionary.encode_line(" ".join(words), add_if_not_exist=False)
        return ids.long(), words

    def source(self, task: TranslationTask, text: str) -> tuple[Tensor, list[str]]:
        """Encode a source as the task passes it to a model: with its prefix, and truncated."""
        ids, words = self.encode("--source", text, task.source_dictionary)
        data = task.build_dataset_for_inference([ids], [len(ids)])
        read = data.collater([data[0]])["net_input"]["src_tokens"][0]
        return read, [*(getattr(task, "prefix", None) or []), *words]

    def labels(self, tokens: Tensor, dictionary: Dictionary, words: list[str]) -> list[str]:
        """Return the tokens' symbols; an unknown token is followed by its word, if known."""
        symbols = [dictionary[token] for token in tokens.tolist()]
        for index, token in enumerate(tokens.tolist()):
            if token == dictionary.unk() and index < len(words):
                symbols[index] = f"{symbols[index]} {words[index]}"
            elif self.decodes_symbols and symbols[index].isdecimal():
                symbols[index] = self.bpe.decode(symbols[index]).replace(" ", "\u2581")
        return symbols

    def decode(self, line: str) -> str:
        """Convert a line of symbols to text."""
        for encoder in (self.bpe, self.tokenizer):
            line = line if encoder is None else encoder.decode(line)
        return line
