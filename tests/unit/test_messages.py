"""Every message of ours says what was found, what was expected or what to do, in one style."""

import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs.commands import known_options, markdown_files
from tests.messages import (
    FOLDERS,
    OURS,
    ROOT,
    Message,
    Module,
    Reader,
    Unreadable,
    project,
)  # fmt: skip

LONGEST = 300  # characters, without those of the values
# What a message without a value tells: that something is absent, or what it met.
ABSENT = r"\b(no|not|none|nothing|without|cannot|lacks?|leaves out|differs?|found|NaN)\b"
SETTING = r"--[a-z]|\b[A-Z][A-Z_]+\b|\b[a-z]+_[a-z_]+\b|\w="
# What can follow the first clause of a message to say what to do, or what would be right.
ADVICE = set(
    "add average bash begin cc check choose compare convert copy correct cut did do evaluate expected fill "
    "generate get give import install leave look lower make mend name pip preprocess put raise remove "
    "replace run say score see set shorten start take train try use wait write".split()
)
EXPECTED = r"\b(expected|needs?|must|ha(s|ve) to|at least|supported are) \S|\S (is|are) needed"
# torchrun's and pip's, which messages name as well.
OTHERS_OPTIONS = {"--nproc-per-node", "--no-python", "--option"}
VALUE = re.compile(r"\[\[.*?\]\](?!\])", re.DOTALL)


