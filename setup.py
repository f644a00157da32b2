"""What `pip install` needs to know; settings of the tools are in pyproject.toml."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "keras_transformer" / "__init__.py").read_text("utf-8")
)[1]

TENSORFLOW = ">=2.20,<2.22"
TEXT = ["tensorflow-text>=2.20,<2.22", "sentencepiece>=0.2.0,<0.3"]
TRAIN = [
    "sacrebleu>=2.4,<3",
    "matplotlib>=3.9,<4",
    "tensorboard>=2.20,<2.22",
    "tokenizers>=0.23,<0.24",
    "pydantic>=2.12,<3",
]
# importlib-resources: imported by tensorflow-datasets when it reads files, but not required by it.
DATASETS = ["tensorflow-datasets>=4.9.7,<5", "importlib-resources>=6,<8"]
TABLES = "pyarrow>=18,<27"
ZSTANDARD = "zstandard>=0.23,<1"
ROUGE = "rouge-score>=0.1.2,<0.2"
TORCH = "torch>=2.6,<2.14"
# httptools and uvloop: with them uvicorn answers three times as many small requests.
SERVE = [
    "fastapi>=0.115,<1",
    "uvicorn>=0.30,<1",
    "httptools>=0.6,<1",
    "uvloop>=0.21,<1",
    "prometheus-client>=0.20,<1",
]
HUB = "keras-hub>=0.20,<0.33"
BENCH = ["keras-hub>=0.32,<0.33", TORCH, "ctranslate2>=4.5,<5"]

setup(
    name="keras-transformer-toolkit",
    version=VERSION,
    description="Transformers on Keras 3 and TensorFlow, from the paper to production.",
    long_description=(ROOT / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    # The folder train/ of the repository is installed under a name that nobody else uses, without
    # its benchmark. It is no part of keras_transformer, so that its flags are answered without
    # importing TensorFlow.
    packages=[
        *find_packages(include=["keras_transformer", "keras_transformer.*"]),
        *(
            f"keras_transformer_{name}"
            for name in find_packages(include=["train", "train.*"], exclude=["train.benchmark"])
        ),
    ],
    package_dir={"keras_transformer_train": "train"},
    package_data={
        "keras_transformer.figures": ["*.html"],
        "keras_transformer_train": ["configs/*.yaml", "serve/*.html"],
    },
    entry_points={"console_scripts": ["keras-transformer = keras_transformer_train.cli:main"]},
    python_requires=">=3.11",
    install_requires=[
        f"tensorflow{TENSORFLOW}",
        "keras>=3.12,<3.16",
        "numpy>=2,<3",
        "protobuf>=4.22",
        "filelock>=3.24,<5",
        "safetensors>=0.5,<1",
        "pyyaml>=6,<7",
        "rich>=13,<16",
        *TEXT,
    ],
    extras_require={
        "cuda": [f"tensorflow[and-cuda]{TENSORFLOW}"],
        "train": [*TRAIN, *DATASETS],
        "tables": [TABLES],
        "zstandard": [ZSTANDARD],
        "rouge": [ROUGE],
        "test": [
            *TRAIN,
            *DATASETS,
            TABLES,
            ZSTANDARD,
            ROUGE,
            HUB,
            "jax>=0.7,<0.12",
            "hypothesis>=6.170,<7",
            *SERVE,
            "aiohttp>=3.10,<4",  # the protocol of a browser
            "pytest>=8,<10",
            "pytest-timeout>=2.3,<3",
            "pytest-xdist>=3.6,<4",
            "ruff>=0.12,<0.18",
        ],
        "oracles": [
            HUB,
            TORCH,
            "transformers>=4.57,<6",
            "ctranslate2>=4.5,<5",
            "peft>=0.21,<0.22",
            "grain>=0.2.18,<0.3",
            "tf2onnx>=1.17,<2",
            "onnx>=1.18,<2",
            "onnxruntime>=1.22,<2",
            "ai-edge-litert>=2.1,<3",
            "openvino>=2026.1,<2027",
            "tensorflow-serving-api>=2.19,<2.22",
            "ray[train]>=2.60,<3",
        ],
        "bench": [*TRAIN, *BENCH],
        "docs": ["mkdocs-material>=9.6,<10", "mkdocstrings[python]>=1,<2"],
        "serve": [*TRAIN, *SERVE],
        "ray": [*TRAIN, *DATASETS, "ray[train]>=2.60,<3"],
    },
)
