// What a record says about its conversation.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "worker/data/chat_template.h"
#include "worker/data/record.h"

namespace tessera {

// The messages of a field. With `converts_from_value` they say `from` and `value` in place of
// `role` and `content`. Throws UserError through record.fail: no list of objects with a role, or
// empty.
nlohmann::ordered_json read_messages(const Record& record, const std::string& field,
                                     bool converts_from_value = false);

// `tools`, a list or JSON as text, and `chat_template_kwargs`. Throws UserError likewise.
ChatOptions read_chat_options(const Record& record);

// A prompt is always written up to where the assistant begins.
void refuse_generation_prompt(const Record& record, const ChatOptions& options);

}  // namespace tessera
