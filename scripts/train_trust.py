r"""Learn how far to trust the neighbours that `universal` weights, and judge it by leaving kinds of data out.

    python scripts/pack_sets.py BENCHMARKS -o sets
    python scripts/train_trust.py sets --out trust --real BENCHMARKS --fold titles,persons,signs \
        --fold categories,cars,fruits --fold faces,groceries,intents --fold holidays,synthetic

From each set databases of about a thousand items are drawn (whole classes, tiny ones, mixed sizes, strangers)
and what the frozen model says of every neighbour is recorded once. So an update of `trust.Trust` costs little
more than the weighted sums, and sees whole databases with both sides expanded. The second level of the frozen
model is recorded above its own first level, not above a corrected one.

What stands before the first hyphen of a set's name is its kind; made-up spaces are of the kind `synthetic`.
For each fold a correction is trained without its kinds, whose items may still be unlabelled strangers, and
judged on their recorded databases. With --real it is also judged on the whole spaces of these kinds, as they
are and with one and two relevant items a class, by the code that runs any model. The last line of the output
is the mean over all kinds. Everything is written to --out: outcomes.json, and fold-N.pt with the weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import space_zoo
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, embedding_bag, normalize
from trust import Features, Trust, Trusted, features

from gqe.aggregators import Affinity, Aggregator, Neighborhood
from gqe.errors import InputError
from gqe.evaluation import evaluate
from gqe.evaluation.benchmark import Bench, all_scores
from gqe.expansion import expand
from gqe.methods import PRETRAINED, parse_method
from gqe.model_files import load_model
from gqe.negatives import subtract_negatives
from gqe.neighbors import knn
from gqe.neighbors.search import resolve_device
from gqe.query_options import NEGATIVE_RANKS
from gqe.source import MemorySource
from gqe.training.episodes import Episode, EpisodeSettings, draw_episode
from gqe.training.ranking import ranking_terms
from gqe.training.spaces import LabelledSet
from gqe.training.validation import limit_relevant

SYNTHETIC = "synthetic"
TINY = 4
"""A database whose classes have fewer items than this on average is told apart in the tables."""
SMALLEST = 8
"""Databases of fewer items are left out."""


class Level(NamedTuple):
    """Of the frozen model at one level: log-odds (nodes, K), and what its cautions take away (nodes,)."""

    logits: Tensor
    doubts: Tensor


class Recorded(NamedTuple):
    """A database (n items) with queries (m), and what is known of each node, queries first.

    Attributes:
        name: of the set it was drawn from.
        tokens: (m + n, d) embeddings.
        labels: (m + n,).
        queries: m.
        ids: (m + n, K) neighbours among the items.
        mask: (m + n, K) which of them are there.
        found: their features.
        levels: of the frozen model.
    """

    name: str
    tokens: Tensor
    labels: Tensor
    queries: int
    ids: Tensor
    mask: Tensor
    found: Features
    levels: list[Level]

    @property
    def relevant(self) -> Tensor:
        """(m, n) bool."""
        return self.labels[: self.queries, None] == self.labels[self.queries :]

    @property
    def kind(self) -> str:
        """The kind of data."""
        return kind(self.name)

    @property
    def is_tiny(self) -> bool:
        """Whether a query has few relevant items on average."""
        return bool(self.relevant.sum(dim=1).float().mean() < TINY)


class Expanded(NamedTuple):
    """Expanded queries (m, d), expanded items (n, d), and the weights (m + n, K) of each level."""

    queries: Tensor
    items: Tensor
    weights: list[Tensor]


class _Recorder(Affinity):
    """Weights as they are, written down with what led to them."""

    def score(self, neighborhood: Neighborhood) -> Tensor:
        if neighborhood.tokens.shape[1] == 1:
            return super().score(neighborhood)
        logits, base = self.encode(neighborhood)
        logits, doubts = logits[:, 1:], self.doubts(base)[:, 0]
        found = features(base, neighborhood.mask)
        self.lines.append((logits, doubts, neighborhood.mask[:, 1:], *found))
        weights = torch.sigmoid(logits - doubts[:, None])
        return torch.cat([torch.ones_like(weights[:, :1]), weights], dim=1)

    @classmethod
    def of(cls, model: Affinity, k: int) -> _Recorder:
        """A recorder of a model, at another K."""
        result = cls(**model.settings() | {"k": k})
        result.load_state_dict(model.state_dict())
        result.lines: list[tuple[Tensor, ...]] = []
        return result


def main() -> None:
    """Read the command line, record, train, judge."""
    options = _options()
    device = str(resolve_device(options.device))
    options.out.mkdir(parents=True, exist_ok=True)
    frozen = [level for level in load_model(options.model).stack if isinstance(level, Affinity)]
    sets = [read_set(path, device) for path in sorted(options.sets.glob("*.npz"))]
    if not sets or len(frozen) != 2:
        raise InputError(f"{options.sets}: no sets, or {options.model} is no model of two affinity levels")
    started = time.perf_counter()
    databases = record_all(sets, frozen, options, device)
    print(f"{len(databases)} databases recorded in {time.perf_counter() - started:.0f} s", flush=True)
    outcomes: dict[str, dict[str, list[float]]] = {}
    folds = [tuple(text.split(",")) for text in options.fold]
    for number, left_out in enumerate(folds):
        torch.manual_seed(options.seed)
        trusts = train([each for each in databases if each.kind not in left_out], options, device)
        torch.save(trusts.state_dict(), options.out / f"fold-{number}.pt")
        for place, each in enumerate(databases):
            if each.kind in left_out:
                size = "tiny" if each.is_tiny else "large"
                outcomes[f"{each.kind} {size} {place}"] = judged(each, trusts, options)
        if options.real is not None:
            outcomes |= judge_spaces(options.real, left_out, frozen, trusts, options, device)
        (options.out / "outcomes.json").write_text(json.dumps(outcomes, indent=1), encoding="utf-8")
        print("\n".join(summary(outcomes)), flush=True)


def kind(name: str) -> str:
    """The kind of data of a set."""
    return name.partition("-")[0]


def read_set(path: Path, device: str) -> LabelledSet:
    """A set written by `pack_sets.py`."""
    with np.load(path) as file:
        table = torch.from_numpy(file["embeddings"].astype(np.float32))
        return LabelledSet.of(path.stem, normalize(table, dim=1), file["labels"].astype(np.int64), device)


def record_all(
    sets: Sequence[LabelledSet], frozen: Sequence[Affinity], options: argparse.Namespace, device: str
) -> list[Recorded]:
    """As many databases from each set, and from synthetic spaces, as the options say."""
    result = []
    for chosen in range(len(sets) + 1):
        shares = tuple(float(place == chosen) for place in range(len(sets) + 1))
        settings = EpisodeSettings(
            queries=options.queries,
            items=tuple(options.items),
            items_both_sides=tuple(options.items),
            tiny=options.tiny,
            whole=options.whole,
            undistorted=options.undistorted,
            weak=0.1,
            shares=shares,
        )
        for place in range(options.databases):
            episode = draw_episode(sets, settings, (options.seed, chosen, place), device)
            if len(episode.database) >= SMALLEST and len(episode.queries):
                result.append(record(episode, frozen, device))
    return result


@torch.no_grad()
def record(episode: Episode, frozen: Sequence[Affinity], device: str) -> Recorded:
    """Run the frozen model over a database and its queries, both sides expanded."""
    items, queries = episode.database, episode.queries
    stack = [_Recorder.of(level, episode.k).to(device).eval() for level in frozen]
    width = max(level.graph_k for level in stack)
    graph = knn(items, min(width, len(items) - 1), device=device)
    near = knn(items, min(width, len(items)), queries=queries, device=device)
    source = MemorySource(stack, items, graph, device=torch.device(device))
    source.augment()
    of_items = [_columns(level) for level in stack]
    expand(source, queries, near)
    of_both = [
        [_joined(*pair) for pair in zip(_columns(level), below, strict=True)]
        for level, below in zip(stack, of_items, strict=True)
    ]
    ids = _joined(*(torch.from_numpy(lists.ids[:, : episode.k].astype(np.int64)) for lists in (near, graph)))
    _, _, mask, pair, node = of_both[0]
    return Recorded(
        episode.source,
        torch.cat([queries, items]),
        torch.cat([episode.query_labels, episode.labels]),
        len(queries),
        ids.clamp(min=0).to(device),
        mask,
        Features(pair.half(), node.half()),
        [Level(columns[0], columns[1]) for columns in of_both],
    )


def _columns(level: _Recorder) -> list[Tensor]:
    columns = [torch.cat(column) for column in zip(*level.lines, strict=True)]
    level.lines.clear()
    return columns


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Rows below each other; shorter lists, as those of items in a tiny database, are filled up by 0."""
    width = max(first.shape[1:2], second.shape[1:2])

    def filled(x: Tensor) -> Tensor:
        if x.ndim == 1 or x.shape[1] == width[0]:
            return x
        return torch.cat([x, x.new_zeros(len(x), width[0] - x.shape[1], *x.shape[2:])], dim=1)

    return torch.cat([filled(first), filled(second)])


