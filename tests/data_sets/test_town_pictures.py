from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gqe import InputError

pytest.importorskip("PIL", reason="pip install 'gqe[report]'")
from gqe.datasets.town.camera import draw_order
from gqe.datasets.town.drawing import camera_of, draw, scene_of, visible_patches
from gqe.datasets.town.families import FAMILIES
from gqe.datasets.town.landmarks import KINDS
from gqe.datasets.town.light import HOURS, WEATHERS, light_of
from gqe.datasets.town.plan import plan, snapshot
from gqe.datasets.town.scene import Landmark, dice
from gqe.datasets.town.sharing import EASY, HARD, footprint, ground_truth, shared

SMALL = plan("val", seed=3, scale=0.1)


def a_view(kind: str = "town_hall", family: int = 0, azimuth: float = -1.2, seed: int = 0):
    landmark = Landmark((9, family), (9, family, seed), kind, family, 0.5)
    view = snapshot(landmark, azimuth, seed, dice(seed))
    return replace(view, fill=0.8, aim=(0.0, 0.0), hour=12.0, weather="clear", in_the_way=0)


def test_a_picture_is_the_same_every_time_and_in_any_order() -> None:
    some = [SMALL.database[0], SMALL.queries[0], SMALL.database[5]]
    first = [draw(view, 96).tobytes() for view in some]
    scene_of.cache_clear()
    assert [draw(view, 96).tobytes() for view in reversed(some)] == first[::-1]


def test_a_plan_is_the_same_every_time_and_differs_by_seed() -> None:
    again = plan("val", seed=3, scale=0.1)
    assert again.database == SMALL.database
    assert again.queries == SMALL.queries
    assert plan("val", seed=4, scale=0.1).database != SMALL.database


def test_no_picture_exists_twice() -> None:
    for split in ("train", "val", "test"):
        chosen = plan(split)
        seeds = [view.seed for view in chosen.database + chosen.queries]
        assert len(set(seeds)) == len(seeds)


def test_splits_share_no_landmark_and_no_neighbourhood() -> None:
    plans = [plan(split) for split in ("train", "val", "test")]
    for part in ("own", "neighbourhood"):
        sets = [{getattr(v.landmark, part) for v in p.database + p.queries} for p in plans]
        assert not sets[0] & sets[1]
        assert not sets[0] & sets[2]
        assert not sets[1] & sets[2]


def test_class_sizes_vary_widely() -> None:
    sizes = Counter(plan("test").database_landmark.tolist())
    del sizes[-1]
    assert min(sizes.values()) <= 6
    assert max(sizes.values()) >= 45


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_landmark_fills_a_good_part_of_its_picture(kind: str) -> None:
    for family in (0, 6):
        counts = visible_patches(a_view(kind, family))
        # A lighthouse is slender; everything fills more than a twentieth.
        assert counts.sum() > 0.05 * 64 * 64
        assert (counts > 0).sum() >= 6


def test_every_family_names_only_known_kinds() -> None:
    assert {kind for family in FAMILIES for kind in family.kinds} <= set(KINDS)


def test_night_is_darker_than_noon_and_its_windows_shine() -> None:
    noon = np.asarray(draw(a_view(), 96), dtype=float)
    night = np.asarray(draw(replace(a_view(), hour=23.0), 96), dtype=float)
    assert night.mean() < 0.5 * noon.mean()
    assert ((night[..., 0] > 200) & (night[..., 2] < 170)).any()


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize("hour", [*HOURS[:-1], 23.9])
def test_light_stays_in_range(weather: str, hour: float) -> None:
    light = light_of(float(hour), weather)
    for colour in (light.sky_top, light.sky_low, light.haze):
        assert (colour >= 0).all()
        assert (colour <= 255).all()
    assert abs(np.linalg.norm(light.direction) - 1) < 1e-9
    assert 0 <= light.dark <= 1


def test_things_in_the_way_hide_patches() -> None:
    free = visible_patches(a_view()).sum()
    crowded = [visible_patches(replace(a_view(), in_the_way=12, seed=(1, n))).sum() for n in range(4)]
    assert max(crowded) <= free
    assert min(crowded) < free


def test_order_paints_the_nearer_of_two_separate_solids_later() -> None:
    view = a_view("castle", 11)
    scene = scene_of(view.landmark)
    camera = camera_of(view, scene)
    place = {item: rank for rank, item in enumerate(draw_order(scene, camera))}
    low, high, eye = scene.mesh.solid_low, scene.mesh.solid_high, camera.position
    checked = 0
    for a in range(len(low)):
        for b in range(len(low)):
            if ("solid", a) not in place or ("solid", b) not in place:
                continue
            # In plan, a lies wholly between the camera and b along both axes.
            nearer = all(
                (eye[k] > low[a, k] >= high[b, k]) or (eye[k] < high[a, k] <= low[b, k]) for k in (0, 1)
            )
            if nearer:
                checked += 1
                assert place["solid", a] > place["solid", b]
    assert checked > 0


@settings(max_examples=12, deadline=None)
@given(a=st.floats(0, 6.28), b=st.floats(0, 6.28), fill=st.floats(0.5, 1.6))
def test_sharing_is_symmetric_and_between_0_and_1(a: float, b: float, fill: float) -> None:
    one = footprint(a_view("church", 2, a))
    other = footprint(replace(a_view("church", 2, b), fill=fill))
    assert shared(one, other) == shared(other, one)
    assert 0 <= shared(one, other) <= 1 + 1e-9


def test_sharing_falls_with_the_angle_between_two_views() -> None:
    base = footprint(a_view("town_hall", 5, 0.4))
    shares = [shared(base, footprint(a_view("town_hall", 5, 0.4 + turn))) for turn in (0.0, 0.3, 1.0, np.pi)]
    assert shares[0] == pytest.approx(1.0)
    assert shares[0] > shares[1] > shares[2] > shares[3]
    assert shares[1] > EASY
    assert shares[3] < HARD


def test_ground_truth_matches_a_naive_loop() -> None:
    truth = ground_truth(SMALL)["gnd"]
    for query in (0, 3):
        view, number = SMALL.queries[query], SMALL.query_landmark[query]
        for row, other in enumerate(SMALL.database):
            where = [name for name in ("easy", "hard", "junk") if row in truth[query][name]]
            if SMALL.database_landmark[row] != number:
                assert where == []
                continue
            share = shared(footprint(view), footprint(other))
            assert where == ["easy" if share >= 0.5 else "hard" if share >= 0.15 else "junk"]


@pytest.mark.parametrize(
    ("split", "seed", "scale", "words"),
    [("all", 0, 1.0, "split"), ("val", 0, 0.0, "scale"), ("val", 0, 2.0, "scale"), ("val", -1, 1.0, "seed")],
)
def test_bad_plans_are_refused(split: str, seed: int, scale: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan(split, seed, scale)
