"""What is built from this tree: the contents and the metadata of the sdist and the wheel."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from hatchling.build import build_sdist, build_wheel
from packaging.requirements import Requirement

import plugrl_gym
from tests.support.commands import ROOT

VERSION = plugrl_gym.__version__
INFO = f"plugrl_gym-{VERSION}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built from the sdist, as ``python -m build`` does."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        sdist = folder / build_sdist(str(folder))
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        patch.chdir(folder / sdist.name.removesuffix(".tar.gz"))
        built = folder / build_wheel(str(folder))
    with zipfile.ZipFile(built) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_bytes(wheel.read(f"{INFO}/METADATA"))


def of_the_package() -> set[str]:
    """The files of the package that git would take."""
    found = (path for path in (ROOT / "plugrl_gym").rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if not name.startswith(f"{INFO}/")}
    assert names == of_the_package()
    assert "plugrl_gym/py.typed" in names
    assert "plugrl_gym/agents/sb3/settings/presets/ppo.toml" in names
    assert not {"servers", "tests", "notebooks"} & {Path(name).parts[1] for name in names}


def test_the_wheel_is_for_every_system(wheel: zipfile.ZipFile) -> None:
    assert Path(wheel.filename or "").name == f"plugrl_gym-{VERSION}-py3-none-any.whl"
    assert b"Root-Is-Purelib: true" in wheel.read(f"{INFO}/WHEEL")


def test_the_wheel_brings_the_command_and_the_pytest_plugin(wheel: zipfile.ZipFile) -> None:
    entries = wheel.read(f"{INFO}/entry_points.txt").decode().split()
    assert entries == [
        *("[console_scripts]", "plugrl-gym", "=", "plugrl_gym.__main__:main"),
        *("[pytest11]", "plugrl", "=", "plugrl_gym.conformance.pytest_plugin"),
    ]


def test_the_base_install_is_small(metadata: Message) -> None:
    required = map(Requirement, metadata.get_all("Requires-Dist") or [])
    assert {one.name for one in required if one.marker is None} == {
        *("gymnasium", "msgpack", "numpy", "tqdm", "websockets")
    }


def test_every_extra_is_told_and_all_has_them(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert {"contrib", "docs", "metrics", "minari", "notebooks", "plot", "sb3", "video"} <= extras
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist") or []]
    for extra in extras - {"envpool"}:
        own = {one.name for one in required if one.marker and one.marker.evaluate({"extra": extra})}
        whole = {
            one.name for one in required if one.marker and one.marker.evaluate({"extra": "all"})
        }
        assert own <= whole, extra


def test_the_metadata_say_what_it_is(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("plugrl-gym", VERSION)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"
    assert metadata.get_all("License-File") == [
        "LICENSE",
        "plugrl_gym/server/page/vendor/uPlot.LICENSE",
    ]
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload(decode=True)
    assert isinstance(description, bytes)
    assert description.decode() == (ROOT / "README.md").read_text(encoding="utf-8")
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    for minor in range(11, 15):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers
        assert f'"3.{minor}"' in workflow
    assert all(f"{system}-latest" in workflow for system in ("ubuntu", "macos", "windows"))
