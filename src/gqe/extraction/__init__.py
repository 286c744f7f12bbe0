"""Pictures to embeddings: networks, pooling, whitening, and whole folders of pictures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gqe.extraction.decoding import Picture
    from gqe.extraction.extracting import Extraction, extract
    from gqe.extraction.listing import pictures_of_folder, pictures_of_list
    from gqe.extraction.lite0 import Lite0
    from gqe.extraction.network import Network
    from gqe.extraction.networks import open_network
    from gqe.extraction.pictures import open_picture
    from gqe.extraction.record import Describer, Record, read_record
    from gqe.extraction.whitening import Whitening, fit, fit_pairs, pairs_of_labels
    from gqe.extraction.whitening_files import load_whitening, save_whitening

__all__ = [
    "Describer",
    "Extraction",
    "Lite0",
    "Network",
    "Picture",
    "Record",
    "Whitening",
    "extract",
    "fit",
    "fit_pairs",
    "load_whitening",
    "open_network",
    "open_picture",
    "pairs_of_labels",
    "pictures_of_folder",
    "pictures_of_list",
    "read_record",
    "save_whitening",
]

# Imported when first used: a worker that decodes pictures should start at once.
_HOMES = {
    "Describer": "record",
    "Extraction": "extracting",
    "Lite0": "lite0",
    "Network": "network",
    "Picture": "decoding",
    "Record": "record",
    "Whitening": "whitening",
    "extract": "extracting",
    "fit": "whitening",
    "fit_pairs": "whitening",
    "load_whitening": "whitening_files",
    "open_network": "networks",
    "open_picture": "pictures",
    "pairs_of_labels": "whitening",
    "pictures_of_folder": "listing",
    "pictures_of_list": "listing",
    "read_record": "record",
    "save_whitening": "whitening_files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gqe.extraction' has no attribute {name!r}")
    value = getattr(import_module(f"gqe.extraction.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
