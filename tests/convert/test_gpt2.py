"""GPT-2 folders beside Hugging Face's own model and tokenizer, with random weights."""

import json
import shutil

import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.convert import ConversionError
from keras_transformer.serving import Generator
from keras_transformer.tokenizers import train_byte_pairs
from tests.reference import array
from train import convert as command
from train.demo.corpus import demo_corpus

pytestmark = pytest.mark.oracle
CONTEXT = 32
TEXTS = ["naïve Café", "日本 is 12,50 €!", "🦜 x = f(y)  ;", "It's\n\n a <|endoftext|>b", ""]


@pytest.fixture(scope="module", params=["files", "tokenizer.json"])
def folder(request, tmp_path_factory):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("gpt2")
    train_byte_pairs(demo_corpus(300).sources, 400).save(path / "ours")
    kept = json.loads((path / "ours").read_text("utf-8"))
    (path / "ours").unlink()
    pieces = sorted(kept["vocabulary"], key=kept["vocabulary"].get)[4:]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, "<|endoftext|>"])}
    merges = [tuple(pair.split(" ")) for pair in kept["merges"]]
    tokenizer = transformers.GPT2Tokenizer(vocabulary, merges)
    if request.param == "files":
        (path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
        (path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(kept["merges"]), "utf-8")
    else:
        tokenizer.save_pretrained(path)
        assert (path / "tokenizer.json").exists()
    torch.manual_seed(5)
    end = len(vocabulary) - 1
    config = transformers.GPT2Config(
        vocab_size=end + 1, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4,
        bos_token_id=end, eos_token_id=end,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            middle = float("ln_" in name and "weight" in name)
            parameter.copy_(middle + 0.3 * torch.randn_like(parameter))
    model.save_pretrained(path)
    return path, model, tokenizer


FILES = pytest.mark.parametrize("folder", ["files"], indirect=True)


def test_texts_have_the_ids_of_their_tokenizer(folder):
    tokenizer = convert.read(folder[0]).tokenizer
    texts = [*demo_corpus(1000, seed=5).sources, *TEXTS]
    ours = [[i - 4 for i in row] for row in tokenizer.tokenize(texts).to_list()]
    assert ours == folder[2](texts)["input_ids"]


@FILES
def test_logits_and_greedy_texts_are_those_of_hugging_face(folder):
    import torch

    path, theirs, tokenizer = folder
    generator = convert.load(path)
    ids = np.random.default_rng(3).integers(0, generator.tokenizer.vocabulary_size - 4, (3, 9))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    logits = array(generator.model(ids.astype("int32")))
    print(
        f"largest difference {np.abs(logits - expected).max():.1e} of {np.abs(expected).max():.1f}"
    )
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)

    for text in demo_corpus(5, seed=7).sources:
        text = text[:12]
        given = torch.tensor([tokenizer(text)["input_ids"]])
        length = CONTEXT - given.shape[1] - 1
        with torch.no_grad():
            found = theirs.generate(given, max_new_tokens=length, do_sample=False, pad_token_id=0)
        expected = tokenizer.decode(found[0, given.shape[1] :], skip_special_tokens=True)
        assert generator([text], max_tokens=length, temperature=1e-6) == [expected]


@FILES
def test_a_text_ends_where_theirs_does(folder, tmp_path):
    """With an end that is likely, the first token of a continuation may be it."""
    import torch

    path, theirs, tokenizer = folder
    model = convert.read(path).model
    table = model.embedding.embeddings
    values = array(table).copy()
    values[-1] *= 4
    table.assign(values)
    with torch.no_grad():
        theirs.transformer.wte.weight[-1] *= 4
    generator = Generator(model, convert.read(path).tokenizer, convert.read(path).settings)
    lengths = set()
    try:
        for text in demo_corpus(12, seed=9).sources:
            given = torch.tensor([tokenizer(text[:9])["input_ids"]])
            with torch.no_grad():
                found = theirs.generate(given, max_new_tokens=15, do_sample=False, pad_token_id=0)
            found = found[0, given.shape[1] :]
            lengths.add(len(found))
            expected = tokenizer.decode(found, skip_special_tokens=True)
            assert generator([text[:9]], max_tokens=15, temperature=1e-6) == [expected]
    finally:
        with torch.no_grad():
            theirs.transformer.wte.weight[-1] /= 4
    assert len(lengths) > 1, lengths


def test_a_run_holds_what_was_read(folder, tmp_path):
    command.main(["--from", str(folder[0]), "--run", str(tmp_path / "run")])
    generator, read = Generator.load(tmp_path / "run"), convert.load(folder[0])
    assert generator.settings == read.settings
    for one, other in zip(generator.model.weights, read.model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other))
    texts = [*demo_corpus(30, seed=5).sources, *TEXTS]
    ids, expected = (each.tokenizer.tokenize(texts).to_list() for each in (generator, read))
    assert ids == expected
    assert generator.tokenizer.end_of_text_id == folder[2].eos_token_id


@pytest.mark.soak
@FILES
def test_a_gpt2_is_exported(folder, tmp_path):
    assert convert.load(folder[0]).export(tmp_path / "served", "gpt2").endswith("gpt2/1")


def test_the_start_that_its_tokenizer_adds_begins_texts(folder, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    path, _, tokenizer = folder
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    end = tokenizer.eos_token
    template = tokenizers.processors.TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    theirs = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    theirs.post_processor = template
    theirs.save(str(tmp_path / "tokenizer.json"))
    generator = convert.load(tmp_path)
    assert generator.settings.start_id == tokenizer.eos_token_id + 4
    assert convert.load(path).settings.start_id is None
    with pytest.raises(ConversionError, match="start_id"):
        convert.write(generator, "huggingface", tmp_path / "written")
