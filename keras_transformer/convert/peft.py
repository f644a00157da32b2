"""LoRA in the file format of PEFT: adapter_config.json and adapter_model.safetensors."""

import functools
import json
import math
import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.convert import bert, gpt2, llama, marian, t5
from keras_transformer.convert.blocks import check_attention, check_equal, check_t5, is_t5
from keras_transformer.convert.folder import Folder, Settings, safetensors_of
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    arrays_of,
    assign,
    check_shape,
    name_in_array_errors,
)
from keras_transformer.convert.writing import check
from keras_transformer.files import atomic_path, check_free
from keras_transformer.layers.block import TransformerStack
from keras_transformer.models.bert_models import BertModel
from keras_transformer.models.decoder_only import LanguageModel
from keras_transformer.models.encoder_decoder import TranslationModel
from keras_transformer.models.lora import add_lora, lora_of, parts_without_lora, projections

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
START = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
# Settings that change the meaning of the matrices, the base, or what is added, with the values at
# which PEFT adds what we add. Other values of `init_lora_weights`, such as "pissa" and "olora",
# change the base too.
NEUTRAL = {
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
    "bias": ("none",),
    **dict.fromkeys(("use_dora", "lora_bias", "use_qalora", "use_bdlora"), (False, None)),
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), ({}, None)),
    **dict.fromkeys(
        ("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication",
         "megatron_config", "monteclora_config", "target_parameters", "trainable_token_indices"),
        (None,),
    ),
}  # fmt: skip
# What only training, or other values than those above, make use of.
IGNORED = (
    "auto_mapping base_model_name_or_path corda_config eva_config fan_in_fan_out inference_mode "
    "lora_ga_config loftq_config megatron_core peft_version qalora_group_size revision "
    "velora_config".split()
)
# Heads that PEFT saves for a task without being asked.
HEADS = {"SEQ_CLS": ["classifier", "score"], "TOKEN_CLS": ["classifier", "score"]}


def check_blocks(model):
    """Raises ConversionError for parts that no family has, or the user's own."""
    for layer in model.layers:
        if isinstance(layer, TransformerStack):
            check_attention(layer, "PEFT")


def check_t5_blocks(model):
    """Raises ConversionError unless the blocks are those of T5."""
    check_equal("PEFT's T5", {"T5's position_bias": (is_t5(model), True)})
    check_t5(model, "PEFT")


def llama_rows(model):
    """The table of Llama; without that of tokens if ours are scaled, which theirs are not."""
    table = model.embedding
    return (row for row in llama.rows(model)
            if not (table.scale and row.variable is table.embeddings))  # fmt: skip


class Naming(NamedTuple):
    """How a family names its layers in PEFT's files.

    Args:
        model_class: of our models of the family.
        rows: function from a model to its table.
        check: function that raises ConversionError unless a model of the class is of the family.
        prefix: what the names of layers begin with, heads excepted.
        full_name: function from a model and a name in its table to the name there.
    """

    model_class: type
    rows: Callable
    check: Callable = check_blocks
    prefix: str = ""
    full_name: Callable = lambda model, name: name


FAMILIES = {
    "bert": Naming(BertModel, bert.rows, prefix=bert.BERT.prefix, full_name=bert.full_name),
    "gpt2": Naming(
        LanguageModel,
        gpt2.rows,
        prefix=gpt2.PREFIX,
        full_name=lambda model, name: gpt2.PREFIX + name,
    ),
    "llama": Naming(LanguageModel, llama_rows, lambda model: llama.family_of(model, "PEFT")),
    "t5": Naming(TranslationModel, t5.block_rows, check_t5_blocks),
    # With the names that M2M100 and BART have, too.
    **dict.fromkeys(("bart", "m2m100", "marian"), Naming(TranslationModel, marian.block_rows)),
}


