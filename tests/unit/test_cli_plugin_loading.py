"""--user-dir: given once, twice, in both spellings, with another plug-in, with two."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import fairseq_recur
from fairseq_recur.cli.plugin_loading import add_option, add_override
from fairseq_recur.errors import ConfigError

OWN = str(Path(fairseq_recur.__file__).resolve().parent)


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--user-dir", OWN],
        [f"--user-dir={OWN}"],
        ["--user-dir", OWN + "/", f"--user-dir={OWN}"],
    ],
)
def test_own_folder_is_there_once(given: list) -> None:
    assert add_option(["data", *given, "--lr", "1"]) == (
        ["data", "--lr", "1", "--user-dir", OWN],
        None,
    )


def test_own_folder_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "plugin"
    link.symlink_to(OWN)
    assert add_option(["--user-dir", str(link)]) == (["--user-dir", OWN], None)


def test_another_plugin_is_kept(tmp_path: Path) -> None:
    other = str(tmp_path)
    for given in (["--user-dir", other], ["--user-dir", OWN, f"--user-dir={other}"]):
        assert add_option([*given, "data"]) == (["data", "--user-dir", other], other)


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    two = [tmp_path / "one", tmp_path / "two"]
    for folder in two:
        folder.mkdir()
    file = tmp_path / "plugin.py"
    file.touch()
    for given, message in (
        ([f"--user-dir={folder}" for folder in two], "takes one plug-in"),
        (["--user-dir", str(tmp_path / "none")], "no such folder"),
        (["--user-dir", str(file)], "is a file; expected a folder"),
        (["--user-dir"], "expected a folder"),
        (["--user-dir", "--lr"], "expected a folder"),
        (["--user-dir="], "expected a folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            add_option(given)


def user_dir_for_hydra(argv: list) -> str:
    """What hydra understands of the override."""
    (override,) = OverridesParser.create().parse_overrides(argv[-1:])
    assert override.key_or_group == "common.user_dir"
    return override.value()


def test_hydra_gets_the_own_folder_once() -> None:
    for given in ([], [f"common.user_dir={OWN}"], [f"+common.user_dir='{OWN}'"]):
        argv, foreign = add_override(["model=x", *given])
        assert argv[:-1] == ["model=x"] and foreign is None
        assert user_dir_for_hydra(argv) == OWN


def test_hydra_gets_another_plugin_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "it's, a [plug=in]"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    argv, foreign = add_override([f"common.user_dir={other.name}"])
    assert foreign == other.name
    assert user_dir_for_hydra(argv) == str(other)  # hydra changes the current folder
    with pytest.raises(ConfigError, match="takes one plug-in"):
        add_override([f"common.user_dir={other}", f"common.user_dir={tmp_path}"])


@pytest.mark.parametrize("spelling", ["--config-dir {0} --config-name c", "-cd={0} -cn=c.yaml"])
def test_a_configuration_file_keeps_its_plugin(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "c.yaml").write_text("common:\n  user_dir: ${oc.env:PLUGIN}\n")
    given = spelling.format(tmp_path).split()
    assert add_override(given) == (given, "${oc.env:PLUGIN}")
    (tmp_path / "c.yaml").write_text("common:\n  seed: 1\n")
    assert user_dir_for_hydra(add_override(given)[0]) == OWN
    (tmp_path / "c.yaml").write_text("common: [seed\n")
    with pytest.raises(ConfigError, match=r"c\.yaml is not YAML"):
        add_override(given)


@pytest.mark.parametrize(
    "given", ["-cn typo", "--config-dir={0} --config-name=typo", "-cp {0} -cn typo"]
)
def test_a_misspelled_configuration_is_refused(tmp_path: Path, given: str) -> None:
    """hydra would know the name, because fairseq registers its defaults under it."""
    (tmp_path / "c.yaml").touch()
    searched = f"{tmp_path} has c.yaml" if "{0}" in given else "fairseq/config has config.yaml"
    with pytest.raises(ConfigError, match=f"--config-name typo: no file typo.yaml; .*{searched}"):
        add_override(given.format(tmp_path).split())
    for known in (["-cn", "config"], ["-cp", str(tmp_path)], ["-cp", "pkg://x", "-cn", "typo"]):
        assert user_dir_for_hydra(add_override(known)[0]) == OWN
    with pytest.raises(ConfigError, match="no folder none"):
        add_override(["--config-dir", "none", "--config-name", "c"])
