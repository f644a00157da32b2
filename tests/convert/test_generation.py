"""Generation settings beside `transformers.generate`, drawn over models of random weights."""

import dataclasses
import json
import os

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import (
    ModelFolder,
    assign,
    generation,
    huggingface,
    load_gpt2,
    marian,
)
from keras_transformer.convert.tables import ConversionError, VocabularyPermutation, our_order
from keras_transformer.decoding import (
    BeamSearch,
    GNMTScoring,
    HuggingFaceScoring,
    Sampling,
    TokenRules,
)
from keras_transformer.serving import SamplingSettings, SearchSettings
from keras_transformer.serving.control_ids import AfterControlIds
from keras_transformer.serving.settings import scoring_of
from tests.convert.folders import FAMILIES

# A soak: KERAS_TRANSFORMER_SOAK_DRAWS=100 draws as many settings for each family.
DRAWS = int(os.environ.get("KERAS_TRANSFORMER_SOAK_DRAWS", 4))
SIZE, ROWS, LONGEST = 61, 6, 24
PAD, END, LANGUAGE = {"marian": 60, "m2m100": 1}, {"marian": 0, "m2m100": 2, "gpt2": 60}, 41
SIDES = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 22}.items()
}


def write_folder(path, settings, config=None):
    """A folder of nothing but settings."""
    (path / "config.json").write_text(json.dumps(config or {"max_position_embeddings": 64}))
    (path / "generation_config.json").write_text(json.dumps(settings))
    return ModelFolder(path)


def shaken(model, ends):
    """Weights that are sure of their tokens, repeat them, and end at different lengths."""
    import torch

    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                middle = float("norm" in name or "ln_" in name) * float("weight" in name)
                parameter.copy_(middle + 0.4 * torch.randn_like(parameter))
        ends(model)
    return model.eval(), {name: array.numpy() for name, array in model.state_dict().items()}


@pytest.fixture(scope="module")
def models():
    """{family: (their model, our functions, the ids of ours)}"""
    transformers = pytest.importorskip("transformers")
    found, sizes = {}, {"num_layers": 1, "hidden_dim": 16, "num_heads": 2}
    shared = {"vocab_size": SIZE, "d_model": 16, **SIDES}
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            **shared, pad_token_id=60, eos_token_id=0, decoder_start_token_id=60,
            activation_function="swish", scale_embedding=True,
        )
    )  # fmt: skip

    def bias_of_end(model):
        model.final_logits_bias[0, 0] += 4

    theirs, arrays = shaken(theirs, bias_of_end)
    ids = VocabularyPermutation(our_order(SIZE, 60, 1, 60, 0))
    ours = kt.translation(
        len(ids.their_id_of), output_bias=True, scale_embedding=True, norm_epsilon=1e-5,
        positions={"interleaved": False}, intermediate_dim=22, activation="silu",
        normalize_first=False, **sizes,
    )  # fmt: skip
    assign(marian.rows(ours, ids, ids), arrays, "Marian")
    found["marian"] = theirs, ours, ids

    theirs = transformers.M2M100ForConditionalGeneration(
        transformers.M2M100Config(**shared, decoder_start_token_id=2)
    )

    def louder_end(model):
        model.model.shared.weight[2] *= 1.5

    theirs, arrays = shaken(theirs, louder_end)
    ids = VocabularyPermutation([1, 3, 2, 2, 0, *range(4, SIZE)])
    ours = kt.translation(
        len(ids.their_id_of), output_bias=True, scale_embedding=True, norm_epsilon=1e-5,
        positions={"interleaved": False, "max_wavelength": 10000 ** (8 / 7), "first_position": 2},
        intermediate_dim=22, activation="relu", normalize_first=True, **sizes,
    )  # fmt: skip
    arrays["final_logits_bias"] = np.zeros((1, SIZE), "float32")
    assign(marian.rows(ours, ids, ids), arrays, "M2M100")
    found["m2m100"] = theirs, ours, ids

    config = transformers.GPT2Config(
        vocab_size=SIZE, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=60,
        eos_token_id=60,
    )  # fmt: skip

    def likely_end(model):
        model.transformer.wte.weight[60] *= 1.5

    theirs, arrays = shaken(transformers.GPT2LMHeadModel(config), likely_end)
    ours = kt.gpt2(vocabulary_size=SIZE, max_sequence_length=32, intermediate_dim=64, **sizes)
    functions = AfterControlIds(load_gpt2(ours, arrays), 60)
    found["gpt2"] = theirs, functions, None
    return found


