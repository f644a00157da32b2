"""Scores of texts beside the libraries that define them."""

import importlib.util

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from train import translation
from train.text_scores import report, score_of

TEXTS = ["the cat sat on the mat", "Dogs run, fast.", "", "a b c"]
REFERENCES = ["the cat lay on a mat", "the dogs run fast", "nothing", "c b a"]


def test_rouge_is_the_mean_f1_of_the_library_without_stemming():
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"])
    pairs = zip(REFERENCES, TEXTS, strict=True)
    scores = [scorer.score(reference, text) for reference, text in pairs]
    expected = [
        100 * sum(s[n].fmeasure for s in scores) / 4 for n in ("rouge1", "rouge2", "rougeL")
    ]
    assert report("rouge", TEXTS, REFERENCES).splitlines() == [
        f"ROUGE-{name}: {score:.2f}   F1|stem:no"
        for name, score in zip("12L", expected, strict=True)
    ]
    assert score_of("rouge", TEXTS, REFERENCES) == pytest.approx(expected[2])
    # 4 of 6 words in order, 3 of 3 and 4, none, 1 of 3
    assert expected[2] == pytest.approx(100 * (4 / 6 + 2 * 3 / 7 + 0 + 1 / 3) / 4)
    # "Dogs run" and "the dogs run"; "run" is not "running"
    assert score_of("rouge", ["runs"], ["running"]) == 0
    # A text is one line, of which both kinds of ROUGE-L are equal.
    assert [s["rougeL"] for s in scores] == [s["rougeLsum"] for s in scores]


def test_bleu_and_chrf_are_those_of_sacrebleu():
    bleu = sacrebleu.corpus_bleu(TEXTS, [REFERENCES]).score
    lowercase = sacrebleu.corpus_bleu(TEXTS, [REFERENCES], lowercase=True).score
    chrf = sacrebleu.corpus_chrf(TEXTS, [REFERENCES]).score
    assert bleu != lowercase
    assert score_of("bleu", TEXTS, REFERENCES) == bleu
    assert score_of("chrf", TEXTS, REFERENCES) == chrf
    lines = [*report("bleu", TEXTS, REFERENCES).splitlines(), report("chrf", TEXTS, REFERENCES)]
    starts = [f"BLEU: {bleu:.2f} ", f"BLEU, lower-cased: {lowercase:.2f} ", f"chrF: {chrf:.2f} "]
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start) and "nrefs:1" in line


def test_exact_match_is_that_of_squad():
    """Case, punctuation, spaces and articles do not count; the order of words does."""
    texts, references = ["The  King!", "b a", "42", ""], ["a king", "a b c", "43", ""]
    assert score_of("exact", texts, references) == 50
    assert report("exact", texts, references) == "Exact match: 50.00"


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_metric_without_its_library_is_refused_before_any_work(
    command, tmp_path, monkeypatch, capsys
):
    find = importlib.util.find_spec
    hidden = {"rouge_score": None}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: hidden[name] if name in hidden else find(name)
    )
    name = [] if command == "train" else [command]
    flags = ["--metric=rouge", "--source=a", "--target=b", f"--run={tmp_path / 'run'}"]
    with pytest.raises(SystemExit) as caught:
        translation.main([*name, *flags])
    expected = "error: --metric rouge needs rouge-score: pip install rouge-score.\n"
    assert (caught.value.code, capsys.readouterr().err) == (2, expected)
    assert not list(tmp_path.iterdir())
