"""Families of neighbourhoods: what the old market, the harbour or the temple hill may look like."""

from __future__ import annotations

from dataclasses import dataclass

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Family:
    """A family of neighbourhoods, before any dice are thrown.

    Attributes:
        name: What a guide book would call it.
        walls: Colours a wall may have.
        trims: Colours of frames, cornices and beams.
        roofs: Colours of roofs.
        doors: Colours of doors, shutters and awnings.
        patterns: What walls are made of.
        windows: Shapes of windows.
        roof_kinds: Shapes of roofs over plain houses.
        kinds: Landmarks that belong here.
        ground: What the square is covered with.
        trees: What grows here.
    """

    name: str
    walls: tuple[Colour, ...]
    trims: tuple[Colour, ...]
    roofs: tuple[Colour, ...]
    doors: tuple[Colour, ...]
    patterns: tuple[str, ...]
    windows: tuple[str, ...]
    roof_kinds: tuple[str, ...]
    kinds: tuple[str, ...]
    ground: str
    trees: str


FAMILIES: tuple[Family, ...] = (
    Family(
        "old market",
        ((240, 228, 200), (232, 214, 170), (222, 196, 150), (236, 220, 210), (205, 120, 90)),
        ((84, 54, 36), (104, 70, 48), (66, 48, 40)),
        ((158, 72, 48), (138, 62, 44), (120, 78, 60)),
        ((52, 92, 64), (130, 40, 36), (60, 74, 110)),
        ("timber", "timber", "plain"),
        ("rect", "shuttered"),
        ("gable", "gable", "hip"),
        ("terrace", "town_hall", "church", "gate", "mansion"),
        "cobbles",
        "round",
    ),
    Family(
        "harbour",
        ((206, 84, 66), (230, 176, 74), (84, 134, 156), (238, 230, 214), (112, 156, 120), (160, 70, 76)),
        ((246, 242, 232), (232, 226, 212)),
        ((126, 66, 56), (86, 90, 100), (150, 84, 62)),
        ((34, 72, 104), (38, 96, 84), (150, 44, 40)),
        ("brick", "clapboard", "plain"),
        ("rect", "arched"),
        ("gable", "stepped"),
        ("terrace", "lighthouse", "market_hall", "mill", "bridge"),
        "water",
        "round",
    ),
    Family(
        "cathedral quarter",
        ((206, 196, 172), (190, 180, 160), (216, 202, 176), (176, 170, 160)),
        ((150, 142, 126), (232, 224, 204), (128, 120, 110)),
        ((92, 104, 108), (104, 140, 124), (84, 88, 98)),
        ((96, 52, 40), (70, 60, 54), (48, 70, 70)),
        ("stone", "stone", "buttress"),
        ("pointed", "arched"),
        ("gable", "hip"),
        ("church", "castle", "gate", "clock_tower", "mansion"),
        "paving",
        "round",
    ),
    Family(
        "white hill",
        ((246, 244, 238), (244, 236, 222), (250, 246, 232), (238, 226, 210)),
        ((58, 110, 168), (214, 204, 188), (66, 128, 140)),
        ((196, 104, 66), (60, 118, 178), (208, 122, 80)),
        ((48, 104, 168), (40, 128, 136), (160, 70, 44)),
        ("plain", "plain", "stone"),
        ("arched", "shuttered", "rect"),
        ("flat", "hip", "flat"),
        ("domed", "church", "clock_tower", "windmill", "mansion"),
        "sand",
        "cypress",
    ),
    Family(
        "brick mills",
        ((160, 82, 62), (146, 70, 54), (176, 98, 72), (132, 68, 56)),
        ((214, 196, 168), (92, 54, 46), (196, 178, 152)),
        ((76, 78, 86), (96, 84, 80), (64, 68, 74)),
        ((38, 66, 54), (46, 58, 82), (110, 34, 30)),
        ("brick", "brick", "stripes"),
        ("arched", "factory"),
        ("gable", "sawtooth"),
        ("mill", "clock_tower", "station", "market_hall", "bridge"),
        "cobbles",
        "round",
    ),
    Family(
        "boulevard",
        ((232, 222, 200), (224, 212, 188), (238, 230, 214), (214, 202, 182)),
        ((200, 188, 164), (246, 240, 226), (176, 164, 144)),
        ((98, 110, 126), (86, 96, 112), (112, 122, 134)),
        ((46, 66, 58), (60, 52, 48), (90, 40, 44)),
        ("stone", "plain", "bands"),
        ("french", "arched"),
        ("mansard", "mansard", "hip"),
        ("palace", "domed", "station", "gate", "town_hall"),
        "paving",
        "round",
    ),
    Family(
        "new quay",
        ((150, 176, 196), (182, 192, 198), (120, 140, 156), (206, 206, 200), (96, 116, 130)),
        ((232, 236, 238), (70, 80, 90), (200, 204, 206)),
        ((130, 138, 144), (170, 176, 178)),
        ((230, 110, 40), (40, 120, 170), (210, 60, 70)),
        ("curtain", "panels", "bands"),
        ("ribbon", "rect"),
        ("flat",),
        ("skyscraper", "stepped_tower", "market_hall", "station", "bridge"),
        "paving",
        "round",
    ),
    Family(
        "spice quarter",
        ((226, 182, 120), (214, 160, 110), (236, 206, 160), (200, 138, 96)),
        ((244, 228, 196), (40, 120, 128), (150, 74, 52)),
        ((46, 138, 146), (214, 166, 62), (64, 110, 160), (120, 150, 96)),
        ((30, 104, 112), (134, 52, 40), (52, 76, 130)),
        ("bands", "plain", "tiles"),
        ("arched", "pointed", "keyhole"),
        ("flat", "flat", "hip"),
        ("onion", "domed", "gate", "clock_tower", "palace"),
        "sand",
        "palm",
    ),
    Family(
        "fjord row",
        ((176, 46, 42), (226, 178, 66), (62, 104, 136), (238, 236, 230), (76, 118, 84), (206, 116, 60)),
        ((248, 246, 242), (244, 240, 228)),
        ((70, 70, 76), (96, 56, 48), (58, 74, 66)),
        ((40, 60, 90), (120, 36, 36), (244, 240, 230)),
        ("clapboard", "clapboard", "boards"),
        ("rect", "rect"),
        ("gable", "gable"),
        ("terrace", "church", "lighthouse", "mansion", "windmill"),
        "grass",
        "fir",
    ),
    Family(
        "garden city",
        ((244, 206, 190), (198, 222, 206), (246, 230, 180), (200, 210, 234), (240, 214, 226)),
        ((255, 250, 244), (110, 150, 150), (214, 150, 120)),
        ((190, 110, 90), (120, 148, 140), (146, 120, 140)),
        ((70, 130, 130), (200, 96, 96), (90, 90, 140)),
        ("plain", "bands", "panels"),
        ("rect", "round", "arched"),
        ("flat", "hip", "mansard"),
        ("stepped_tower", "palace", "station", "domed", "town_hall"),
        "grass",
        "blossom",
    ),
    Family(
        "temple hill",
        ((226, 214, 190), (190, 70, 52), (236, 226, 206), (170, 120, 84)),
        ((120, 40, 34), (240, 232, 214), (60, 84, 76)),
        ((54, 84, 76), (70, 74, 84), (176, 128, 54), (110, 50, 44)),
        ((150, 44, 36), (50, 70, 60), (60, 54, 50)),
        ("boards", "plain", "panels"),
        ("lattice", "rect"),
        ("hip", "hip"),
        ("pagoda", "temple", "gate", "pagoda", "mansion"),
        "gravel",
        "blossom",
    ),
    Family(
        "castle rock",
        ((170, 164, 150), (150, 146, 138), (184, 172, 150), (140, 132, 124)),
        ((112, 106, 98), (206, 196, 176), (92, 84, 78)),
        ((110, 60, 50), (70, 84, 104), (88, 92, 90)),
        ((80, 48, 32), (60, 40, 34), (110, 34, 34)),
        ("stone", "rubble"),
        ("slit", "arched", "pointed"),
        ("gable", "cone"),
        ("castle", "gate", "church", "clock_tower", "bridge"),
        "grass",
        "fir",
    ),
)
