"""The flags of all countries: public-domain pictures out of an npm archive, by ISO code.

Fetched once into the cache as other parts are (`assets`): checked against its sha256, unpacked
and put in place by one rename.
"""

from __future__ import annotations

import os
import tarfile
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath

from skipqa import assets
from skipqa.assets import Report
from skipqa.errors import UserError

PACKAGE, VERSION = "svg-country-flags", "1.2.10"
SHA256 = "2576650b4568c8ee1a2a6ddaa45c0246be16735f229bb40b1a0a6f40424e5213"
MEGABYTES = 6
FOLDER = "package/png250px"
REGISTRY = "https://registry.npmjs.org"  # npm's own variable for another one is NPM_CONFIG_REGISTRY


def fetch(report: Report = lambda _: None) -> Path:
    """The folder of `fr.png` and the others, downloading them the first time."""
    target = assets.home() / "assets" / f"{PACKAGE}-{SHA256[:8]}"
    if target.is_dir():
        return target
    with assets.building(target) as partial:
        report(f"downloading {PACKAGE} {VERSION} ({MEGABYTES} MB)")
        archive = partial / "archive.tgz"
        registry = os.environ.get("NPM_CONFIG_REGISTRY", REGISTRY).rstrip("/")
        url = f"{registry}/{PACKAGE}/-/{PACKAGE}-{VERSION}.tgz"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                archive.write_bytes(response.read())
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise UserError(f"could not download {PACKAGE} {VERSION}: {error}") from error
        if assets.sha256_of(archive) != SHA256:
            raise UserError(
                f"{PACKAGE} {VERSION} fails its sha256 check: the registry served "
                "other bytes than the ones this release was made with"
            )
        with tarfile.open(archive) as members:
            for member in members:
                path = PurePosixPath(member.name)
                file = members.extractfile(member) if member.isfile() else None
                if file is not None and path.parent == PurePosixPath(FOLDER):
                    (partial / path.name).write_bytes(file.read())
        archive.unlink()
    return target
