from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io

from gqe import InputError, datasets
from gqe.datasets import official
from gqe.datasets.official.descriptors import DescriptorTable
from gqe.datasets.official.distractors import join
from gqe.evaluation.benchmark import Bench
from gqe.formats import read_ground_truth, write_vectors
from gqe.methods import parse_method
from official_layouts import DATABASE, NAMES, QUERIES, QUERY, mat_bytes, place_truth, truth, unit

REAL = Path(__file__).parents[4] / "shared" / "benchmarks" / "roxford5k"


def mat(folder: Path) -> None:
    (folder / "gem.mat").write_bytes(mat_bytes())


def mat_73(folder: Path) -> None:
    with h5py.File(folder / "gem.mat", "w", userblock_size=512) as file:
        for name, matrix in {"X": DATABASE.T, "Q": QUERY.T}.items():
            file[name] = matrix.T  # MATLAB stores columns first
            file[name].attrs["MATLAB_class"] = np.bytes_("single")


def pickled(folder: Path) -> None:
    (folder / "gem.pkl").write_bytes(pickle.dumps({"query": QUERY, "db": DATABASE}))


def pickled_columns(folder: Path) -> None:
    (folder / "gem.pkl").write_bytes(pickle.dumps({"qvecs": QUERY.T, "vecs": DATABASE.T}, protocol=2))


def npz(folder: Path) -> None:
    np.savez(folder / "gem.npz", queries=QUERY, database=DATABASE)


def hdf5(folder: Path) -> None:
    with h5py.File(folder / "gem.h5", "w") as file:
        file["queries"], file["database"] = QUERY, DATABASE


def two_npy(folder: Path) -> None:
    np.save(folder / "a.npy", DATABASE)
    np.save(folder / "b.npy", QUERY)


def two_npy_columns(folder: Path) -> None:
    np.save(folder / "roxHD_index_fused_3s_cq.npy", np.ascontiguousarray(DATABASE.T))
    np.save(folder / "roxHD_query_fused_3s_cq.npy", np.ascontiguousarray(QUERY.T))


def query_and_gallery(folder: Path) -> None:
    for part, vectors in {"query": QUERY, "gallery": DATABASE}.items():
        (folder / part).mkdir()
        np.save(folder / part / "oxford5k_resnet_glob.npy", vectors)


def fvecs(folder: Path) -> None:
    write_vectors(folder / "x.fvecs", DATABASE)
    write_vectors(folder / "q.fbin", QUERY)


def one_table_with_names(folder: Path) -> None:
    order = np.random.default_rng(3).permutation(len(NAMES) + len(QUERIES))
    names = np.array([f"jpg/{name}.jpg" for name in NAMES + QUERIES])[order]
    np.save(folder / "all.npy", np.concatenate([DATABASE, QUERY])[order])
    (folder / "all.names.txt").write_text("\n".join(names) + "\n")


def two_tables_with_names(folder: Path) -> None:
    """All pictures whole, and the queries once more, cropped; in any order, with rows nobody asks for."""
    for part, names, vectors in (
        ("whole", NAMES + QUERIES + ["other"], np.concatenate([DATABASE, unit(4, seed=9)])),
        ("cropped", QUERIES, QUERY),
    ):
        order = np.random.default_rng(4).permutation(len(names))
        np.save(folder / f"{part}.npy", vectors[order])
        (folder / f"{part}.names.txt").write_text("\n".join(np.array(names)[order]) + "\n")


