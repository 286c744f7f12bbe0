"""What there is to fetch: the published files of each data set, their addresses, and where they go.

No owner publishes sizes or full checksums of these files. The networks carry the beginning of their SHA-256
in their names, as `torch.utils.model_zoo` checked it when they were published; that much is compared. For all
others the checksum of the first download is recorded, and every later download must equal it.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gqe.errors import InputError

_REVISITOP = "https://cmp.felk.cvut.cz/revisitop/data"
_CIRTORCH = "https://cmp.felk.cvut.cz/cnnimageretrieval/data"
_VGG = "https://www.robots.ox.ac.uk/~vgg/data"
_R1M = "http://ptak.felk.cvut.cz/revisitop/revisitop1m"

PICTURES = "pictures"
ROOT_VARIABLE = "GQE_DATA"
MIRROR_VARIABLE = "GQE_DATA_MIRROR"


@dataclass(frozen=True)
class File:
    """One published file.

    Attributes:
        name: its path within the folder of the data set.
        address: where its owner publishes it.
        part: "truth", "descriptors", "pictures" or "network"; pictures are fetched only when asked for.
        size: its exact number of bytes, where known; compared with what the server offers.
        sha256: the published checksum or its beginning, in lower case; empty where none is published.
        roughly: number of bytes for a table, where the exact one is not published.
        folder: for an archive, the folder its files go to.
        flat: whether folders within the archive are left out.
    """

    name: str
    address: str
    part: str
    size: int | None = None
    sha256: str = ""
    roughly: int | None = None
    folder: str | None = None
    flat: bool = False


@dataclass(frozen=True)
class Collection:
    """The files that make up one data set, in one folder of the data root.

    Attributes:
        name: what users type, and the name of the folder.
        about: a sentence.
        terms: what its owners say about its use.
        files: all its files.
    """

    name: str
    about: str
    terms: str
    files: tuple[File, ...]

    def select(self, pictures: bool) -> list[File]:
        """The files to fetch: all, or all but the pictures."""
        return [file for file in self.files if pictures or file.part != PICTURES]


def _revisited_collection(name: str, about: str, archives: tuple[tuple[str, int | None], ...]) -> Collection:
    features = f"{name}_resnet_rsfm120k_gem.mat"
    truth = f"gnd_{name}.pkl"
    files = [
        File(truth, f"{_REVISITOP}/datasets/{name}/{truth}", "truth", roughly=300_000),
        File(f"descriptors/{features}", f"{_REVISITOP}/features/{features}", "descriptors"),
    ]
    for path, roughly in archives:
        archive = path.rpartition("/")[2]
        files.append(File(archive, f"{_VGG}/{path}", PICTURES, roughly=roughly, folder="jpg", flat=True))
    terms = "pictures of Flickr users: Flickr's terms of use and the terms of access of VGG, Oxford"
    return Collection(name, about, terms, tuple(files))


def _network(path: str, architecture: str, about: str, roughly: int) -> Collection:
    file = path.rpartition("/")[2]
    name, _, digits = file.removesuffix(".pth").rpartition("-")
    item = File(file, f"{_CIRTORCH}/networks/{path}", "network", sha256=digits, roughly=roughly)
    return Collection(name, f"{architecture}, GeM{about}", "published with MIT-licensed code", (item,))


_SFM = "retrieval-SfM-120k"
_GL18 = ", whitening; trained on Google Landmarks 2018"
_RSFM = f", whitening; trained on {_SFM}"
_BESIDE = "; learned whitening beside the weights"

COLLECTIONS: dict[str, Collection] = {
    collection.name: collection
    for collection in (
        _revisited_collection(
            "roxford5k",
            "Revisited Oxford: 4,993 pictures and 70 queries (Radenović et al., CVPR 2018)",
            (("oxbuildings/oxbuild_images-v1.tgz", 1_938_238_004),),
        ),
        _revisited_collection(
            "rparis6k",
            "Revisited Paris: 6,322 pictures and 70 queries (Radenović et al., CVPR 2018)",
            (("parisbuildings/paris_1-v1.tgz", 1_269_538_001), ("parisbuildings/paris_2-v1.tgz", None)),
        ),
        Collection(
            "r1m",
            "1,001,001 distractor pictures for both (Radenović et al., CVPR 2018)",
            "pictures of Flickr users (YFCC100M): their Creative Commons licences",
            (
                File("revisitop1m.txt", f"{_R1M}/revisitop1m.txt", "truth"),
                *(
                    File(name, f"{_R1M}/jpg/{name}", PICTURES, folder="jpg")
                    for name in (f"revisitop1m.{number}.tar.gz" for number in range(1, 101))
                ),
            ),
        ),
        Collection(
            "rsfm120k",
            "retrieval-SfM-120k: 91,642 training, 6,403 validation pictures (Radenović et al., TPAMI 2018)",
            "pictures of Flickr users: Flickr's terms of use; no licence is stated",
            (
                File(f"{_SFM}.pkl", f"{_CIRTORCH}/train/dbs/{_SFM}.pkl", "truth"),
                File(f"{_SFM}-whiten.pkl", f"{_CIRTORCH}/train/dbs/{_SFM}-whiten.pkl", "truth"),
                File("ims.tar.gz", f"{_CIRTORCH}/train/ims/ims.tar.gz", PICTURES, folder="ims"),
            ),
        ),
        _network("gl18/gl18-tl-resnet101-gem-w-a4d43db.pth", "ResNet-101", _GL18, 187_000_000),
        _network(f"{_SFM}/rSfM120k-tl-resnet101-gem-w-a155e54.pth", "ResNet-101", _RSFM, 187_000_000),
        _network("gl18/gl18-tl-resnet50-gem-w-83fdc30.pth", "ResNet-50", _GL18, 111_000_000),
        _network(f"{_SFM}/rSfM120k-tl-resnet50-gem-w-97bf910.pth", "ResNet-50", _RSFM, 111_000_000),
        _network("gl18/gl18-tl-resnet152-gem-w-21278d5.pth", "ResNet-152", _GL18, 250_000_000),
        _network(f"{_SFM}/rSfM120k-tl-resnet152-gem-w-f39cada.pth", "ResNet-152", _RSFM, 250_000_000),
        _network(f"{_SFM}/retrievalSfM120k-resnet101-gem-b80fb85.pth", "ResNet-101", _BESIDE, 187_000_000),
    )
}


def collection(name: str) -> Collection:
    """A data set or network by name.

    Example:
        >>> [file.name for file in collection("roxford5k").select(pictures=False)]
        ['gnd_roxford5k.pkl', 'descriptors/roxford5k_resnet_rsfm120k_gem.mat']
    """
    if name not in COLLECTIONS:
        plain = re.sub(r"-(train|val)$", "", name.partition("+")[0].partition("@")[0])
        hint = f"did you mean {plain}? " if plain in COLLECTIONS else ""
        raise InputError(f"data: nothing is published as {name!r}; {hint}there are {', '.join(COLLECTIONS)}")
    return COLLECTIONS[name]


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all official data: `root`, else $GQE_DATA, else the cache folder of the platform.

    Example:
        >>> data_root("/data").as_posix()
        '/data'
    """
    chosen = os.fspath(root) if root is not None else os.environ.get(ROOT_VARIABLE, "")
    folder = Path(chosen).expanduser() if chosen else _platform_cache() / "gqe" / "data"
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is not a folder; give another with --root or ${ROOT_VARIABLE}")
    return folder


def download_address(collection: str, address: str) -> str:
    """The address to ask: the published one, or the same file below $GQE_DATA_MIRROR/COLLECTION.

    Only http and https are spoken, whatever the mirror or a redirection says.
    """
    mirror = os.environ.get(MIRROR_VARIABLE, "")
    if mirror:
        address = f"{mirror.rstrip('/')}/{collection}/{address.rpartition('/')[2]}"
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        source = f"${MIRROR_VARIABLE}" if mirror else "address"
        raise InputError(
            f"{source}: {address!r} is no http or https address; give one like https://host/data"
        )
    return address


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
