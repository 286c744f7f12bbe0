"""All kinds of landmarks by name; a new kind is a function that builds it and a line here."""

from __future__ import annotations

from collections.abc import Callable

from gqe.datasets.town import landmarks_tall as tall
from gqe.datasets.town import landmarks_towers as towers
from gqe.datasets.town import landmarks_walls as walls
from gqe.datasets.town import landmarks_wide as wide
from gqe.datasets.town.parts import Yard

KINDS: dict[str, Callable[[Yard], None]] = {
    "town_hall": wide.town_hall,
    "palace": wide.palace,
    "mansion": wide.mansion,
    "terrace": wide.terrace,
    "market_hall": wide.market_hall,
    "mill": wide.mill,
    "station": wide.station,
    "castle": walls.castle,
    "gate": walls.gate,
    "bridge": walls.bridge,
    "church": tall.church,
    "domed": tall.domed,
    "onion": tall.onion,
    "clock_tower": towers.clock_tower,
    "lighthouse": towers.lighthouse,
    "windmill": towers.windmill,
    "pagoda": tall.pagoda,
    "temple": tall.temple,
    "skyscraper": towers.skyscraper,
    "stepped_tower": towers.stepped_tower,
}
