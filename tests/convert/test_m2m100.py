"""M2M100 and NLLB folders beside Hugging Face's own models and tokenizers, with random weights."""

import dataclasses
import itertools
import json
import re
import shutil

import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.convert import ConversionError
from keras_transformer.convert.tokenizers import MBART50_LANGUAGES
from keras_transformer.decoding import BeamSearch, GNMTScoring, HuggingFaceScoring
from keras_transformer.serving import Translator
from tests.convert.drawn import LONGEST, PAIRS, SPREAD, by_ctranslate2, drawn_ids
from tests.reference import array
from train import convert as command

pytestmark = pytest.mark.oracle
TEXTS = ["It is ten past six.", "the 3rd of May, 12,50 €", "naïve 日本 🦜", "a", "a  b"]
MADE_UP = 8  # rows of their table that no piece has


def train_spm(path, texts, size):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path.with_suffix("")), vocab_size=size,
        model_type="bpe", character_coverage=0.9995, minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(index) for index in range(len(processor))]


def m2m100_tokenizer(path):
    import transformers

    texts = [text for pair in PAIRS()[:3000] for text in pair]
    pieces = train_spm(path / "sentencepiece.bpe.model", texts, 300)
    listed = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:-9]]
    (path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(listed)}))
    tokenizer = transformers.M2M100Tokenizer(
        str(path / "vocab.json"), str(path / "sentencepiece.bpe.model"), src_lang="en",
        tgt_lang="de",
    )  # fmt: skip
    tokenizer.save_pretrained(path)
    return tokenizer, tokenizer.get_lang_id("de"), len(listed) + 100 + MADE_UP


def nllb_tokenizer(path):
    import tokenizers
    import transformers

    texts = [text for pair in PAIRS()[:3000] for text in pair]
    learner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    learner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, limit_alphabet=70, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    tokenizer = transformers.NllbTokenizer(
        vocab=learned["vocab"], merges=[tuple(pair) for pair in learned["merges"]],
        src_lang="eng_Latn", tgt_lang="deu_Latn",
    )  # fmt: skip
    tokenizer.save_pretrained(path)
    return tokenizer, tokenizer.convert_tokens_to_ids("deu_Latn"), len(tokenizer)


@pytest.fixture(scope="module", params=["m2m100", "nllb"])
def folder(request, tmp_path_factory):
    """A folder as `save_pretrained` writes it; weights are large enough to be sure of tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp(request.param)
    tokenizer, language, size = globals()[f"{request.param}_tokenizer"](path)
    torch.manual_seed(5)
    config = transformers.M2M100Config(
        vocab_size=size, d_model=32, encoder_layers=3, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48,
    )  # fmt: skip
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    model.generation_config.update(
        max_length=LONGEST, num_beams=4, forced_bos_token_id=language, forced_eos_token_id=2,
        bad_words_ids=[[1]],
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            middle = float("norm.weight" in name)
            parameter.copy_(middle + SPREAD * torch.randn_like(parameter))
        model.model.shared.weight[2] *= 1.4  # ends are likely, and what is in no text is not
        model.model.shared.weight[3] = 0
        if request.param == "m2m100":
            model.model.shared.weight[-MADE_UP:] = 0
    model.save_pretrained(path)
    return path, model, tokenizer


@pytest.fixture(scope="module")
def converted(folder):
    return convert.read(folder[0])


def decoded(tokenizer, ids):
    """Texts without languages, which M2M100's of transformers 5 count as text."""
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return [re.sub("^(?:__[a-z]+__)+ ?|__[a-z]+__", "", text) for text in texts]


def theirs(folder, model):
    """Their ids at ours: pad, unknown, </s> as start, </s>, pieces and languages, <s>, the rest."""
    size = model.target_embedding.vocabulary_size
    made_up = MADE_UP if "M2M100" in type(folder[2]).__name__ else 0
    rest = range(size - 1 - made_up, size - 1)
    of = np.array([1, 3, 2, 2, *range(4, size - 1 - made_up), 0, *rest])
    assert sorted(set(of.tolist())) == list(range(folder[1].config.vocab_size))
    return of


