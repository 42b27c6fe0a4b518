"""Chat templates render as transformers renders them, and refuse in the request's terms."""

import json
import re
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from router.chat import ChatTemplate
from router.tokenizer import Tokenizer
from serving.errors import BadRequest, StartError
from tests.router.tiny_tokenizer import CHAT_TEMPLATE, save_target

CONVERSATION = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": 'the <quick> & "brown" 東京'},
    {"role": "assistant", "content": "fox"},
    {"role": "user", "content": "over?"},
]

# What real templates lean on: block trimming, tojson, loop controls, generation marks, namespaces.
DEMANDING = """
{%- set seen = namespace(turns=0) %}
{%- for message in messages %}
    {%- if message.role == "system" %}{% continue %}{% endif %}
    {%- set seen.turns = seen.turns + 1 %}
    {% generation %}{{ message | tojson }}{% endgeneration %}

    {% if tools is not none %}tools{% endif %}
{%- endfor %}
{{- seen.turns }}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}
"""


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, DEMANDING], ids=["chatml", "demanding"])
def test_ids_equal_transformers(tmp_path: Path, template: str) -> None:
    """Prevents prompts that differ from those the target was trained on."""
    folder = save_target(tmp_path, chat_template=template)
    oracle = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = oracle.apply_chat_template(CONVERSATION, add_generation_prompt=True, tokenize=True)
    assert Tokenizer.load(folder).encode_chat(CONVERSATION) == expected["input_ids"]


@pytest.mark.embedded
def test_the_embedded_target_equals_transformers(embedded_target: Path) -> None:
    """Prevents a default demo that talks to its model in another format."""
    oracle = PreTrainedTokenizerFast.from_pretrained(embedded_target)
    expected = oracle.apply_chat_template(CONVERSATION, add_generation_prompt=True, tokenize=True)
    tokenizer = Tokenizer.load(embedded_target)
    assert tokenizer.encode_chat(CONVERSATION) == expected["input_ids"]
    text = "def naïve(x):\n    return '☂'"
    assert tokenizer.encode_text(text) == oracle(text)["input_ids"]


def test_a_template_file_wins_over_the_config(tmp_path: Path) -> None:
    """Prevents serving an outdated template of a checkpoint in the newer layout."""
    folder = save_target(tmp_path, chat_template="old")
    (folder / "chat_template.jinja").write_text("the quick")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.decode(tokenizer.encode_chat(CONVERSATION)) == "the quick"


def test_a_template_can_refuse_a_conversation() -> None:
    """Prevents INTERNAL for a conversation that the model's authors ruled out."""
    template = ChatTemplate(CHAT_TEMPLATE, {"bos_token": "<", "eos_token": ">"})
    with pytest.raises(BadRequest, match=r"chat: .*system must come first"):
        template.render(CONVERSATION[::-1])


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / (messages | length - 4) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ messages[9].content.strip() }}",
        "{{ messages | first + [] }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_raises_anything_is_the_requests_error(template: str) -> None:
    """Prevents INTERNAL and a traceback for each conversation that a template was not made for."""
    with pytest.raises(BadRequest, match=r"chat: the target's chat template refuses it: ."):
        ChatTemplate(template, {}).render(CONVERSATION)


def test_a_template_cannot_reach_python() -> None:
    """Prevents a downloaded template from running code in the router."""
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(BadRequest, match="chat"):
        template.render(CONVERSATION)


def test_a_broken_template_is_refused_at_start() -> None:
    """Prevents a router that starts and then fails every chat."""
    with pytest.raises(StartError, match="chat_template, line 2"):
        ChatTemplate("a\n{% for %}", {})


@pytest.mark.parametrize(
    "value",
    [True, 0, -1.5, {}, {"content": "x"}, [1], ["a"], [{}], [{"name": "default"}],
     [{"name": "default", "template": 3}]],
    ids=str,
)  # fmt: skip
def test_a_template_that_is_no_text_is_refused_at_start(tmp_path: Path, value: object) -> None:
    """Prevents a traceback at start that does not say which file and field to mend."""
    folder = with_config(tmp_path, chat_template=value)
    with pytest.raises(StartError, match=r"tokenizer_config\.json: chat_template .* is no text"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "value", [None, True, 3, [], {}, {"content": None}, {"content": 3}], ids=str
)
def test_a_token_without_a_text_is_none(tmp_path: Path, value: object) -> None:
    """Prevents a base model's null tokens from stopping the router."""
    tokenizer = Tokenizer.load(with_config(tmp_path, pad_token=value))
    assert tokenizer.encode_chat(CONVERSATION)


@pytest.mark.parametrize("value", [None, [], [{"name": "tool_use", "template": "x"}]], ids=str)
def test_without_a_default_template_there_is_no_chat(tmp_path: Path, value: object) -> None:
    """Prevents a template made for something else from rendering conversations."""
    assert not Tokenizer.load(with_config(tmp_path, chat_template=value)).has_chat_template


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_files_that_are_no_utf8_are_named(tmp_path: Path, name: str) -> None:
    """Prevents a UnicodeDecodeError that names no file."""
    folder = save_target(tmp_path)
    (folder / name).write_bytes(b"\xff\xfe")
    with pytest.raises(StartError, match=re.escape(name)):
        Tokenizer.load(folder)


def with_config(folder: Path, **fields: object) -> Path:
    """A target whose tokenizer_config.json has these fields."""
    target = save_target(folder)
    file = target / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return target


def test_no_template_means_no_chat(tmp_path: Path) -> None:
    """Prevents a made-up format for a base model."""
    tokenizer = Tokenizer.load(save_target(tmp_path, chat_template=None))
    with pytest.raises(BadRequest, match="no chat template"):
        tokenizer.encode_chat(CONVERSATION)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """Prevents a traceback when the path is wrong, and a tokenizer read from half a file."""
    with pytest.raises(StartError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(StartError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
