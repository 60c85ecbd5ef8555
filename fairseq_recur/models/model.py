"""The one encoder-decoder whose parts are exchangeable."""

from argparse import ArgumentParser

from fairseq.data import Dictionary
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

from fairseq_recur.compat import model_options
from fairseq_recur.models.base import RecurrentModel
from fairseq_recur.models.check import check_config
from fairseq_recur.models.config import FOLLOWS, RecurrentTransformerConfig
from fairseq_recur.models.decoder import RecurrentTransformerDecoder
from fairseq_recur.models.encoder import RecurrentTransformerEncoder
from fairseq_recur.models.flags import read_numbers
from fairseq_recur.models.t5 import T5Decoder, T5Encoder
from fairseq_recur.modules.t5_projections import is_t5


class RecurrentTransformerModel(RecurrentModel, TransformerModelBase):
    """fairseq's Transformer with slots; each preset is a subclass with its own defaults."""

    config_class = RecurrentTransformerConfig

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the model's flags, without defaults: those are the preset's dataclass's.

        fairseq makes of an option that is true a flag that turns it off: a BART recipe's
        ``--share-all-embeddings`` would turn off what the preset has. So the flags are
        those of the dataclass without a preset, in which nothing is on.
        """
        gen_parser_from_dataclass(parser, RecurrentTransformerConfig(), delete_default=True)
        read_numbers(parser, FOLLOWS)

    @classmethod
    def build_model(cls, cfg: DictConfig, task: FairseqTask) -> "RecurrentTransformerModel":
        """Build the model for a task with a source and a target dictionary.

        Raises:
            ConfigError: listing every option that cannot be used
        """
        options = model_options(cfg, task)
        preset = cls.config_class()
        check_config(options, preset, task.source_dictionary, task.target_dictionary)
        model = super().build_model(TransformerConfig.from_namespace(options), task)
        model.show_parts(options.monitor_interval)
        return model

    @classmethod
    def build_embedding(
        cls,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_dim: int,
        path: str | None = None,
    ) -> nn.Embedding:
        """The embedding matrix; T5's begins with deviation 1 in all of its rows."""
        embedding = super().build_embedding(cfg, dictionary, embed_dim, path)
        if is_t5(cfg) and not path:
            nn.init.normal_(embedding.weight)
        return embedding

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> RecurrentTransformerEncoder:
        """The encoder with its parts."""
        encoder = T5Encoder if is_t5(cfg) else RecurrentTransformerEncoder
        return encoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> RecurrentTransformerDecoder:
        """The decoder with its parts."""
        decoder = T5Decoder if is_t5(cfg) else RecurrentTransformerDecoder
        return decoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)