def test_texts_have_the_ids_of_their_tokenizer(folder, converted):
    of = theirs(folder, converted.model)
    given = {name: converted.config[name] for name in ("source_language", "target_language")}
    source = converted.tokenizer.with_language(given["source_language"])
    target = converted.tokenizer.with_language(given["target_language"])
    pairs = PAIRS()[3000:4000]
    for side, tokenizer in enumerate((source, target)):
        texts = [*TEXTS, *(pair[side] for pair in pairs)]
        ours = tokenizer.tokenize(texts)
        names = ("text", "text_target")
        expected = folder[2](**{names[side]: texts})["input_ids"]
        different = [
            (text, of[ids].tolist(), row)
            for text, ids, row in zip(texts, ours.to_list(), expected, strict=True)
            if [*of[ids].tolist(), 2] != row
        ]
        assert not different
        known = [3 not in row for row in expected]
        assert sum(known) > 800
        joined = [text.decode() for text in tokenizer.detokenize(ours).numpy()[known]]
        texts = decoded(folder[2], expected)
        assert joined == list(itertools.compress(texts, known))


@pytest.mark.parametrize(
    "folder", ["m2m100", pytest.param("nllb", marks=pytest.mark.soak)], indirect=True
)
@pytest.mark.usefixtures("unchecked")
def test_a_run_translates_as_theirs_does_and_as_ctranslate2(folder, converted, tmp_path):
    import torch

    run = tmp_path / "run"
    command.main(["--from", str(folder[0]), "--run", str(run)])
    translator = Translator.load(run)
    texts = [pair[0] for pair in PAIRS() if len(pair[0]) < 20][:12]
    with torch.no_grad():
        expected = folder[1].generate(**folder[2](texts, padding=True, return_tensors="pt"))
    expected = decoded(folder[2], expected)
    assert translator([*texts, ""]) == [*expected, ""]
    assert len(set(expected)) > 6
    if "M2M100" in type(folder[2]).__name__:
        path = convert.write(translator, "ctranslate2", tmp_path / "ctranslate2")
        greedy = Translator.load(run, num_beams=1)
        assert by_ctranslate2(path, greedy, texts) == greedy(texts)
    # Another pair of languages is other ids.
    languages = [*converted.tokenizer.languages][:2]
    other = Translator.load(run, source_language=languages[0], target_language=languages[1])
    assert other.tokenizer.tokenize([""]).to_list() == [
        [converted.tokenizer.languages[languages[0]]]
    ]
    assert other.target_tokenizer.language == languages[1] != translator.target_tokenizer.language
    with pytest.raises(ValueError, match=r"target_language must be one of .*Received: xx\."):
        Translator.load(run, target_language="xx")
    with pytest.raises(ValueError, match="A multilingual tokenizer needs a language"):
        Translator(translator.model, converted.tokenizer)


@pytest.mark.soak
@pytest.mark.parametrize("folder", ["m2m100"], indirect=True)
def test_the_best_translation_is_the_first_of_several_and_languages_are_others(folder, tmp_path):
    """Also at the limit by the length of its source."""
    texts = [pair[0] for pair in PAIRS() if len(pair[0]) < 20][:12]
    ours = convert.load(folder[0])
    search = dataclasses.replace(
        ours.settings.search, num_beams=2, num_best=2, scoring=GNMTScoring(9.0)
    )
    long = dataclasses.replace(ours.settings, search=search)
    long = Translator(ours.model, ours.tokenizer, ours.target_tokenizer, long)
    short = [text[:3] for text in texts]
    answer, several = long.answer(short), long.n_best(short)
    assert [best.text for best, _ in several] == [text.decode() for text in answer["translation"]]
    assert [best.num_tokens for best, _ in several] == answer["length"].tolist()
    assert 9 < max(answer["length"]) < long.settings.max_target_length
    source, target = [*ours.tokenizer.languages][:2]
    other = convert.load(folder[0], source_language=source, target_language=target)
    assert other(texts) != ours(texts)
    assert ours.export(tmp_path / "served", "many").endswith("many/1")