def run(each: Recorded, trusts: Sequence[Trust] | None, options: argparse.Namespace) -> Expanded:
    """Expand queries and items by corrected weights, or as the frozen model does.

    `trusts` is one correction for each of the last levels: for both, or with --database-only for the last.
    """
    m, now, weights = each.queries, each.tokens, list[Tensor]()
    is_query = (torch.arange(len(now), device=now.device) < m).float()
    found = Features(*(part.float() for part in each.found))
    first = 0 if trusts is None else len(each.levels) - len(trusts)
    for number, level in enumerate(each.levels):
        shipped = level.logits - level.doubts[:, None]
        logits = shipped
        if trusts is not None and number >= first:
            logits = shipped if options.cautious else level.logits
            logits = logits + trusts[number - first](logits, each.mask, found, is_query)
            if options.database_only:
                logits = torch.where(is_query[:, None] > 0, shipped, logits)
        weights.append(torch.sigmoid(logits))
        below, masked = now[m:], weights[-1] * each.mask
        now = normalize(now + embedding_bag(each.ids, below, per_sample_weights=masked, mode="sum"), dim=1)
    return Expanded(now[:m], now[m:], weights)


def train(databases: Sequence[Recorded], options: argparse.Namespace, device: str) -> Any:
    """Corrections (a ModuleList) learned on databases, all kinds drawn equally often."""
    rng = np.random.default_rng(options.seed)
    levels = 1 if options.database_only else 2
    trusts = torch.nn.ModuleList(Trust(options.hidden) for _ in range(levels)).to(device)
    optimizer = torch.optim.AdamW(trusts.parameters(), options.learning_rate, weight_decay=options.decay)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.learning_rate, total_steps=options.steps, pct_start=0.15
    )
    average = torch.optim.swa_utils.AveragedModel(
        trusts, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(options.average)
    )
    kinds = sorted({each.kind for each in databases})
    groups = [[each for each in databases if each.kind == name] for name in kinds]
    losses = []
    for step in range(options.steps):
        optimizer.zero_grad()
        for _ in range(options.batch):
            group = groups[rng.integers(len(groups))]
            loss = database_loss(group[rng.integers(len(group))], trusts, options, int(rng.integers(2**31)))
            (loss / options.batch).backward()
            losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(trusts.parameters(), 1.0)
        optimizer.step()
        cycle.step()
        average.update_parameters(trusts)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {np.mean(losses[-100:]):.4f}", flush=True)
    return average.module.eval()