LAYOUTS = [
    mat,
    mat_73,
    pickled,
    pickled_columns,
    npz,
    hdf5,
    two_npy,
    two_npy_columns,
    query_and_gallery,
    fvecs,
    one_table_with_names,
    two_tables_with_names,
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GQE_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_benchmark(root: Path, layout: Callable[[Path], None]) -> None:
    layout(place_truth(root))
    data = datasets.load("roxford5k")
    np.testing.assert_array_equal(data.queries, QUERY)
    np.testing.assert_array_equal(data.database, DATABASE)
    assert data.ground_truth["gnd"][0]["easy"].tolist() == [0, 4]
    assert Bench(data).run(parse_method("aqe:k=2")).evaluation.main > 0


def test_descriptors_named_behind_the_data_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place_truth(root)
    mat(folder)
    np.savez(folder / "other.npz", queries=-QUERY, database=-DATABASE)
    with pytest.raises(InputError, match=r"holds gem\.mat, other\.npz; choose one"):
        datasets.load("roxford5k")
    np.save(folder / "third.npy", QUERY)
    with pytest.raises(InputError, match="choose one"):
        datasets.load("roxford5k")
    for source in ("gem.mat", "gem", str(folder / "gem.mat")):
        np.testing.assert_array_equal(datasets.load(f"roxford5k@{source}").database, DATABASE)
    np.testing.assert_array_equal(datasets.load("roxford5k@other").database, -DATABASE)
    np.save(root / "x.npy", DATABASE)
    np.save(root / "q.npy", QUERY)
    monkeypatch.chdir(root)
    for source in ("x.npy,q.npy", "q.npy, x.npy"):
        np.testing.assert_array_equal(datasets.load(f"roxford5k@{source}").queries, QUERY)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("roxford5k@absent.npy", "absent.npy: no such file"),
        ("roxford5k@wrong.npz", "is 7 x 5"),
        ("roxford5k@alone.npy", "give two files"),
        ("roxford5k@mixed.pkl", "holds no table"),
        ("roxford5k@alone.npy,wide.npy", "5 dimensions, the database 6|6 dimensions, the database 5"),
        ("roxford5k@broken.mat", "broken.mat"),
        ("roxford5k@names.npy", "names has 2 lines"),
        ("roxford5k@partly.npy", "no row for 'all_souls_000013' and 2 other"),
        ("rparis6k", "gqe data get rparis6k"),
    ],
)
def test_what_does_not_fit_is_named(root: Path, name: str, said: str) -> None:
    folder = place_truth(root)
    np.savez(folder / "wrong.npz", queries=unit(7), database=DATABASE)
    np.save(folder / "alone.npy", DATABASE)
    np.save(folder / "wide.npy", unit(3, 6))
    np.save(folder / "names.npy", DATABASE)
    (folder / "names.txt").write_text("a\nb\n")
    np.save(folder / "partly.npy", DATABASE)
    (folder / "partly.txt").write_text("\n".join(NAMES))
    (folder / "mixed.pkl").write_bytes(pickle.dumps({"query": [1, 2]}))
    (folder / "broken.mat").write_bytes(mat_bytes()[:200])
    source = name.replace(",", f",{folder}/") if "," in name else name
    with pytest.raises(InputError, match=said) as raised:
        datasets.load(source.replace("@", f"@{folder}/"))
    assert "\n" not in str(raised.value)


def test_without_descriptors_the_remedy_is_said(root: Path) -> None:
    place_truth(root)
    with pytest.raises(InputError, match=r"gqe data get roxford5k.*roxford5k@FILE"):
        datasets.load("roxford5k")


def test_names_of_official_sets() -> None:
    assert official.is_official("rparis6k@a.npy+r1m@parts")
    assert official.is_official("rsfm120k-train")
    assert not official.is_official("rsfm120k-val+r1m")
    assert not official.is_official("roxford5k.npz")
    assert not official.is_official(Path("town"))
    with pytest.raises(InputError, match="for testing"):
        official.load_training("roxford5k")
    with pytest.raises(InputError, match="training set"):
        official.load_benchmark("rsfm120k-train")


def distractors(root: Path, count: int = 12) -> np.ndarray:
    """Twelve parts, so that the order by number differs from that by name; every third lies on its side."""
    folder = root / "r1m" / "descriptors"
    folder.mkdir(parents=True)
    vectors = unit(count * 7, seed=5)
    for number in range(count):
        part = vectors[number * 7 : number * 7 + 7]
        if number % 3 == 0:
            np.save(folder / f"part{number + 1}.npy", np.ascontiguousarray(part.T))
        elif number % 3 == 1:
            (folder / f"part{number + 1}.pkl").write_bytes(pickle.dumps({"db": part}))
        else:
            scipy.io.savemat(folder / f"part{number + 1}.mat", {"X": part.T})
    return vectors


