"""How good a ranking is (mAP, mP@k, recall@k) and what an expansion gave weight to (Agreement, Diversity)."""

from gqe.evaluation.comparison import Comparison, compare
from gqe.evaluation.ground_truth import GroundTruth, LabelGroundTruth, RevisitedGroundTruth, as_ground_truth
from gqe.evaluation.judgements import JudgedGroundTruth
from gqe.evaluation.metrics import (
    average_precision,
    average_precision_at,
    ndcg_at,
    plain_precision_at,
    precision_at,
    recall_at,
    reciprocal_rank,
    share_found_at,
)
from gqe.evaluation.protocol import evaluate
from gqe.evaluation.quality import Quality, agreement_diversity
from gqe.evaluation.result import Evaluation

__all__ = [
    "Comparison",
    "Evaluation",
    "GroundTruth",
    "JudgedGroundTruth",
    "LabelGroundTruth",
    "Quality",
    "RevisitedGroundTruth",
    "agreement_diversity",
    "as_ground_truth",
    "average_precision",
    "average_precision_at",
    "compare",
    "evaluate",
    "ndcg_at",
    "plain_precision_at",
    "precision_at",
    "recall_at",
    "reciprocal_rank",
    "share_found_at",
]
