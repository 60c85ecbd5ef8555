"""The one encoder-decoder whose parts are exchangeable."""

from argparse import ArgumentParser
from typing import Any

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

from fairseq_recur.compat import model_options
from fairseq_recur.errors import ConfigError
from fairseq_recur.models import config
from fairseq_recur.models.base import RecurrentModel
from fairseq_recur.models.decoder import RecurrentTransformerDecoder
from fairseq_recur.models.encoder import RecurrentTransformerEncoder
from fairseq_recur.models.pruning import prune_options
from fairseq_recur.models.t5 import T5Decoder, T5Encoder
from fairseq_recur.modules.part import scale_learning_rate
from fairseq_recur.modules.recurrence_encoder import RecurrenceEncoder
from fairseq_recur.modules.t5 import is_t5


class RecurrentTransformerModel(RecurrentModel, TransformerModelBase):
    """fairseq's Transformer with slots."""

    slots = staticmethod(config.encoder_decoder_slots)
    assemble = staticmethod(config.encoder_decoder_config)

    options: dict[str, Any]
    """The options that the model was built from, without references."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """As in `RecurrentModel.add_args`."""
        super().add_args(parser)
        for action in parser._actions:
            # Their default is a text, ${...}, so fairseq would read what is given as a text, too.
            if action.dest in config.FOLLOWS:
                action.type = int

    @classmethod
    def build_model(cls, cfg: DictConfig, task: FairseqTask) -> "RecurrentTransformerModel":
        """Build the model for a task with a source and a target dictionary.

        Raises:
            ConfigError: listing every option that cannot be used, or the task has no dictionaries,
                or two where the model needs one
        """
        for side in ("source", "target"):
            if not isinstance(getattr(task, f"{side}_dictionary", None), Dictionary):
                raise ConfigError(
                    f"{cls.__name__} turns text into text, and the task has no dictionary of its "
                    f"{side}; give --task translation, or another --arch"
                )
        options = model_options(cfg, task)
        cls.check_options(options)
        if options.share_all_embeddings and task.source_dictionary != task.target_dictionary:
            asked, remedy = "--share-all-embeddings", "leave it out, or "
            if cls.config_class().share_all_embeddings:
                asked, remedy = f"{cls.__name__} shares all embeddings", ""
            raise ConfigError(
                f"{asked}: the dictionaries of source and target differ; {remedy}preprocess with "
                "--joined-dictionary"
            )
        pruning = prune_options(options)
        model = super().build_model(TransformerConfig.from_namespace(options), task)
        model.options, model.pruning = vars(options), pruning
        model.observe_parts(options.monitor_interval)
        scale_learning_rate(model, RecurrenceEncoder.slot, options.recurrence_lr_scale)
        return model

    @classmethod
    def build_embedding(
        cls, cfg: TransformerConfig, dictionary: Dictionary, embed_dim: int, path: Any = None
    ) -> nn.Embedding:
        """The embedding matrix; T5's is initialised with deviation 1 in all of its rows."""
        embedding = super().build_embedding(cfg, dictionary, embed_dim)
        if is_t5(cfg):
            nn.init.normal_(embedding.weight)
        if path:
            utils.load_embedding(utils.parse_embedding(path), dictionary, embedding)
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