def database_loss(each: Recorded, trusts: Any, options: argparse.Namespace, seed: int) -> Tensor:
    """Smoothed average precision on both databases, a price on harm, and the relevance of neighbours.

    Harm is what a query loses against no expansion; with --cautious, where training starts from the frozen
    model, against the better of no expansion and that model.
    """
    device, items = each.tokens.device, each.tokens[each.queries :]
    expanded = run(each, trusts, options)
    chosen = torch.randperm(each.queries, generator=torch.Generator().manual_seed(seed))[: options.used]
    chosen = chosen.to(device)
    relevant = each.relevant[chosen]

    def terms(queries: Tensor, table: Tensor) -> Any:
        generator = torch.Generator(device).manual_seed(seed)
        scores = queries[chosen] @ table.T
        return ranking_terms(scores, relevant, positives=12, negatives=32, generator=generator)

    with torch.no_grad():
        bound = terms(each.tokens[: each.queries], items).precision
        frozen = run(each, None, options) if options.cautious else None
    loss = torch.zeros((), device=device)
    for both_sides in (True,) if options.database_only else (False, True):
        outcome = terms(expanded.queries, expanded.items if both_sides else items)
        least = bound
        if frozen is not None:
            with torch.no_grad():
                shipped = terms(frozen.queries, frozen.items if both_sides else items)
            least = torch.minimum(bound, shipped.precision)
        harm = (outcome.precision - least).clamp(min=0)
        value = outcome.precision + options.pairs * outcome.pairs + options.caution * harm
        loss = loss + (value * outcome.valid).sum() / outcome.valid.sum().clamp(min=1) / 2
    truth = (each.labels[:, None] == each.labels[each.queries :][each.ids]).float()
    for weights in expanded.weights:
        entropy = binary_cross_entropy(weights.clamp(1e-5, 1 - 1e-5), truth, reduction="none") * each.mask
        loss = loss + options.relevance * entropy.sum() / each.mask.sum() / len(expanded.weights)
    return loss