@pytest.mark.parametrize("folder", ["m2m100"], indirect=True)
def test_training_goes_on(folder):
    import keras_transformer as kt

    translator = convert.load(folder[0])
    sources, targets = zip(*PAIRS()[:16], strict=True)
    tokens = [
        kt.data.tokenize(sources, translator.tokenizer),
        kt.data.tokenize(targets, translator.target_tokenizer),
    ]
    batches = kt.data.TokenBatches(*tokens, tokens_per_batch=1024, max_length=64)
    assert batches.steps_per_epoch == 1  # of one shape, for one program
    model = translator.model
    model.compile(kt.Adam(3e-3), kt.TokenCrossentropy(0.1), clip_norm=1.0)
    losses = model.fit(batches.epoch(), epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0] < 30
    assert model.output_bias.bias.numpy()[3] == 0


def test_the_sentencepiece_model_of_nllb_has_its_ids_one_higher(tmp_path):
    import sentencepiece

    texts = [text for pair in PAIRS()[:3000] for text in pair]
    file = tmp_path / "sentencepiece.bpe.model"
    pieces = train_spm(file, texts, 300)
    settings = {"tokenizer_class": "NllbTokenizer"}
    settings["additional_special_tokens"] = ["deu_Latn", "eng_Latn"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer, of = convert.load_tokenizer_of(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
    expected = [[index + 1 if index else 3 for index in row] for row in processor.encode(texts)]
    assert [of[row].tolist() for row in tokenizer.tokenize(texts).to_list()] == expected
    languages = [tokenizer.pieces(range(len(of))).index(name) for name in ("deu_Latn", "eng_Latn")]
    assert of[languages].tolist() == [len(pieces) + 1, len(pieces) + 2]

    # A language that was added later comes after the mask, whatever the list says.
    after = ["deu_Latn", "eng_Latn", "<mask>", "tyv_Cyrl"]
    first = len(pieces) + 1
    added = {first + i: {"content": name, "special": True} for i, name in enumerate(after)}
    settings["additional_special_tokens"] = ["deu_Latn", "eng_Latn", "tyv_Cyrl"]

    def read(added):
        content = json.dumps(settings | {"added_tokens_decoder": added})
        (tmp_path / "tokenizer_config.json").write_text(content)
        tokenizer, of = convert.load_tokenizer_of(tmp_path)
        return {name: of[tokenizer.pieces(range(len(of))).index(name)] for name in after}

    assert read(added) == {name["content"]: index for index, name in added.items()}
    del added[first + 2]
    with pytest.raises(ConversionError, match="added_tokens_decoder must be every id from 301"):
        read(added)


def test_a_list_of_mbart_without_ids_names_its_languages_only(tmp_path):
    texts = [text for pair in PAIRS()[:300] for text in pair]
    train_spm(tmp_path / "sentencepiece.bpe.model", texts, 100)
    settings = {"tokenizer_class": "MBart50Tokenizer"}
    for more in [], ["<sep>"]:
        settings["additional_special_tokens"] = [*more, *MBART50_LANGUAGES]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        if more:
            with pytest.raises(ConversionError, match=r"must be languages of mBART.*'<sep>'"):
                convert.load_tokenizer_of(tmp_path)
        else:
            tokenizer, _ = convert.load_tokenizer_of(tmp_path)
            assert "sl_SI" in tokenizer.pieces(range(tokenizer.vocabulary_size))


@pytest.mark.parametrize("folder", ["m2m100"], indirect=True)
@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"decoder_layers": 3}, "must include model.decoder.layers.2.fc1.weight"),
        ("config.json", {"pad_token_id": 0}, "pad_token_id must be 1, as in the tokenizer"),
        ("config.json", {"vocab_size": 100}, r"shared.weight must have the shape \(100, 32\)"),
        ("config.json", {"tie_word_embeddings": False}, "tie_word_embeddings must be True"),
        (
            "tokenizer_config.json",
            {"legacy_behaviour": True},
            "legacy_behaviour must be False; nothing else is supported",
        ),
    ],
)
def test_settings_that_do_not_fit_are_one_line(folder, tmp_path, file, change, message):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    content = json.loads((folder[0] / file).read_text())
    (tmp_path / file).write_text(json.dumps(content | change))
    with pytest.raises(convert.ConversionError, match=message):
        convert.read(tmp_path)


