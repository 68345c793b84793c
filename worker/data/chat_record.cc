#include "worker/data/chat_record.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

// `from` and `value` become `role` and `content`.
void convert_from_value(ordered_json& messages) {
  for (auto& message : messages) {
    if (!message.is_object()) continue;
    for (const auto& [from, to] : {std::pair("from", "role"), std::pair("value", "content")}) {
      if (!message.contains(from)) continue;
      ordered_json value = message[from];
      message.erase(from);
      message[to] = std::move(value);
    }
  }
}

}  // namespace

ordered_json read_messages(const Record& record, const std::string& field,
                           bool converts_from_value) {
  ordered_json list = record.json(field);
  if (!list.is_array() || list.empty() || !list.front().is_object()) {
    record.fail("\"" + field + "\" must be a list of messages, as in the first record");
  }
  if (converts_from_value) convert_from_value(list);
  for (const auto& message : list) {
    if (!message.is_object() || !message.contains("role")) {
      record.fail("each message of \"" + field + "\" must be an object with a role");
    }
  }
  return list;
}

ChatOptions read_chat_options(const Record& record) {
  ChatOptions options;
  if (record.is_string("tools")) {
    options.tools = ordered_json::parse(record.string("tools"), nullptr, false);
    if (options.tools.is_discarded()) record.fail("\"tools\" is a string, but not JSON");
  } else if (record.has("tools")) {
    options.tools = record.json("tools");
  }
  if (!record.has("chat_template_kwargs")) return options;
  options.variables = record.json("chat_template_kwargs");
  if (!options.variables.is_object()) record.fail("\"chat_template_kwargs\" must be an object");
  return options;
}

void refuse_generation_prompt(const Record& record, const ChatOptions& options) {
  if (options.variables.contains("add_generation_prompt")) {
    record.fail("chat_template_kwargs cannot set 'add_generation_prompt' of a prompt");
  }
}

}  // namespace tessera