@torch.no_grad()
def judged(each: Recorded, trusts: Any, options: argparse.Namespace) -> dict[str, list[float]]:
    """MAP without expansion, and on the plain and the expanded database frozen and corrected."""
    m = each.queries
    labels = each.labels.cpu().numpy()
    truth = {"query_labels": labels[:m], "database_labels": labels[m:]}

    def maps(queries: Tensor, *tables: Tensor) -> list[float]:
        scores = ((queries @ table.T).cpu().numpy() for table in tables)
        return [round(evaluate(ranked, truth).main, 2) for ranked in scores]

    items = each.tokens[m:]
    result = {"none": maps(each.tokens[:m], items, items)}
    for title, chosen in {"frozen": None, "trusted": trusts}.items():
        expanded = run(each, chosen, options)
        result[title] = maps(expanded.queries, items, expanded.items)
    return result


@torch.no_grad()
def judge_spaces(
    folder: Path,
    kinds: Sequence[str],
    frozen: Sequence[Affinity],
    trusts: Any,
    options: argparse.Namespace,
    device: str,
) -> dict[str, dict[str, list[float]]]:
    """The same on whole spaces of some kinds, with contrast, by the code that runs any model."""
    levels = {"hidden": options.hidden, "cautious": options.cautious, "database_only": options.database_only}
    kept = list(frozen[: len(frozen) - len(trusts)])
    corrected = [Trusted.on(level, **levels) for level in frozen[len(kept) :]]
    for level, trust in zip(corrected, trusts, strict=True):
        level.trust.load_state_dict(trust.state_dict())
    outcomes = {}
    for name, place in space_zoo.spaces(folder).items():
        if (SYNTHETIC if isinstance(place, float) else kind(name)) not in kinds:
            continue
        whole = space_zoo.load(name, place)
        variants = {"whole": whole}
        if isinstance(whole.ground_truth, dict) and "database_labels" in whole.ground_truth:
            variants |= {f"{few} relevant": limit_relevant(whole, few) for few in space_zoo.FEW}
        for title, benchmark in variants.items():
            bench = Bench(benchmark, device=device)
            found = {"none": [bench.run(parse_method("none")).evaluation.main] * 2}
            for which, stack in {"frozen": list(frozen), "trusted": [*kept, *corrected]}.items():
                found[which] = _both_sides(bench, stack, options.contrast, device)
            outcomes[f"{kind(name)} {title} {name}"] = found
            print(name, title, found, flush=True)
    return outcomes


