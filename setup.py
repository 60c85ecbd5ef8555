"""Packaging of fairseq_recur. The import name of every fairseq below is `fairseq`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (HERE / "fairseq_recur" / "version.py").read_text(), re.M
).group(1)

# Which distribution of fairseq installs depends on the interpreter: the official
# one imports on Python <= 3.10 only; ve-fairseq is fairseq's main branch as wheels
# for CPython 3.11 and 3.12 on Linux x86-64; fairseq-fixed is the same as a source
# distribution, which builds anywhere with a C++ compiler.
WHEELS = (
    "sys_platform == 'linux' and platform_machine == 'x86_64' "
    "and python_version >= '3.11' and python_version < '3.13'"
)
SOURCE = (
    "python_version >= '3.13' or (python_version >= '3.11' "
    "and (sys_platform != 'linux' or platform_machine != 'x86_64'))"
)

setup(
    name="fairseq-recur",
    version=VERSION,
    description="Recurrence for fairseq's sequence-to-sequence Transformer",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    author="The fairseq_recur developers",
    project_urls={
        "Paper (recurrence encoder)": "https://aclanthology.org/N19-1122",
        "Paper (RSA)": "https://openreview.net/forum?id=7YfHla7IxBJ",
        "Paper (SRformer)": "https://arxiv.org/abs/2305.16340",
    },
    keywords="fairseq transformer recurrence translation summarization",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["fairseq_recur", "fairseq_recur.*"]),
    package_data={"fairseq_recur": ["py.typed", "config/*.yaml", "ops/native/*.c"]},
    install_requires=[
        "fairseq==0.12.2; python_version < '3.11'",
        f"ve-fairseq==0.12.3; {WHEELS}",
        f"fairseq-fixed==0.12.3.1; {SOURCE}",
        # With hydra 1.4 pre-releases `import fairseq` fails; fairseq 0.12.2 pins < 1.1 itself.
        "hydra-core>=1.3.2,<1.4; python_version >= '3.11'",
        "torch>=2.5",
        "sacrebleu>=2.3",
        "rouge-score>=0.1.2",
        "nltk>=3.8",
        "pysbd>=0.3.4",
        "PyYAML>=5.1",
        "sentencepiece>=0.1.99",
        "subword-nmt>=0.3.8",
    ],
    extras_require={
        "plot": ["matplotlib>=3.7"],
        "convert": ["safetensors>=0.4"],
        "comet": ["unbabel-comet>=2.0"],
        "recipes": ["sacremoses>=0.1", "jieba>=0.42"],
        "test": [
            "pytest>=7",
            "pytest-timeout>=2.4",
            "pytest-xdist>=3",
            "hypothesis>=6",
            "matplotlib>=3.7",
            "sacremoses>=0.1",
            "jieba>=0.42",
            "safetensors>=0.4",
            "transformers>=4.40",
            "nbclient>=0.10",
            "ipykernel>=6",
            "ruff>=0.17",
            "mypy>=2.4",
            "types-PyYAML>=6",
            "setuptools>=77",
            "build>=1.2",
            "twine>=6.1",
        ],
    },
    entry_points={"console_scripts": ["fairseq-recur = fairseq_recur.cli:main"]},
)