@cache
def documented() -> set[str]:
    """The names that a user can have read: those of the documentation and of the options."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in markdown_files())
    return set(re.findall(r"\w+", text)) | {o[2:].replace("-", "_") for o in known_options()}


def lacks(message: Message) -> Iterator[str]:
    """What is wrong with a message."""
    text = message.text
    bare = VALUE.sub("X", text)
    if not (VALUE.search(text) or re.search(SETTING, bare) or re.search(ABSENT, bare)):
        yield "does not say what was found"
    first, *clauses = re.split(r"[;:,.(\n?]+\s*(?:- )?|\b(?:or|and|then|[a-z]+ly)\b ?", bare)
    advised = any(clause.split()[0].lower() in ADVICE for clause in clauses if clause.split())
    if not (advised or re.search(EXPECTED, bare) or f"[[{OURS}]]" in text):
        yield "does not say what was expected or what to do"
    if bare.rstrip().endswith(".") and not bare.endswith("..."):
        yield "ends with a full stop"
    for line in bare.split("\n"):
        if re.match(r"(- )?(?!Hugging Face|If |Look |Python )[A-Z][a-z]+\b", line):
            yield "begins with a capital"
    if len(bare) > LONGEST:
        yield f"is longer than {LONGEST} characters"
    for option in set(re.findall(r"(?<![\w-])--[a-z][\w-]*(?![\w-]*X)", bare)):
        if option.replace("_", "-") not in known_options() | OTHERS_OPTIONS:
            yield f"names {option}, which is no option"
    if not re.search("convert|conversion", message.place):  # which name what is in the files
        names = r"(?<![\w.-])_\w+|\b[a-z]+(?:_[a-z0-9]+)+\b|\b\w+(?=\(\))|\b[A-Z][a-z]+[A-Z]\w+"
        for name in set(re.findall(names, bare)) - documented():
            yield f"names {name}, which the documentation does not"


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return list(Reader(project()).messages())


def test_every_message_says_what_was_found_and_what_to_do(messages: list[Message]) -> None:
    wrong = [f"{m.place} {fault}: {m.text}" for m in messages for fault in lacks(m)]
    assert not wrong, "\n".join(wrong)
    assert len({message.place for message in messages}) > 300


def messages_of_scripts() -> Iterator[Message]:
    """What the shell's scripts tell before they end: of `fail`, `problem` and `echo ... >&2`."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.sh")):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            told = re.search(r'\b(?:fail|problem|echo(?=.*>&2))((?: +"[^"]*")+)', line)
            if told and "$*" not in told[1] and "-t 0" not in line:  # a prompt is none
                words = " ".join(part.strip() for part in told[1].split('"') if part.strip())
                values = re.sub(r"\$\(\(.*?\)\)|\$\(.*?\)|\$\{.*?\}|\$\w+", "[[x]]", words)
                yield Message(str(path.relative_to(ROOT)), values.removeprefix("error: "))


def test_messages_of_scripts_say_it_too() -> None:
    found = list(messages_of_scripts())
    wrong = [f"{m.place} {fault}: {m.text}" for m in found for fault in lacks(m)]
    assert not wrong, "\n".join(wrong)
    assert len(found) > 25


def read(source: str) -> list[str]:
    """The messages of one module, and what is wrong with them."""
    errors = Module("errors.py", "class ConfigError(ValueError):\n    pass")
    return [message.text for message in Reader([errors, Module("made.py", source)]).messages()]


FORMS = {
    "plainly": 'raise ConfigError("MESSAGE")',
    "through another class": 'class Own(ConfigError): pass\nclass OwnError(OSError): pass\n'
                             'raise OwnError("MESSAGE")',
    "not raised here": 'def made():\n    return ConfigError("MESSAGE")',
    "through a variable": 'text = "MESSAGE"\nraise ConfigError(text)',
    "chosen": 'raise ConfigError("MESSAGE" if x else "--lr 0: expected more")',
    "by a helper": 'def fail(text):\n    raise ConfigError(text)\nfail("MESSAGE")',
    "by another's return": 'def text():\n    return "MESSAGE"\nraise ConfigError(text())',
    "gathered": 'found = []\nfound.append("MESSAGE")\nraise ConfigError("\\n- ".join(found))',
    "gathered elsewhere": 'def look(found):\n    found.append("MESSAGE")\nproblems = []\n'
                          'look(problems)\nraise ConfigError("\\n- ".join(problems))',
    "yielded": 'def look():\n    yield from inner()\ndef inner():\n    yield "MESSAGE"\n'
               'raise ConfigError("; ".join(look()))',
    "in a headline": 'raise ConfigError("wrong:\\n- " + "\\n- ".join(["MESSAGE"]))',
    "as a part": 'hint = "MESSAGE"\nraise ConfigError(f"{hint}")',
    "by argparse": 'parser.error("MESSAGE")',
    "at the end": 'sys.exit("MESSAGE")',
    "to argparse": 'raise argparse.ArgumentTypeError("MESSAGE")',
    "noted": 'from fairseq_recur.scoring.problems import Problems\nany_name.add("MESSAGE")',
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_messages_of_every_form_are_read(form: str) -> None:
    assert any("MESSAGE" in text for text in read(FORMS[form]))


@pytest.mark.parametrize("source", [
    "def fail(text):\n    raise ConfigError(text)",
    "raise ConfigError(elsewhere.text())",
    "raise ConfigError()",
    "raise RuntimeError('no words')",
    "raise made",
    "def fail(problems):\n    raise ConfigError('\\n'.join(problems))",
])  # fmt: skip
def test_a_message_that_cannot_be_followed_is_an_error(source: str) -> None:
    with pytest.raises(Unreadable):
        read(source)


@pytest.mark.parametrize("text, fault", [
    ("the options are wrong; choose others", "found"),
    ("--lr [[lr]] is wrong", "expected or what to do"),
    ("[[path]]: [[error]]", "expected or what to do"),
    ("use of --lr [[lr]] without a name", "expected or what to do"),
    ("--lr [[lr]]: expected more than 0.", "full stop"),
    ("Cannot use --lr [[lr]]; give another", "capital"),
    ("wrong:\n- The value [[value]]; give another", "capital"),
    ("--recurrence-stepz [[steps]]: expected at least 1", "--recurrence-stepz"),
    ("_build_it got [[x]]; give another", "_build_it"),
    ("check_config() refuses [[x]]; give another", "check_config"),
    ("[[x]] is no RecurrentThing; give one", "RecurrentThing"),
    (f"{'very ' * 60} long [[x]]; give less", "longer"),
])  # fmt: skip
def test_a_bad_message_is_refused(text: str, fault: str) -> None:
    found = list(lacks(Message("made.py:1", text)))
    assert any(fault in each for each in found), found


@pytest.mark.parametrize("text", [
    "--recurrence-steps [[steps]]: expected at least 1",
    "--lr [[lr]] is wrong; give another",
    "no data folder [[folder]]; make it with `fairseq-recur preprocess`",
])  # fmt: skip
def test_a_good_message_is_taken(text: str) -> None:
    assert not list(lacks(Message("made.py:1", text)))
