"""What the transformers library has to know: the model's sizes, how to sample, and how a conversation becomes a prompt.

tokenizer.json goes along as it is. It adds no BOS: the chat template writes it, and who encodes text alone puts it in
front. BOS is the end, too, since a document ends where the next one begins.
"""

from typing import Any

from andrea.engine.kernels import LAYERNORM_EPS
from andrea.experiment import Shape
from andrea.megachat import ESCAPE, REPLY, USER
from andrea.talk import TEMPERATURE, TOKENS, TOP_K
from andrea.tokenizer import BOS
from andrea.tokenizer.ids import BOS_TEXT


def config(shape: Shape) -> dict[str, Any]:
    """config.json of a GPT2LMHeadModel."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": shape.vocab_size,
        "n_positions": shape.context,
        "n_embd": shape.d_model,
        "n_layer": shape.n_layers,
        "n_head": shape.n_heads,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": LAYERNORM_EPS,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": shape.tied_head,
        "bos_token_id": BOS,
        "eos_token_id": BOS,
        "use_cache": True,
        "torch_dtype": "float32",
    }


def generation_config(context: int) -> dict[str, Any]:
    """How andrea chat samples when it is told nothing else; past the context the library's GPT-2 ends with an error."""
    special = {"bos_token_id": BOS, "eos_token_id": BOS, "pad_token_id": BOS}
    most = min(TOKENS, context // 2)
    return {**special, "do_sample": True, "temperature": TEMPERATURE, "top_k": TOP_K, "max_new_tokens": most}


def tokenizer_config(context: int) -> dict[str, Any]:
    """tokenizer_config.json for tokenizer.json, and the chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS_TEXT,
        "eos_token": BOS_TEXT,
        "pad_token": BOS_TEXT,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": chat_template(),
    }


def chat_template() -> str:
    """Messages -> BOS and megachat text, in Jinja: a system message goes in front of the user's turn that follows it."""
    escapes = "".join(f"|replace({_quoted(f'{NL}{c}')},{_quoted(f'{NL}{ESCAPE}{c}')})" for c in _AMBIGUOUS)
    return (
        "{{- bos_token -}}"
        "{%- set ns = namespace(system='', first=true) -%}"
        "{%- for message in messages -%}"
        "{%- if message['role'] == 'system' -%}"
        "{%- set ns.system = ns.system + message['content'] + '\\n\\n' -%}"
        "{%- else -%}"
        "{%- if not ns.first -%}{{- '\\n' -}}{%- endif -%}"
        "{%- set mark = '" + USER + "' if message['role'] == 'user' else '" + REPLY + "' -%}"
        "{{- mark + (ns.system + message['content'])" + escapes + " -}}"
        "{%- set ns.system = '' -%}{%- set ns.first = false -%}"
        "{%- endif -%}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '\\n" + REPLY + "' -}}{%- endif -%}"
    )


NL = "\n"
_AMBIGUOUS = (ESCAPE, "\x1e", USER, REPLY)  # the escape itself first, or it would escape the others' escapes


def _quoted(text: str) -> str:
    """A Jinja string."""
    return "'" + text.encode("unicode_escape").decode().replace("'", "\\'") + "'"
