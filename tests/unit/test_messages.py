"""Every error message says what was found, and what was expected or what to do about it."""

import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs.commands import known_options, markdown_files
from tests.messages import FOLDERS, OWN_ERROR, ROOT, Message, Reader, Unreadable, project

LONGEST = 300  # characters, without those of the values
# A remedy begins with a verb, or with the word "expected". Verbs are too many to list, so the test
# lists what else can begin a clause: words with a grammatical function, and empty judgements.
FUNCTION_WORDS = set(
    "a an the this that these those it its there they one which what who no not none nothing "
    "neither is are was were be been has have had does did can cannot could will would in on at of "
    "by for from to with without as than so because but such also only all each any some "
    "more".split()
)
JUDGEMENTS = set(
    "invalid wrong bad illegal incorrect unsupported unknown unexpected unusable empty missing "
    "damaged error failed failure value found got".split()
)
EXPECTATION = r"\b(expected|must|needs?|needed|ha(s|ve) to|at least|at most)\b"
# What a message without a value names instead: an option, a setting, or something that is absent.
NAMED = r"--[a-z]|\b[A-Z][A-Z_]+\b|\b[a-z]+_[a-z_]+\b|\w=|`"
ABSENT = r"\b(found|no|not|none|nothing|without|cannot|lacks?|differs?|missing|NaN)\b"
# Options of torchrun, pip and hydra that messages name.
OTHERS_OPTIONS = {"--nproc-per-node", "--no-python", "--option", "--config-dir", "--config-name"}
VALUE = re.compile(r"\[\[.*?\]\](?!\])", re.DOTALL)


@cache
def documented() -> set[str]:
    """Return the names that a user can know: those in the documentation and of the options."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in markdown_files())
    return set(re.findall(r"\w+", text)) | {o[2:].replace("-", "_") for o in known_options()}


def has_remedy(text: str) -> bool:
    """Does a text say what was expected, or does a later clause say what to do?"""
    if re.search(EXPECTATION + r" \S", text) or re.search(r"\S (is|are) needed", text):
        return True
    if re.search(r"\bdid you mean \S", text):
        return True
    _, *clauses = re.split(r"[;:,.(\n?]+\s*(?:- )?|\b(?:or|and|then|[a-z]+ly)\b ?", text)
    for clause in clauses:
        words = clause.split()
        begins = words[0].strip("`'\"").lower() if words else ""
        if re.fullmatch(r"[a-z]+", begins) and begins not in FUNCTION_WORDS | JUDGEMENTS:
            if len(words) > 1:
                return True
    return False


def faults(message: Message) -> Iterator[str]:
    """Yield the faults of a message."""
    text = message.text
    bare = VALUE.sub("X", text)
    if not (VALUE.search(text) or re.search(NAMED, bare) or re.search(ABSENT, bare)):
        yield "does not say what was found"
    if not (has_remedy(bare) or f"[[{OWN_ERROR}]]" in text):
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
            yield f"names {option}, which is not an option"
    if not re.search("convert|conversion", message.place):  # which name what is in the files
        names = r"(?<![\w.-])_\w+|\b[a-z]+(?:_[a-z0-9]+)+\b|\b\w+(?=\(\))|\b[A-Z][a-z]+[A-Z]\w+"
        for name in set(re.findall(names, bare)) - documented():
            yield f"names {name}, which the documentation does not"


def messages_of_scripts() -> Iterator[Message]:
    """Yield what the shell scripts print before they fail: `fail`, `problem`, `echo ... >&2`."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.sh")):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            told = re.search(r'\b(?:fail|problem|echo(?=.*>&2))((?: +"[^"]*")+)', line)
            if told and "$*" not in told[1] and "-t 0" not in line:  # not a prompt
                words = " ".join(part.strip() for part in told[1].split('"') if part.strip())
                values = re.sub(r"\$\(\(.*?\)\)|\$\(.*?\)|\$\{.*?\}|\$\w+", "[[x]]", words)
                yield Message(str(path.relative_to(ROOT)), values.removeprefix("error: "))


@pytest.mark.parametrize(
    "source, at_least", [(lambda: Reader(project()).messages(), 300), (messages_of_scripts, 25)]
)
def test_every_message_says_what_was_found_and_what_to_do(source, at_least: int) -> None:
    found = list(source())
    wrong = [f"{m.place} {fault}: {m.text}" for m in found for fault in faults(m)]
    assert not wrong, "\n".join(wrong)
    assert len({message.place for message in found} if at_least > 100 else found) > at_least


def read(source: str) -> list[str]:
    """Return the messages of one module."""
    errors = "class ConfigError(ValueError):\n    pass"
    return [m.text for m in Reader({"errors.py": errors, "made.py": source}).messages()]


@pytest.mark.parametrize("source", [
    'raise ConfigError("MESSAGE")',
    'class Own(ConfigError): pass\nclass OwnError(OSError): pass\nraise OwnError("MESSAGE")',
    'def made():\n    return ConfigError("MESSAGE")',
    'text = "MESSAGE"\nraise ConfigError(text)',
    'raise ConfigError("MESSAGE" if x else "--lr 0: expected more")',
    'def fail(text):\n    raise ConfigError(text)\nfail("MESSAGE")',
    'def text():\n    return "MESSAGE"\nraise ConfigError(text())',
    'found = []\nfound.append("MESSAGE")\nraise ConfigError("\\n- ".join(found))',
    'def look(found):\n    found.append("MESSAGE")\nproblems = []\nlook(problems)\n'
    'raise ConfigError("\\n- ".join(problems))',
    'def look():\n    yield from inner()\ndef inner():\n    yield "MESSAGE"\n'
    'raise ConfigError("; ".join(look()))',
    'raise ConfigError("wrong:\\n- " + "\\n- ".join(["MESSAGE"]))',
    'hint = "MESSAGE"\nraise ConfigError(f"{hint}")',
    'parser.error("MESSAGE")',
    'sys.exit("MESSAGE")',
    'raise argparse.ArgumentTypeError("MESSAGE")',
    'from fairseq_recur.errors import Problems\nany_name.add("MESSAGE")',
])  # fmt: skip
def test_messages_of_every_form_are_read(source: str) -> None:
    assert any("MESSAGE" in text for text in read(source))


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
    ("--lr [[lr]]: invalid", "expected or what to do"),
    ("--lr [[lr]]: invalid value", "expected or what to do"),
    ("--seed: found [[text]], invalid value", "expected or what to do"),
    ("[[path]]: no such file", "expected or what to do"),
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
    ("--recurrence-steps [[steps]]: expected at least 1", ""),
    ("--lr [[lr]] is wrong; give another", ""),
    ("no data folder [[folder]]; make it with `fairseq-recur preprocess`", ""),
])  # fmt: skip
def test_a_bad_message_is_refused_and_a_good_one_accepted(text: str, fault: str) -> None:
    found = list(faults(Message("made.py:1", text)))
    assert any(fault in each for each in found) if fault else not found, found