def drawn_settings(family, seed):
    """Up to three settings, and the ids that every folder of a family has."""
    draw = np.random.default_rng(seed)
    a, b, c = draw.integers(4, 40, 3).tolist()
    end = END[family]
    all_of_them = {
        "no_repeat_ngram_size": int(draw.integers(1, 4)),
        "repetition_penalty": float(draw.choice([0.8, 1.3, 2.5])),
        "min_length": int(draw.choice([5, 25])),
        "min_new_tokens": 7,
        "bad_words_ids": [[a], [b, c], [c, c], [a, b, c], [end]],
        "suppress_tokens": [b, *range(20, 30)],
        "begin_suppress_tokens": [a, *range(30, 40), end],
        "max_new_tokens": 6,
        "length_penalty": float(draw.choice([0.0, 0.5, 2.0])),
        "early_stopping": [True, "never"][draw.integers(2)],
        "num_beams": int(draw.integers(1, 6)),
        "forced_bos_token_id": a,
        "no_forced_end": 10,
    }
    if family == "gpt2":
        for name in ("length_penalty", "early_stopping", "num_beams", "forced_bos_token_id"):
            del all_of_them[name]
    chosen = draw.choice(sorted(all_of_them), draw.integers(1, 4), replace=False).tolist()
    settings = {name: all_of_them[name] for name in chosen}
    settings["renormalize_logits"] = bool(seed % 2)
    if family == "gpt2":
        settings.pop("no_forced_end", None)
        return {"do_sample": False, "max_new_tokens": 20, "eos_token_id": end} | settings
    ids = {"eos_token_id": end, "pad_token_id": PAD[family]}
    ids["decoder_start_token_id"] = PAD["marian"] if family == "marian" else end
    if "no_forced_end" in settings:
        settings["max_length"] = settings.pop("no_forced_end")
    else:
        settings["forced_eos_token_id"] = end
    if family == "m2m100":
        settings["forced_bos_token_id"] = LANGUAGE
    settings["bad_words_ids"] = [[PAD[family]], *settings.get("bad_words_ids", [])]
    return {"num_beams": 4, "max_length": LONGEST} | ids | settings


# Either family searches by half of the settings, of which one in two are renormalised.
SEARCHES = [
    pytest.param(family, seed, marks=[pytest.mark.soak] * ((seed % 4 in (0, 3)) == is_m2m100))
    for is_m2m100, family in enumerate(("marian", "m2m100"))
    for seed in range(DRAWS)
]


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize(("family", "seed"), SEARCHES)
def test_searches_are_those_of_hugging_face(family, seed, models, tmp_path):
    import torch
    import transformers

    theirs, functions, ids = models[family]
    given = drawn_settings(family, seed)
    settings = generation.search_settings(write_folder(tmp_path, given), ids, 64)
    search, prefix = dataclasses.replace(settings.search, num_best=1), None
    if family == "m2m100":  # as its reader does, which makes it a language
        prefix = [[search.token_rules.forced_bos_token_id]] * ROWS
    source = np.random.default_rng(seed).integers(4, 57, (ROWS, 9))
    encoded = functions.encode(source.astype("int32"))
    found = search(
        lambda *state: functions.step(encoded, *state),
        functions.start_cache(encoded, search.num_beams),
        limits=[settings.max_target_length] * ROWS,
        start_id=2,
        end_id=3,
        prefix=prefix,
    )
    answer = theirs.generate(
        torch.tensor(ids.their_id_of[source]), return_dict_in_generate=True, output_scores=True,
        generation_config=transformers.GenerationConfig(**given),
    )  # fmt: skip
    for ours, row in zip(found.token_ids.numpy()[:, 0], answer.sequences.numpy(), strict=True):
        row = row[1:].tolist()
        while row and row[-1] == PAD[family]:
            row.pop()
        assert ids.their_id_of[ours[ours != 0]].tolist() == row, given
    if search.num_beams > 1:
        scores = answer.sequences_scores.numpy()
        np.testing.assert_allclose(found.scores[:, 0], scores, atol=1e-4, err_msg=str(given))


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(DRAWS))
def test_continuations_are_those_of_hugging_face(seed, models, tmp_path):
    import torch
    import transformers

    theirs, functions, _ = models["gpt2"]
    given = drawn_settings("gpt2", seed)
    settings = generation.sampling_settings(write_folder(tmp_path, given), SIZE, 32, 60)
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(0, 57, length).tolist() for length in (3, 5, 4, 2)]
    ours = np.array([[i + 4 for i in one] + [0] * (5 - len(one)) for one in prompts])
    lengths = np.array([len(one) for one in prompts])
    found = settings.sampling(
        functions.step, functions.start_cache(len(prompts), 1), start_id=tf.constant(ours[:, 0]),
        prefix=ours[:, 1:], limits=lengths + settings.max_tokens, end_id=3,
        seed=[[1, 2]] * len(prompts), forbidden_ids=(0, 1, 2),
    )  # fmt: skip
    for prompt, row in zip(prompts, found.token_ids.numpy()[:, 0], strict=True):
        answer = theirs.generate(
            torch.tensor([prompt]),
            generation_config=transformers.GenerationConfig(**given, pad_token_id=60),
        )[0].tolist()
        expected = answer[len(prompt) :]
        written = row[len(prompt) - 1 :][: settings.max_tokens]
        written = [60 if i == 3 else i - 4 for i in written.tolist() if i]
        assert written == expected, given