def test_languages_are_asked_for(folder, tmp_path):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    content = json.loads((folder[0] / "tokenizer_config.json").read_text())
    del content["src_lang"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"source_language must be one of .*Received: none\."):
        convert.load(tmp_path)


def test_logits_are_those_of_hugging_face(folder, converted):
    import torch

    of = theirs(folder, converted.model)
    source, target = drawn_ids(5, 9, len(of), 1), drawn_ids(5, 7, len(of), 2)
    target[:, 0] = 2
    source[1, 5:] = 0
    logits = array(converted.model({"source_ids": source, "target_ids": target}))
    with torch.no_grad():
        expected = folder[1](
            input_ids=torch.tensor(of[source]),
            attention_mask=torch.tensor((source != 0).astype(int)),
            decoder_input_ids=torch.tensor(of[target]),
        ).logits.numpy()[..., of]
    assert (logits[..., 2] < -50).all()  # of the start, which no text has
    expected[..., 2] = logits[..., 2]
    difference = np.abs(logits - expected).max()
    print(f"largest difference {difference:.1e} of {np.abs(expected[..., 3:]).max():.1f}")
    assert difference < 1e-4


@pytest.mark.parametrize("folder", ["m2m100"], indirect=True)
@pytest.mark.parametrize(
    ("num_beams", "penalty", "early"),
    [(1, 1.0, False), (4, 1.0, True)],
)
def test_tokens_are_those_of_hugging_face(folder, converted, num_beams, penalty, early):
    import torch

    of, rows = theirs(folder, converted.model), 24
    source = drawn_ids(rows, 11, len(of), num_beams)
    functions = converted.model
    encoded = functions.encode(source)
    language = folder[1].generation_config.forced_bos_token_id
    found = BeamSearch(num_beams, 1, HuggingFaceScoring(penalty, early))(
        lambda *state: functions.step(encoded, *state),
        functions.start_cache(encoded, num_beams),
        limits=[LONGEST - 1] * rows, start_id=2, end_id=3,
        prefix=[[of.tolist().index(language)]] * rows,
    )  # fmt: skip
    answer = folder[1].generate(
        torch.tensor(of[source]), num_beams=num_beams, length_penalty=penalty, max_length=LONGEST,
        early_stopping=early, do_sample=False, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    equal = 0
    for ours, row in zip(found.token_ids.numpy()[:, 0], answer.sequences.numpy(), strict=True):
        ours, row = of[ours[ours != 0]].tolist(), row[1:]
        equal += ours == row[row != 1].tolist()
    lengths = found.lengths.numpy().ravel()
    print(f"{equal} of {rows} rows equal; lengths {lengths.tolist()}")
    assert equal == rows
    assert len(set(lengths.tolist())) > 1 or early
    if num_beams > 1:
        scores = answer.sequences_scores.numpy()
        difference = np.abs(found.scores.numpy()[:, 0] - scores).max()
        print(f"scores differ by {difference:.1e}")
        assert difference < 1e-4
