"""Training of learned aggregators on labelled embeddings.

`train_preset` is what `gqe train` runs. Below it, `train` minimises the losses of any stack of aggregators:
`RankingLosses` (our recipe, on random episodes) or `ContrastiveLosses` (the paper's).
"""

from gqe.training.contrastive import ContrastiveLosses, PaperSettings, contrastive_loss
from gqe.training.episodes import Episode, EpisodeSettings, draw_episode
from gqe.training.forward import ExpandedEpisode, LevelRelevance, expand, expand_episode
from gqe.training.loop import Losses, ProcessGroup, TrainingResult, TrainSettings, train, validate
from gqe.training.presets import PRESETS, PresetOptions, make_stack, train_preset
from gqe.training.ranking import RankingLosses, RankingSettings, episode_loss, ranking_terms, relevance_loss
from gqe.training.spaces import LabelledSet
from gqe.training.validation import hold_out

__all__ = [
    "PRESETS",
    "ContrastiveLosses",
    "Episode",
    "EpisodeSettings",
    "ExpandedEpisode",
    "LabelledSet",
    "LevelRelevance",
    "Losses",
    "PaperSettings",
    "PresetOptions",
    "ProcessGroup",
    "RankingLosses",
    "RankingSettings",
    "TrainSettings",
    "TrainingResult",
    "contrastive_loss",
    "draw_episode",
    "episode_loss",
    "expand",
    "expand_episode",
    "hold_out",
    "make_stack",
    "ranking_terms",
    "relevance_loss",
    "train",
    "train_preset",
    "validate",
]