def read_peft(model, path, family):
    """Returns a copy of a model with the LoRA from a folder that PEFT wrote.

    Args:
        model: a model of the family, with the weights for which the LoRA was trained.
        path: path of a folder with adapter_config.json and adapter_model.safetensors.
        family: a key of `convert.peft.FAMILIES`: "bart" (and mBART), "bert", "gpt2", "llama" (and
            Mistral and Qwen), "m2m100" (and NLLB), "marian" or "t5" (and mT5).

    Returns:
        A new model, as from `add_lora`. For layers that the folder leaves out, LoRA adds zero.

    Raises:
        ConversionError: if a file is missing or damaged, is not LoRA or a kind of LoRA that is not
            supported, names a layer or has a shape that does not exist in the model, or tunes a
            projection as a whole.
    """
    naming, (rank, alpha), arrays = _naming(family, model), *_files(path)
    arrays = arrays.renamed(lambda name: name.removeprefix(START).removeprefix(naming.prefix))
    file = pathlib.Path(path, WEIGHTS)
    for name in arrays:
        if name.endswith(DOWN):
            with name_in_array_errors(file):
                check_shape(name, (rank, *arrays.shape(name)[1:]), arrays.shape(name))
    modules = [name.removesuffix(DOWN) for name in arrays if name.endswith(DOWN)]
    of_up = [name.removesuffix(UP) for name in arrays if name.endswith(UP)]
    if alone := sorted({*modules} ^ {*of_up}):
        raise ConversionError(
            f"{file} must hold both matrices of a layer, {DOWN} and {UP}. Received: one of "
            f"{alone[0]}."
        )
    targets = {
        target: None
        for row, _ in _placed(model, naming)
        for module, target in zip(*_modules_and_targets(row), strict=True)
        if module in modules
    }
    if not targets:
        raise ConversionError(f"{file} tunes {len(modules)} layers, but none of this model.")
    saved = [row for row in naming.rows(model) if arrays.keys() & {*row.names, *row.twins}]
    _check_untied(saved)
    train = {row.variable.path.rpartition("/")[0]: row.names[0] for row in saved}
    places = parts_without_lora(model)
    if whole := [name for place, name in train.items() if place not in places]:
        raise ConversionError(
            f"{path} tunes {whole[0]} as a whole, in a layer with LoRA, where all else is frozen. "
            "Merge it into the model with PEFT, and read that."
        )
    tuned = add_lora(model, rank, alpha, tuple(targets), tuple(train))

    table = [*_adapter_rows(tuned, naming), *naming.rows(tuned)]
    rows = [row for row in table if row.names[0] in arrays]
    if unknown := sorted(set(arrays) - {name for row in rows for name in row.names}):
        raise ConversionError(f"{file} tunes a layer that this model does not have: {unknown[0]}.")
    with name_in_array_errors(file):
        assign(rows, arrays, family)
    return tuned


def write_peft(model, path, family):
    """Writes the LoRA of a model in PEFT's format, to a folder that appears once it is complete.

    `peft.PeftModel.from_pretrained` applies it to the tuned model in Hugging Face's format. A fresh
    process does so, on layers of zeros, before the folder gets its name; if PEFT is not installed,
    a warning says that the folder is not checked.

    Args:
        model: a model of the family, from `add_lora`.
        path: path of the new folder, missing or empty.
        family: a key of `convert.peft.FAMILIES`: "bart" (and mBART), "bert", "gpt2", "llama" (and
            Mistral and Qwen), "m2m100" (and NLLB), "marian" or "t5" (and mT5).

    Returns:
        The path.

    Raises:
        ConversionError: if the folder exists, the model has no LoRA or an attention of your own,
            it trains weights that belong to no layer of the family, or PEFT reads other numbers.
    """
    naming, path = _naming(family, model), pathlib.Path(path)
    check_free(path, "Choose another folder, or delete it.")
    full = functools.partial(naming.full_name, model)
    expected = {}
    for module, adapter, row in _adapters(model, naming):
        product = keras.ops.matmul(adapter.up, adapter.down) * adapter.scale
        product = keras.ops.convert_to_numpy(product)
        expected[f"added:{full(module)}"] = _rows_of(adapter, row, row.to_theirs)(product)
    if not expected:
        raise ConversionError("The model must have LoRA, from add_lora. Received: one without.")
    modules = [name.removeprefix("added:") for name in expected]
    trainable = [row for row in naming.rows(model) if row.variable.trainable]
    _check_untied(trainable)
    for name, array in arrays_of(trainable).items():
        expected[f"saved:{full(name)}"] = array
    rows = [*_adapter_rows(model, naming), *trainable]
    arrays = {START + full(name): array for name, array in arrays_of(rows).items()}
    saved = {row.variable.path for row in rows}
    if unsaved := [w.path for w in model.trainable_weights if w.path not in saved]:
        raise ConversionError(f"{family} has no place for {unsaved[0]}, which the model trains.")

    from safetensors.numpy import save_file

    lora = lora_of(model)
    to_save = {full(name.rpartition(".")[0]) for row in trainable for name in row.names}
    config = {
        "peft_type": "LORA",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
        "modules_to_save": sorted(to_save) or None,
        "fan_in_fan_out": any(row.transpose for row, _ in _placed(model, naming)),
        "inference_mode": True,
        "base_model_name_or_path": None,
    }
    with atomic_path(path) as draft:
        draft.mkdir()
        (draft / CONFIG).write_text(json.dumps(config, indent=2), "utf-8")
        save_file(arrays, draft / WEIGHTS, {"format": "pt"})
        check("peft", ("peft",), draft, lambda: expected)
    return path


def _naming(family, model):
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ConversionError(f"family must be one of {known}. Received: {family!r}.")
    naming = FAMILIES[family]
    if not isinstance(model, naming.model_class):
        raise ConversionError(
            f"A model of the family {family!r} is a {naming.model_class.__name__}. "
            f"Received: {model!r}."
        )
    naming.check(model)
    return naming