SAME_ORDER = VocabularyPermutation(range(SIZE))


def settings_of(tmp_path, values, config=None):
    return generation.search_settings(write_folder(tmp_path, values, config), SAME_ORDER, 64)


def test_settings_become_those_of_our_search(tmp_path):
    found = settings_of(tmp_path, {
        "num_beams": 3, "max_length": 21, "length_penalty": 0.5, "early_stopping": "never",
        "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "min_new_tokens": 5,
        "bad_words_ids": [[0], [3], [7], [8, 9]], "suppress_tokens": [0, 11],
        "begin_suppress_tokens": [13], "forced_bos_token_id": 17, "forced_eos_token_id": 3,
        "renormalize_logits": False, "eos_token_id": [3], "transformers_version": "5",
        "num_return_sequences": 2,
        "do_sample": False, "temperature": 0.3, "num_beam_groups": 1, "diversity_penalty": 0.0,
    })  # fmt: skip
    rules = TokenRules(2, 1.3, 6, 0, [[7], [8, 9]], [11], [13], 17)
    scoring = HuggingFaceScoring(0.5, "never")
    assert found == SearchSettings(BeamSearch(3, None, scoring, rules), 64, 20)
    found = settings_of(tmp_path, {"max_new_tokens": 9, "max_length": 20, "min_length": 4})
    assert (found.max_target_length, found.search.token_rules.min_length) == (9, 4)
    assert not found.search.token_rules.forces_end
    words = {"bad_words_ids": [[0]], "suppress_tokens": [2]}
    found = settings_of(tmp_path, {"renormalize_logits": True, **words})
    assert found.search.token_rules == TokenRules(forces_end=False, renormalize_logits=True)
    written = generation.written_search(found)
    assert settings_of(tmp_path, written).search.token_rules == found.search.token_rules


def test_older_folders_keep_their_settings_in_config_json(tmp_path):
    config = {"num_beams": 3, "no_repeat_ngram_size": 2, "forced_eos_token_id": 3, "d_model": 8}
    folder = write_folder(tmp_path, {}, config)
    found = generation.search_settings(folder, SAME_ORDER, 64)
    assert found.search.num_beams == 1, "there is a newer file"
    (tmp_path / "generation_config.json").unlink()
    found = generation.search_settings(folder, SAME_ORDER, 64).search
    assert (found.num_beams, found.token_rules) == (3, TokenRules(no_repeat_ngram_size=2))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"do_sample": True}, "do_sample must be None or False;.*Received: True"),
        ({"num_beam_groups": 2}, "num_beam_groups must be None or 1;.*Received: 2"),
        ({"diversity_penalty": 0.5}, "diversity_penalty must be None or 0;.*0.5"),
        ({"encoder_no_repeat_ngram_size": 3}, "encoder_no_repeat_ngram_size must be None or 0"),
        ({"encoder_repetition_penalty": 1.5}, "encoder_repetition_penalty must be None or 1"),
        ({"exponential_decay_length_penalty": [5, 1.1]}, "exponential_decay.* must be None;"),
        ({"sequence_bias": [[[5], -1.0]]}, "sequence_bias must be None; nothing else"),
        ({"constraints": [1]}, "constraints must be None; nothing else"),
        ({"force_words_ids": [[5]]}, "force_words_ids must be None; nothing else"),
        ({"guidance_scale": 1.5}, "guidance_scale must be None or 1"),
        ({"penalty_alpha": 0.6}, "penalty_alpha must be None or 0"),
        ({"renormalize_logits": True}, r"renormalize_logits must be False, or .* \[\[0\], \[2\]\]"),
        (
            {"renormalize_logits": True, "bad_words_ids": [[0], [2, 5]]},
            r"renormalize_logits must be False, or .* \[\[2\]\]",
        ),
        ({"renormalize_logits": 1.5}, "renormalize_logits must be False or None or True"),
        ({"stop_strings": ["."]}, "stop_strings must be None"),
        ({"watermarking_config": {}}, "watermarking_config must be None"),
        ({"early_stopping": "soon"}, "early_stopping must be False or True or 'never'"),
        ({"eos_token_id": [3, 5]}, r"eos_token_id must be None or 3 or \[3\];.*\[3, 5\]"),
        ({"forced_eos_token_id": 5}, "forced_eos_token_id must be None or 3"),
        ({"decoder_start_token_id": 5}, "decoder_start_token_id must be None or 2 or"),
        ({"bad_words_ids": [5]}, "bad_words_ids must be .*Received: 5"),
        ({"bad_words_ids": [[61]]}, "bad_words_ids must be ids below 61. Received: 61"),
        ({"suppress_tokens": [-1]}, "suppress_tokens must be ids below 61. Received: -1"),
        (
            {"suppress_tokens": [5], "forced_bos_token_id": 5},
            "suppress_tokens .* that no other setting forces.*5",
        ),
        (
            {"suppress_tokens": [3], "forced_eos_token_id": 3},
            "suppress_tokens .* that no other setting forces.*3",
        ),
        ({"forced_bos_token_id": "a"}, "forced_bos_token_id must be ids below 61.*'a'"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a finite number above 0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty must be a number, at least 0"),
        ({"min_length": 2.5}, "min_length must be a whole number, at least 0. Received: 2.5"),
        ({"max_new_tokens": 1}, "max_new_tokens must be a whole number, at least 2"),
    ],
)
def test_what_no_search_of_ours_does_is_refused_by_name(values, message, tmp_path):
    with pytest.raises(ConversionError, match=rf"generation_config.json: {message}"):
        settings_of(tmp_path, values)


