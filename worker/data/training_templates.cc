#include "worker/data/training_templates.h"

#include <span>
#include <stdexcept>

#include "worker/data/content_hash.h"

namespace tessera {
namespace {

// Replaces what stands from the first `begin` up to the next `end`; where they are the same,
// nothing: then `text` goes in front of it.
struct Edit {
  std::string_view begin;
  std::string_view end;
  std::string_view text;
};

constexpr std::string_view kEndOfTurn = "{%- endgeneration %}\n    ";
constexpr std::string_view kToolBranch = "{%- elif message.role == \"tool\" %}";

constexpr Edit kLlama3[] = {
    {"{{ content }}", "{% endfor %}",
     "{% if message['role'] == 'assistant' %}"
     "{% set header = (bos_token if loop.index0 == 0 else '') "
     "+ '<|start_header_id|>assistant<|end_header_id|>\n\n' %}{{ header }}"
     "{% generation %}{{ content[header | length:] }}{% endgeneration %}"
     "{% else %}{{ content }}{% endif %}"},
};
// All that follows the role of a turn is the assistant's to say.
constexpr Edit kQwen25[] = {
    {" or (message.role == \"assistant\" and not message.tool_calls)", " %}", ""},
    {"{%- if message.content %}", "\n            {{- '\\n' + message.content }}",
     "{%- generation %}{%- if message.content or not message.tool_calls %}"},
    {kToolBranch, kToolBranch, kEndOfTurn},
};
// Every turn keeps its thoughts, also those before the last question: a conversation then begins as
// its shorter self did.
constexpr Edit kQwen3[] = {
    {"{%- if loop.index0 > ns.last_query_index %}", "{%- if message.tool_calls %}",
     "{{- '<|im_start|>' + message.role + '\\n' }}{%- generation %}"
     "{{- '<think>\\n' ~ reasoning_content.strip('\\n') ~ '\\n</think>\\n\\n' "
     "~ content.lstrip('\\n') }}\n        "},
    {kToolBranch, kToolBranch, kEndOfTurn},
};
constexpr Edit kQwen3Instruct[] = {
    {"{{- '<|im_start|>' + message.role + '\\n' + content }}", "\n        {%- if message.tool",
     "{{- '<|im_start|>' + message.role + '\\n' }}{%- generation %}{{- content }}"},
    {kToolBranch, kToolBranch, kEndOfTurn},
};
constexpr Edit kGemma[] = {
    {"{{ '<start_of_turn>' + role", "{% endfor %}",
     "{{ '<start_of_turn>' + role + '\n' }}{% set said = message['content'] | trim %}"
     "{% if message['role'] == 'assistant' %}"
     "{% generation %}{{ said + '<end_of_turn>\n' }}{% endgeneration %}"
     "{% else %}{{ said + '<end_of_turn>\n' }}{% endif %}"},
};
// Phi-3 and Phi-3.5. The end of the text is the assistant's where it had the last word.
constexpr Edit kPhi3[] = {
    {"{{'<|assistant|>", "{% endif %}{% endfor %}",
     "{{ '<|assistant|>\n' }}"
     "{% generation %}{{ message['content'] + '<|end|>\n' }}{% endgeneration %}"},
    {"{% else %}{{ eos_token }}", "{% else %}{{ eos_token }}",
     "{% elif messages[-1]['role'] == 'assistant' %}"
     "{% generation %}{{ eos_token }}{% endgeneration %}"},
};
// The thoughts stay, which the template itself drops.
constexpr Edit kDeepSeekR1Distill[] = {
    {"{%- for tool in message['tool_calls']", "{%- for tool in message['tool_calls']",
     "{%- generation %}"},
    {"{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none",
     "{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none",
     "{%- endgeneration %}"},
    {"{{'<｜tool▁outputs▁end｜>' + message", "{{'<｜tool▁outputs▁end｜>' + message",
     "{%- generation %}"},
    {"{%- else %}{% set content", "{{'<｜Assistant｜>' + content",
     "{%- endgeneration %}{%- else %}"
     "{%- generation %}{% set content = message['content'] %}"},
    {"{%- endif %}{%- endif %}{%- if message['role'] == 'tool'",
     "{%- endif %}{%- endif %}{%- if message['role'] == 'tool'", "{%- endgeneration %}"},
};

struct KnownTemplate {
  std::string_view hash;  // ContentHash of its source
  std::span<const Edit> edits;
};

constexpr KnownTemplate kKnown[] = {
    {"f3129ae0a7bd6e2f540dfdc2fa310743", kLlama3},             // Llama 3
    {"340d11393265c77f727db05f3ca4a119", kQwen25},             // Qwen2.5
    {"979ab1477ab40594a1ed3853f0afbd48", kQwen3},              // Qwen3
    {"03d5f1491b02b12078770530992edd9d", kQwen3Instruct},      // Qwen3 Instruct 2507
    {"6787d60471ebff4f371f0106acc8cb98", kGemma},              // Gemma and Gemma 2
    {"0acd218524e9dc6af38959d18c236534", kPhi3},               // Phi-3
    {"72772253efc874ce454475fb4050ff21", kPhi3},               // Phi-3.5
    {"623a8fbc039c984b5dcb91884b603b59", kDeepSeekR1Distill},  // DeepSeek-R1 distilled
};

std::string edited(std::string source, std::span<const Edit> edits) {
  for (const Edit& edit : edits) {
    const size_t begin = source.find(edit.begin);
    const size_t end = source.find(edit.end, begin);
    if (end == std::string::npos) throw std::logic_error("an edit does not fit its template");
    source.replace(begin, end - begin, edit.text);
  }
  return source;
}

}  // namespace

std::optional<std::string> training_template(const std::string& source) {
  ContentHash hash;
  hash.add(source);
  const std::string hex = hash.hex();
  for (const KnownTemplate& known : kKnown) {
    if (known.hash == hex) return edited(source, known.edits);
  }
  return std::nullopt;
}

}  // namespace tessera
