"""Pictures to embeddings: networks, pooling, whitening, and whole folders of pictures."""

# Nothing here imports torch: a worker that decodes pictures should start at once.
from gqe.extraction.extracting import Extraction, extract
from gqe.extraction.lite0 import Lite0
from gqe.extraction.network import Network, open_network
from gqe.extraction.pictures import Picture, open_picture, pictures_of_folder, pictures_of_list
from gqe.extraction.record import Describer, ExtractionRecord, read_record
from gqe.extraction.whitening import (
    Whitening,
    fit,
    fit_pairs,
    load_whitening,
    pairs_of_labels,
    save_whitening,
)

__all__ = [
    "Describer",
    "Extraction",
    "ExtractionRecord",
    "Lite0",
    "Network",
    "Picture",
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
