"""Processes: how torchrun's environment is translated, and what is refused."""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fairseq import options as train_options
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.dataclass.configs import DistributedTrainingConfig, FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from omegaconf import OmegaConf

from fairseq_recur.errors import ConfigError
from tests.series import SPLIT, WINDOWS, write_series

VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in VARIABLES or name.startswith("SLURM_"):
            monkeypatch.delenv(name)


def launch(
    monkeypatch: pytest.MonkeyPatch, world: int, rank: int, local: int | None = None
) -> None:
    values = ["localhost", "29501", world, rank, rank if local is None else local]
    for name, value in zip(VARIABLES, values):
        monkeypatch.setenv(name, str(value))


def options(**changes: Any) -> Any:
    cfg = OmegaConf.structured(DistributedTrainingConfig(distributed_world_size=1))
    OmegaConf.set_struct(cfg, True)
    cfg.tpu = False
    for name, value in changes.items():
        cfg[name] = value
    return cfg


def test_one_process_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = options()
    distributed_utils.infer_init_method(cfg)
    assert cfg.distributed_init_method is None
    launch(monkeypatch, world=1, rank=0)
    distributed_utils.infer_init_method(cfg)
    assert cfg.distributed_init_method is None


@pytest.mark.parametrize("given_world", [1, 2, 8])
def test_torchrun_without_a_gpu(monkeypatch: pytest.MonkeyPatch, given_world: int) -> None:
    launch(monkeypatch, world=2, rank=1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    cfg = options(distributed_world_size=given_world)
    distributed_utils.infer_init_method(cfg)
    assert cfg.distributed_init_method == "env://" and cfg.distributed_no_spawn
    assert (cfg.distributed_world_size, cfg.distributed_rank, cfg.device_id) == (2, 1, 0)


def test_torchrun_with_gpus_on_two_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, world=16, rank=13, local=5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    cfg = options(distributed_world_size=8)
    distributed_utils.infer_init_method(cfg)
    assert (cfg.distributed_world_size, cfg.distributed_rank, cfg.device_id) == (16, 13, 5)
    launch(monkeypatch, world=16, rank=13)
    monkeypatch.delenv("LOCAL_RANK")
    distributed_utils.infer_init_method(cfg := options())
    assert cfg.device_id == 5


def test_an_explicit_method_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, world=2, rank=1)
    cfg = options(distributed_init_method="tcp://localhost:1", distributed_world_size=4)
    distributed_utils.infer_init_method(cfg)
    assert (cfg.distributed_world_size, cfg.distributed_rank) == (4, 0)
    assert cfg.distributed_init_method == "tcp://localhost:1"


@pytest.mark.parametrize("port", [-1, 29500])
def test_two_processes_without_a_launcher(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="Use torchrun --nproc_per_node 2"):
        distributed_utils.infer_init_method(
            options(distributed_world_size=2, distributed_port=port)
        )


def call_main(monkeypatch: pytest.MonkeyPatch, cpu: bool, cuda: bool, **changes: Any) -> Any:
    """What `main` gets from call_main, with the start of the processes left out."""
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(distributed_utils, "distributed_main", lambda i, m, cfg, kw: m(cfg))
    cfg = OmegaConf.create({"common": {"cpu": cpu, "tpu": False}})
    cfg.distributed_training = options(**changes)
    distributed_utils.call_main(cfg, seen.append)
    return seen[0].distributed_training


@pytest.mark.parametrize(
    "cpu, cuda, backend",
    [(True, True, "gloo"), (True, False, "gloo"), (False, False, "gloo"), (False, True, "nccl")],
)
def test_the_backend(monkeypatch: pytest.MonkeyPatch, cpu: bool, cuda: bool, backend: str) -> None:
    assert call_main(monkeypatch, cpu, cuda).distributed_backend == backend


def test_env_takes_the_rank_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, world=2, rank=1)
    cfg = call_main(monkeypatch, True, False, distributed_init_method="env://")
    assert (cfg.distributed_world_size, cfg.distributed_rank) == (2, 1)
    assert cfg.distributed_no_spawn


def test_ddp_on_the_cpu_gets_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    torch_class = torch.nn.parallel.DistributedDataParallel
    assert issubclass(distributed_fairseq_model.DistributedDataParallel, torch_class)
    monkeypatch.setattr(torch_class, "__init__", lambda self, module, **kw: seen.update(kw))
    options = {"device_ids": [1], "output_device": 1, "bucket_cap_mb": 25}
    distributed_fairseq_model.DistributedDataParallel(module=torch.nn.Linear(1, 1), **options)
    assert seen == {"device_ids": None, "output_device": None, "bucket_cap_mb": 25}
    distributed_fairseq_model.DistributedDataParallel(
        module=torch.nn.Linear(1, 1, device="meta"), **options
    )
    assert seen == options


def test_a_trainer_that_torchrun_started_without_joining_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fairseq.trainer import Trainer

    cfg = OmegaConf.structured(FairseqConfig)
    launch(monkeypatch, world=2, rank=0)
    cfg.distributed_training.distributed_world_size = 1
    with pytest.raises(ConfigError, match="torchrun started 2 processes, and each would train"):
        Trainer(cfg, None, None, None)


def test_call_main_without_a_configuration_group() -> None:
    with pytest.raises(AttributeError, match="no attribute 'distributed_training'"):
        distributed_utils.call_main(Namespace(), print)


@pytest.mark.parametrize(
    "flags", ["--task summarization --eval-rouge", "--task time_series_forecasting"]
)
def test_a_rank_without_a_batch_validates_nothing(tmp_path: Path, flags: str) -> None:
    """fairseq-validate gives it an empty one, whatever the task."""
    words = Dictionary()
    for side in ("src", "tgt"):
        words.save(str(tmp_path / f"dict.{side}.txt"))
    given = [str(tmp_path), "-s", "src", "-t", "tgt"]
    if "series" in flags:
        given = ["--series-file", str(write_series(tmp_path / "x.csv")), *SPLIT, *WINDOWS]
    parser = train_options.get_training_parser(flags.split()[1])
    given += [*flags.split(), "--arch", "rsa_informer"]
    args = train_options.parse_args_and_arch(parser, given)
    task = tasks.setup_task(convert_namespace_to_omegaconf(args).task)

    def criterion(model: None, sample: dict[str, Any]) -> tuple[Any, int, dict[str, Any]]:
        return sample["target"], 1, {"loss": 2.0}

    assert task.valid_step({}, Mock(), criterion) == (0.0, 0, {})
    if "series" in flags:
        assert task.valid_step({"target": 3.0}, Mock(), criterion) == (3.0, 1, {"loss": 2.0})
