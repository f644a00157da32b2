"""Scores of generated texts beside their references, all in percent, higher is better."""

import importlib.util
import re
import string

import numpy as np

from .deferred import Deferred

rouge_scorer = Deferred("rouge_score.rouge_scorer")
sacrebleu = Deferred("sacrebleu")

ROUGES = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL"}


def check_metric(metric):
    """Raises ImportError if the library of a metric is not installed."""
    if metric == "rouge" and importlib.util.find_spec("rouge_score") is None:
        raise ImportError("--metric rouge needs rouge-score: pip install rouge-score.")


def score_of(metric, texts, references):
    """The one number by which models are compared.

    Args:
        metric: "bleu" and "chrf" are sacreBLEU's, cased; "rouge" is F1 of ROUGE-L; "exact" is the
            share of texts with the words of their reference, as SQuAD compares them.
        texts: generated texts.
        references: one for each.
    """
    if metric == "exact":
        pairs = zip(texts, references, strict=True)
        return 100 * float(np.mean([_words_of(text) == _words_of(other) for text, other in pairs]))
    if metric == "rouge":
        return _rouge(texts, references)["ROUGE-L"]
    scorer = next(iter(_scorers(metric).values()))
    return scorer.corpus_score(texts, [references]).score


def report(metric, texts, references):
    """Lines of a metric's usual variants; those of sacreBLEU with its signature."""
    if metric == "exact":
        return f"Exact match: {score_of(metric, texts, references):.2f}"
    if metric == "rouge":
        scores = _rouge(texts, references).items()
        return "\n".join(f"{label}: {score:.2f}   F1|stem:no" for label, score in scores)
    lines = []
    for label, scorer in _scorers(metric).items():
        score = scorer.corpus_score(texts, [references]).score
        lines.append(f"{label}: {score:.2f}   {scorer.get_signature()}")
    return "\n".join(lines)


def _words_of(text):
    """The words by which SQuAD compares answers: lower-cased, no punctuation, no a, an, the.

    Source: Rajpurkar et al. 2016, section 6.1 (https://arxiv.org/abs/1606.05250).
    """
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _scorers(metric):
    """Those of sacreBLEU by their labels, that of `score_of` first."""
    if metric == "chrf":
        return {"chrF": sacrebleu.CHRF()}
    return {"BLEU": sacrebleu.BLEU(), "BLEU, lower-cased": sacrebleu.BLEU(lowercase=True)}


def _rouge(texts, references):
    """The means of F1 over all texts, {label: score}."""
    # No Porter stemmer, which is for English only.
    scorer = rouge_scorer.RougeScorer(list(ROUGES.values()), use_stemmer=False)
    pairs = zip(references, texts, strict=True)
    scores = [scorer.score(reference, text) for reference, text in pairs]
    return {
        label: 100 * float(np.mean([each[name].fmeasure for each in scores]))
        for label, name in ROUGES.items()
    }