def test_settings_that_nobody_knows_are_named_in_a_warning(tmp_path, caplog):
    found = settings_of(tmp_path, {"sheep": 3, "dreams": True, "num_beams": 2})
    assert found.search.num_beams == 2
    assert "not supported and have no effect here: sheep=3, dreams=True." in caplog.text


@pytest.mark.oracle
def test_every_setting_of_their_library_is_known():
    transformers = pytest.importorskip("transformers")
    theirs = set(transformers.GenerationConfig().to_dict())
    assert theirs - generation.KNOWN == set()


def test_sampling_settings_become_ours(tmp_path, caplog):
    def found(**values):
        return generation.sampling_settings(write_folder(tmp_path, values), SIZE, 32, 60)

    assert found() == SamplingSettings(32, 16, Sampling(0.8))
    greedy = found(do_sample=False, temperature=0.3)
    assert greedy == SamplingSettings(32, 16, Sampling(0.8, top_k=1))
    assert found(do_sample=True) == SamplingSettings(32, 16, Sampling(top_k=50))
    sampled = {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 0.9}
    rules = {"no_repeat_ngram_size": 3, "bad_words_ids": [[5, 60]], "min_new_tokens": 2}
    expected = TokenRules(3, min_new_tokens=2, bad_words_ids=[[9, 3]])
    ours = SamplingSettings(32, 7, Sampling(0.7, top_p=0.9, token_rules=expected))
    assert found(**sampled, **rules, max_new_tokens=7) == ours
    written = generation.written_sampling(ours, 4, 60)
    assert generation.sampling_settings(write_folder(tmp_path, written), SIZE, 32, 60) == ours
    for values, message in (
        ({"num_beams": 2}, "num_beams must be None or 1"),
        ({"do_sample": True, "typical_p": 0.5}, "typical_p must be None or 1"),
        ({"do_sample": True, "min_p": 0.1}, "min_p must be None or 0"),
        ({"do_sample": True, "top_p": 1.5}, "top_p must be.*Received: top_p=1.5"),
        ({"max_new_tokens": 32}, "max_tokens must be an integer from 1 to 31"),
        ({"forced_bos_token_id": 5}, "forced_bos_token_id must be None"),
    ):
        with pytest.raises(ConversionError, match=message):
            found(**values)
    assert found(typical_p=0.5, min_p=0.1) == SamplingSettings(32, 16), "without sampling"
    found(max_length=20)
    assert "max_length counts the prompt and is not read" in caplog.text


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_what_is_written_is_read_again(early_stopping, tmp_path):
    rules = TokenRules(2, 1.3, 6, 0, [[7], [8, 9]], [11], [13], 17, forces_end=False)
    scoring = HuggingFaceScoring(0.5, early_stopping)
    settings = SearchSettings(BeamSearch(3, None, scoring, rules), 64, 20)
    assert settings_of(tmp_path, generation.written_search(settings)) == settings
    plain = SearchSettings(BeamSearch(3, scoring=HuggingFaceScoring(0.6)), max_source_length=64)
    assert settings_of(tmp_path, generation.written_search(plain)) == plain
    # An end occurs but once, so a pair of tokens cannot begin with it again.
    counted = searching(TokenRules(2, start_counts_as=3))
    assert generation.written_search(counted)["no_repeat_ngram_size"] == 2
    theirs = [1, 3, 2, 2, 4].__getitem__  # in which the start is the end
    for rules in (TokenRules(1), TokenRules(2, 1.3), TokenRules(bad_words_ids=[[3, 4]])):
        counted = dataclasses.replace(rules, start_counts_as=3)
        generation.written_search(searching(counted), theirs)
        with pytest.raises(ConversionError, match="the start token is a token of its own"):
            generation.written_search(searching(counted))
        with pytest.raises(ConversionError, match=r"is the end token.*start_counts_as=None"):
            generation.written_search(searching(rules), theirs)