def test_distractors_stand_behind_the_database(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    mat(place_truth(root))
    vectors = distractors(root)
    data = datasets.load("roxford5k+r1m")
    np.testing.assert_allclose(data.database, np.concatenate([DATABASE, vectors]), atol=1e-6)
    assert data.name == "roxford5k+r1m"
    assert "84 distractors, the published set has 1001001" in caplog.text
    alone = Bench(datasets.load("roxford5k")).run(parse_method("none")).evaluation
    among = Bench(data).run(parse_method("none")).evaluation
    assert among.main < alone.main
    assert list(root.glob("joined/*")) == []


def test_the_order_of_the_parts(root: Path) -> None:
    mat(place_truth(root))
    vectors = distractors(root)
    np.save(root / "extra.npy", vectors[:4])
    data = datasets.load(f"roxford5k+r1m@{root / 'extra.npy'}")
    np.testing.assert_allclose(data.database[12:], vectors[:4], atol=1e-6)


def test_a_large_table_is_joined_on_disk_once(tmp_path: Path) -> None:
    parts = []
    for number in range(2):
        path = tmp_path / f"{number}.npy"
        np.save(path, 3 * unit(9, seed=number))  # not of unit length
        parts.append(DescriptorTable(path, "", np.load(path, mmap_mode="r")))
    small = join(DATABASE, parts, tmp_path / "cache")
    large = join(DATABASE, parts, tmp_path / "cache", in_memory=0)
    assert isinstance(large, np.memmap)
    np.testing.assert_array_equal(large, small)
    np.testing.assert_allclose(np.linalg.norm(large, axis=1), 1, atol=1e-6)
    (file,) = (tmp_path / "cache").iterdir()
    before = file.stat().st_mtime_ns
    join(DATABASE, parts, tmp_path / "cache", in_memory=0)
    assert file.stat().st_mtime_ns == before
    join(-DATABASE, parts, tmp_path / "cache", in_memory=0)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_half_precision_stays(tmp_path: Path) -> None:
    part = DescriptorTable(tmp_path / "p.npy", "", unit(4).astype(np.float16))
    assert join(DATABASE.astype(np.float16), [part], tmp_path).dtype == np.float16
    # A few float32 rows of a database do not make the distractors larger.
    rows = np.concatenate([part.array] * (2 + len(DATABASE) // len(part.array)))
    (tmp_path / "p.npy").touch()
    many = DescriptorTable(tmp_path / "p.npy", "", rows)
    table = join(DATABASE, [many], tmp_path, in_memory=0)
    assert table.dtype == np.float16
    directions = DATABASE / np.linalg.norm(DATABASE, axis=1, keepdims=True)
    np.testing.assert_allclose(table[: len(DATABASE)], directions, atol=1e-3)
    # The other way round nothing of the database is lost.
    few = DescriptorTable(tmp_path / "p.npy", "", part.array[:1])
    assert join(DATABASE, [few], tmp_path).dtype == np.float32


def test_distractors_of_another_network(root: Path) -> None:
    mat(place_truth(root))
    np.save(root / "wide.npy", unit(9, 6))
    with pytest.raises(InputError, match="the database has 5 dimensions"):
        datasets.load(f"roxford5k+r1m@{root / 'wide.npy'}")
    with pytest.raises(InputError, match="r1m: no descriptors"):
        datasets.load("roxford5k+r1m")


def test_pictures_in_the_order_of_the_descriptors(root: Path) -> None:
    place_truth(root)
    with pytest.raises(InputError, match="gqe data get roxford5k --pictures"):
        official.pictures("roxford5k", root)
    (root / "roxford5k" / "jpg").mkdir()
    listed = official.pictures("roxford5k", root)
    assert [item.path.stem for item in listed] == NAMES
    queries = official.pictures("roxford5k-queries", root)
    assert [item.path.stem for item in queries] == QUERIES
    assert [list(item.box or ()) for item in queries] == [entry["bbx"] for entry in truth()["gnd"]]
    with pytest.raises(InputError, match="no list 'town'"):
        official.pictures("town", root)


def test_query_pictures_are_cropped(root: Path) -> None:
    from PIL import Image

    mat(place_truth(root))
    (root / "roxford5k" / "jpg").mkdir()
    Image.new("RGB", (60, 50)).save(root / "roxford5k" / "jpg" / f"{QUERIES[1]}.jpg")
    data = datasets.load("roxford5k")
    assert data.picture is not None
    assert data.picture("query", 1).size == (29, 38)
    with pytest.raises(InputError, match="no such file"):
        data.picture("database", 0)


def test_the_list_of_distractor_pictures(root: Path) -> None:
    (root / "r1m" / "jpg").mkdir(parents=True)
    listing = root / "r1m" / "revisitop1m.txt"
    listing.write_text("0a/1b/picture.jpg\n0a/other\n")
    found = [item.path.relative_to(root).as_posix() for item in official.pictures("r1m", root)]
    assert found == ["r1m/jpg/0a/1b/picture.jpg", "r1m/jpg/0a/other.jpg"]
    listing.write_text("fine.jpg\n../../etc/passwd\n")
    with pytest.raises(InputError, match="line 2"):
        official.pictures("r1m", root)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real descriptors are not here")
def test_real_descriptors_reach_their_known_score(root: Path) -> None:
    folder = root / "roxford5k" / "descriptors"
    folder.mkdir(parents=True)
    shutil.copy(REAL / "gnd_roxford5k.pkl", root / "roxford5k")
    shutil.copy(REAL / "oxford_features.fvecs", folder / "siftlike.fvecs")
    official_truth = read_ground_truth(REAL / "gnd_roxford5k.pkl")
    names = sorted(official_truth["imlist"] + official_truth["qimlist"])
    (folder / "siftlike.names.txt").write_text("\n".join(names))
    scores = Bench(datasets.load("roxford5k")).run(parse_method("none")).evaluation.to_dict()["map"]
    assert [round(scores[level], 1) for level in ("easy", "medium", "hard")] == [28.9, 21.1, 4.6]