def _both_sides(bench: Bench, stack: Sequence[Aggregator], contrast: float, device: str) -> list[float]:
    """MAP of expanded queries on the plain and on the expanded database."""
    items, queries = bench.database, bench.queries
    graph = knn(items, min(max(level.graph_k for level in stack), len(items) - 1), device=device)
    near = knn(items, min(NEGATIVE_RANKS[1], len(items)), queries=queries, device=device)
    source = MemorySource(stack, items, graph, device=torch.device(device))
    Trusted.of_queries = False
    tables = [items, source.augment()]
    Trusted.of_queries = True
    expanded = subtract_negatives(expand(source, queries, near), source, near, contrast)
    return [
        round(evaluate(all_scores(expanded, table, source.device), bench.truth).main, 2) for table in tables
    ]


def summary(outcomes: dict[str, dict[str, list[float]]]) -> list[str]:
    """Means by kind and sort of database, then over all kinds, and the worst loss against no expansion."""
    sorts = sorted({name.split()[1] for name in outcomes})
    lines = []
    for sort in sorts:
        rows = []
        for each in sorted({name.split()[0] for name in outcomes if name.split()[1] == sort}):
            chosen = [found for name, found in outcomes.items() if name.split()[:2] == [each, sort]]
            rows.append(np.mean([list(found.values()) for found in chosen], axis=0))
            lines.append(f"{sort:8} {each:12} {_shown(rows[-1])}")
        worst = min(
            after - before
            for name, found in outcomes.items()
            if name.split()[1] == sort
            for before, after in zip(found["none"], found["trusted"], strict=True)
        )
        lines.append(f"{sort:8} {'mean':12} {_shown(np.mean(rows, axis=0))}, worst {worst:+.1f}")
    return lines


def _shown(row: Any) -> str:
    none, frozen, trusted = row
    return f"none {none[0]:.1f}, frozen {frozen[0]:.1f} / {frozen[1]:.1f}, " + (
        f"trusted {trusted[0]:.1f} / {trusted[1]:.1f}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("sets", type=Path, help="folder written by pack_sets.py")
    add("--out", type=Path, required=True)
    add(
        "--fold", action="append", required=True, metavar="KIND,KIND", help="kinds that are left out together"
    )
    add("--real", type=Path, default=None, help="judge on the spaces of this folder, too")
    add("--model", type=Path, default=PRETRAINED / "universal", help="the frozen model")
    add("--device", default="auto")
    add("--seed", type=int, default=0)
    add("--databases", type=int, default=9, help="databases of each set, and of synthetic spaces")
    add("--items", type=int, nargs=2, default=(700, 2200), help="size of a database")
    add("--queries", type=int, default=200, help="queries of a database")
    add("--used", type=int, default=64, help="queries of an update")
    add("--tiny", type=float, default=0.4, help="share of databases of classes of one to three items")
    add("--whole", type=float, default=0.4, help="share of the others with whole classes")
    add("--undistorted", type=float, default=0.6, help="share of databases in the space of their set")
    add("--hidden", type=int, default=0, help="units of the hidden layer of the correction; 0: linear")
    add("--cautious", action="store_true", help="start from the frozen model with its cautions")
    add("--database-only", action="store_true", help="correct the last level of items only")
    add("--steps", type=int, default=250)
    add("--batch", type=int, default=2, help="databases of an update")
    add("--learning-rate", type=float, default=0.01)
    add("--decay", type=float, default=0.05)
    add("--average", type=float, default=0.98)
    add("--pairs", type=float, default=0.3, help="factor of the pairwise loss")
    add("--caution", type=float, default=2.0, help="factor of the loss of precision")
    add("--relevance", type=float, default=0.05, help="factor of the cross-entropy of weights and relevance")
    add("--contrast", type=float, default=0.4, help="of expanded queries in whole spaces")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"train_trust: {error}")