def searching(token_rules):
    return SearchSettings(BeamSearch(token_rules=token_rules))


def test_the_end_of_byte_pairs_of_our_own_is_written_with_its_name_and_id(tmp_path):
    """The table has a row for each of their ids, control ids included."""
    FAMILIES["gpt2"](tmp_path)
    written = [
        json.loads((tmp_path / name).read_text("utf-8"))
        for name in ("vocab.json", "tokenizer_config.json", "generation_config.json")
    ]
    vocabulary, cutter, settings = written
    assert vocabulary[cutter["eos_token"]] == settings["eos_token_id"] == 3


@pytest.mark.parametrize("end", ["</s>", "!", None])
def test_a_gpt2_keeps_its_end_there_and_back(end, tmp_path):
    FAMILIES["gpt2"](tmp_path / "ours")
    vocabulary = json.loads((tmp_path / "ours/vocab.json").read_text("utf-8"))
    path = tmp_path / "ours/generation_config.json"
    settings = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(settings | {"eos_token_id": vocabulary.get(end)}))
    found = convert.load(tmp_path / "ours")
    assert found.tokenizer.end_of_text_id == vocabulary.get(end)
    assert found._text_model.may_end == (end is not None)
    assert found.settings.sampling.end_ids == ()
    huggingface.write(found, tmp_path / "again")
    written = json.loads((tmp_path / "again" / path.name).read_text("utf-8"))
    cutter = json.loads((tmp_path / "again/tokenizer_config.json").read_text("utf-8"))
    assert written["eos_token_id"] == vocabulary.get(end) and cutter["eos_token"] == end
    path.write_text(json.dumps(settings | {"eos_token_id": [3, 7]}))
    found = convert.load(tmp_path / "ours")
    assert (found.tokenizer.end_of_text_id, found.settings.sampling.end_ids) == (3, (11,))


def test_the_power_grows_as_the_penalty_does_at_twenty_tokens():
    penalties = ((5 + np.array([19.99, 20.01])) / 6) ** 0.8
    slope = np.diff(np.log(penalties)) / np.diff(np.log([19.99, 20.01]))
    assert abs(generation.power_penalty(GNMTScoring(0.8)) - slope[0]) < 1e-4
    assert generation.power_penalty(HuggingFaceScoring(0.8)) == 0.8

    class Own(GNMTScoring):
        pass

    with pytest.raises(ConversionError, match=r"GNMTScoring and HuggingFaceScoring alone"):
        generation.power_penalty(Own())


@pytest.mark.parametrize(
    ("scoring", "num_beams"),
    [("gnmt", 2), ("gnmt_heuristic", 2), ("gnmt", 1), ("huggingface", 2)],
)
def test_a_search_that_is_written_as_another_is_said(
    scoring, num_beams, tokenizer, tmp_path, caplog
):
    size = tokenizer.vocabulary_size
    model = kt.translation(size, num_layers=1, hidden_dim=4, num_heads=2, intermediate_dim=6)
    settings = SearchSettings(BeamSearch(num_beams, scoring=scoring_of(scoring, 1.0)))
    marian.hugging_face_folder(kt.serving.Translator(model, tokenizer, settings=settings), tmp_path)
    is_another = scoring.startswith("gnmt") and num_beams == 2
    assert ("divides scores by n ** 0.8 here" in caplog.text) == is_another
