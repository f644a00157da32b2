"""Finished runs in Python: loaded by the path of their folder, used, fine-tuned and published."""

import json
import random
import shutil

import pytest

import keras_transformer as kt
from tests.conftest import leave_results_untold
from train import classification, language_model, translation

pytestmark = pytest.mark.slow
SMALL = [
    "--num-layers=1", "--hidden-dim=16", "--intermediate-dim=32", "--num-heads=2",
    "--warmup-steps=5", "--average=1",
]  # fmt: skip
WORDS = ["abc", "bca", "cab", "fed", "dog", "feed", "bead", "cafe"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs of a few steps: words spelled backwards, words of two kinds, a text of words."""
    with pytest.MonkeyPatch.context() as patch:
        leave_results_untold(patch)
        return trained(tmp_path_factory.mktemp("runs"))


def trained(folder):
    draw = random.Random(3)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 4))) for _ in range(97)]
    pairs = "".join(f"{text}\t{text[::-1]}\n" for text in texts)
    (folder / "pairs.tsv").write_text(pairs)
    labels = "".join(f"{text}\t{'animal' if 'dog' in text else 'thing'}\n" for text in texts)
    (folder / "labels.tsv").write_text(labels)
    (folder / "text.txt").write_text("\n".join(texts))
    translation.main([
        f"--tsv={folder}/pairs.tsv", f"--run={folder}/translation", *SMALL, "--steps=7",
        "--vocabulary-size=290", "--tokens-per-batch=128", "--max-length=24", "--num-beams=3",
        "--length-penalty=0.5",
    ])  # fmt: skip
    classification.main([
        f"--tsv={folder}/labels.tsv", f"--run={folder}/classification", *SMALL, "--steps=60",
        "--vocabulary-size=20", "--tokens-per-batch=64", "--max-length=16", "--peak-rate=0.01",
    ])  # fmt: skip
    language_model.main([
        f"--text={folder}/text.txt", f"--run={folder}/writer", *SMALL, "--steps=5",
        "--model=transformer_xl", "--memory-length=20", "--context=16", "--batch-size=8",
    ])  # fmt: skip
    return folder


def test_a_loaded_run_translates_as_its_command_does(runs, capsys, monkeypatch, tmp_path):
    translate = kt.serving.Translator.load(runs / "translation")
    search = translate.settings.search
    assert (search.num_beams, search.scoring.length_penalty) == (3, 0.5)
    sources = ["abc dog", "feed"]
    (tmp_path / "in.txt").write_text("\n".join(sources) + "\n")
    with open(tmp_path / "in.txt") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        capsys.readouterr()
        translation.main(["translate", f"--run={runs}/translation"])
    assert capsys.readouterr().out.splitlines() == translate(sources)
    greedy = kt.serving.Translator.load(runs / "translation", num_beams=1, length_penalty=0.0)
    assert [len(best) for best in greedy.n_best(sources)] == [1, 1]


def test_a_loaded_run_classifies_with_the_names_of_its_labels(runs):
    classify = kt.serving.Classifier.load(runs / "classification")
    assert classify.labels == ("animal", "thing")
    assert classify(["dog dog", "cafe"]) == ["animal", "thing"]


def test_a_loaded_run_writes_within_what_it_remembers(runs):
    write = kt.serving.Generator.load(runs / "writer")
    assert write.settings.context == 16 + 20
    assert set("".join(write(["dog "], max_tokens=9))) <= set("abcdefgo \n")


def test_a_half_precision_copy_writes_too(runs):
    write = kt.serving.Generator.load(runs / "writer", dtype="bfloat16")
    assert write.model.get_layer("embedding").embeddings.dtype == "bfloat16"
    assert len(write(["dog"])) == 1


def test_a_loaded_run_is_fine_tuned_with_fit(runs):
    translate = kt.serving.Translator.load(runs / "translation")
    source, target = ["fed", "dog fed"], ["FED", "DOG FED"]
    before = translate.score(source, target)
    ids = [translate.tokenizer.tokenize(side) for side in (source * 16, target * 16)]
    batches = kt.data.TokenBatches(*ids, tokens_per_batch=256, max_length=24)
    translate.model.compile(kt.Adam(0.01), kt.TokenCrossentropy())
    translate.model.fit(batches.dataset(), steps_per_epoch=30, verbose=0)
    assert (translate.score(source, target) > before + 1).all()


KINDS = {
    "translation": kt.serving.Translator,
    "classification": kt.serving.Classifier,
    "writer": kt.serving.Generator,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", KINDS)
def test_a_run_of_another_kind_is_refused(runs, run, kind):
    if run != kind:
        with pytest.raises(ValueError, match=r"must come from|holds no finished run"):
            KINDS[kind].load(runs / run)


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("translation", "num_beams"), ("classification", "max_length"), ("writer", "context")],
)
def test_a_setting_that_a_run_lacks_is_named(runs, kind, missing, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs / kind, copy)
    content = json.loads((copy / "config.json").read_text())
    del content[missing]
    (copy / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"json is damaged: it does not say {missing};"):
        KINDS[kind].load(copy)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_run_and_a_damaged_one_are_refused(runs, kind, tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        KINDS[kind].load(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(runs / kind, copy)
    content = bytearray((copy / "model.keras").read_bytes())
    content[len(content) // 2] ^= 255
    (copy / "model.keras").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.keras is damaged"):
        KINDS[kind].load(copy)
    (copy / "model.keras").unlink()
    with pytest.raises(ValueError, match="holds no finished model"):
        KINDS[kind].load(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        KINDS[kind].load(copy)