def _check_untied(rows):
    """Raises ConversionError if a table has two uses here, of which PEFT tunes one."""
    for row in rows:
        if row.twins:
            raise ConversionError(
                f"PEFT tunes {row.names[0]} apart from {row.twins[0]}, and this model has one "
                "array for both. Tune other layers."
            )


def _files(path):
    """The rank, the alpha for a scale of alpha / rank, and the `Weights` of a folder."""
    folder = Folder(path)
    if not folder.has(CONFIG) or not folder.has(WEIGHTS):
        raise ConversionError(f"{path} must hold {CONFIG} and {WEIGHTS}.")
    settings = Settings(folder.json(CONFIG), folder.path / CONFIG)
    if settings.text("peft_type") != "LORA":
        settings.refuse("peft_type", "LORA", settings.text("peft_type"))
    settings.check(NEUTRAL)
    settings.ignore(IGNORED)
    settings.expect(lora_dropout=0.0, ensure_weight_tying=False)
    weights = safetensors_of(folder.path / WEIGHTS)
    _check_modules(settings, weights)
    rank, alpha = settings.count("r"), settings.number("lora_alpha", None)
    if not alpha:  # the matrices would do nothing
        settings.refuse("lora_alpha", "above 0", alpha)
    if settings.flag("use_rslora", False):
        alpha *= math.sqrt(rank)
    settings.warn_of_unread()
    return (rank, alpha), weights


def _check_modules(settings, weights):
    """Raises ConversionError if the file holds arrays that PEFT, by the settings, would not use."""
    targets, excluded = settings.raw("target_modules"), settings.raw("exclude_modules")
    layers, saved = settings.raw("layers_to_transform"), settings.items("modules_to_save")
    saved += HEADS.get(str(settings.raw("task_type")), [])
    settings.one_of("layers_pattern", None, [])
    for name in weights:
        module, is_lora = name.removeprefix(START).rpartition(".")[0], name.endswith((DOWN, UP))
        if is_lora:
            module = module.rpartition(".")[0]
            used = _names(targets, module, settings) and not _names(excluded, module, settings)
            number = re.match(r".*\.[^.]*\.(\d+)\.", module)
            if layers is not None and layers != []:
                listed = layers if isinstance(layers, list) else [layers]
                used = used and number is not None and int(number[1]) in listed
        else:
            used = any(module.endswith(str(ending)) for ending in saved)
        if not used:
            raise ConversionError(
                f"{settings.file}: {'target_modules' if is_lora else 'modules_to_save'} must name "
                f"each layer of which {WEIGHTS} holds arrays. Received: none for {name}."
            )


def _names(names, module, settings):
    """Whether a list of ends of names, or a regular expression, names a module for PEFT."""
    if isinstance(names, str):
        try:
            return names == "all-linear" or re.fullmatch(names, module) is not None
        except re.error as error:
            raise ConversionError(f"{settings.file}: {names!r:.80} is wrong: {error}") from None
    names = names if isinstance(names, list) else []
    return any(f".{module}".endswith(f".{name}") for name in names)


def _placed(model, naming):
    """Pairs of a row of the table and the projection whose kernel it is."""
    by_kernel = {id(projection.kernel): projection for projection in projections(model)}
    for row in naming.rows(model):
        if id(row.variable) in by_kernel:
            yield row, by_kernel[id(row.variable)]


def _modules_and_targets(row):
    """Their layers in a row, and our name for LoRA on each."""
    modules = [name.removesuffix(".weight") for name in row.names]
    name = row.variable.name.removesuffix("_kernel")
    return modules, name.split("_") if len(modules) > 1 else [name]


def _adapters(model, naming):
    """Triples of one of their layers, its adapter, and the row of the kernel."""
    for row, projection in _placed(model, naming):
        modules, targets = _modules_and_targets(row)
        for adapter in projection.adapters:
            if adapter.target not in targets:
                raise ConversionError(
                    f"To match the layers of this family, tune {' or '.join(targets)}. "
                    f"Received: {adapter.target}."
                )
            yield modules[targets.index(adapter.target)], adapter, row


def _rows_of(adapter, row, function):
    """What `row.to_ours` or `row.to_theirs` does to the rows of a kernel that an adapter has.

    They may change each row, as for T5's queries, but neither mix rows nor see columns.
    """

    def changed(part):
        kernel = np.zeros((row.variable.shape[0], *part.shape[1:]), "float32")
        rows = slice(adapter.start, adapter.start + len(part))
        kernel[rows] = part
        return function(kernel)[rows]

    return changed


def _adapter_rows(model, naming):
    """The table of the matrices of LoRA."""
    for module, adapter, row in _adapters(model, naming):
        yield Row(adapter.down, (module + DOWN,))
        yield Row(
            adapter.up,
            (module + UP,),
            to_ours=_rows_of(adapter, row, row.to_ours),
            to_theirs=_rows_of(adapter, row, row.to_theirs),
        )
