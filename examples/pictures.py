"""A folder of pictures: described, indexed, searched, and shown as a page.

    python examples/pictures.py my-pictures my-pictures/one.jpg

Needs `pip install 'gqe[extract]'`. A second run with the same folder uses what the first one wrote.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gqe
from gqe.extraction import Describer, extract, open_network, pictures_of_folder, read_record
from gqe.extraction.record import copy_record
from gqe.formats import read_vectors


def main() -> None:
    """Search a folder with a picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="Pictures, with all in it.")
    parser.add_argument("query", type=Path, help="The picture to search with.")
    parser.add_argument(
        "--work", type=Path, default=Path("picture-search"), help="Where to keep what is made."
    )
    parser.add_argument("--results", type=int, default=10)
    arguments = parser.parse_args()

    vectors, index_folder = arguments.work / "vectors.npy", arguments.work / "index"
    if not index_folder.exists():
        arguments.work.mkdir(exist_ok=True)
        extract(pictures_of_folder(arguments.folder), vectors, open_network("lite0"), folder=arguments.folder)
        names = vectors.with_suffix(".names.txt").read_text(encoding="utf-8").splitlines()
        gqe.Index.build(read_vectors(vectors), "universal", index_folder, ids=names)
        copy_record(vectors, index_folder)  # so that `gqe search` and `gqe serve` can search by picture

    index = gqe.Index.open(index_folder)
    query = Describer(read_record(vectors))([arguments.query])[0]
    for title, expand in (("before", False), ("after", True)):
        found = index.search(query, arguments.results, expand=expand)
        print(f"{title}: {', '.join(name for name in found.ids if name is not None)}")
    print(f"in a browser: gqe serve {index_folder} --pictures {arguments.folder}")


if __name__ == "__main__":
    main()
