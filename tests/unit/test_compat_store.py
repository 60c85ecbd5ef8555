"""Hydra's store keeps the dataclasses of the presets, and makes a node of one when it is loaded."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import pytest
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from fairseq_recur.models.presets import KINDS, register_presets
from tests.conftest import OURS


@dataclass
class Options:
    size: int = 3


@pytest.fixture
def store() -> Iterator[ConfigStore]:
    store = ConfigStore.instance()
    yield store
    store.repo.pop("test", None)
    store.repo.pop("test.yaml", None)


def test_no_preset_becomes_a_node_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    structured, made = OmegaConf.structured, []

    def counted(node: object, *args: object, **kwargs: object) -> object:
        made.append(node)
        return structured(node, *args, **kwargs)

    monkeypatch.setattr(OmegaConf, "structured", counted)
    register_presets()
    copy = deepcopy(ConfigStore.instance())  # as hydra does for each configuration
    assert made == sum(len(presets) for _, presets in KINDS) * [{}]
    assert copy.repo["model"].keys() >= {f"{name}.yaml" for name in OURS}
    ConfigStore.instance().load(f"model/{OURS[0]}.yaml")
    assert type(made[-1]) is MODEL_DATACLASS_REGISTRY[OURS[0]]


@pytest.mark.parametrize(
    "group, path", [(None, "test.yaml"), ("test/inner", "test/inner/test.yaml")]
)
def test_a_loaded_node_is_hydras(store: ConfigStore, group: str | None, path: str) -> None:
    store.store(name="test", node=Options(5), group=group, package="here", provider="tests")
    found = store.load(path)
    assert (found.name, found.group, found.package) == ("test.yaml", group, "here")
    assert found.provider == "tests"
    assert type(found.node) is DictConfig and OmegaConf.get_type(found.node) is Options
    found.node.size = 7
    assert store.load(path).node == {"size": 5}


def test_what_is_no_dataclass_is_stored_as_it_is(store: ConfigStore) -> None:
    store.store(name="test", node={"size": 4})
    assert store.load("test.yaml").node == {"size": 4}
