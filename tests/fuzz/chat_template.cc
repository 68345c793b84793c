// Chat templates, and the conversations that are put in them.
#include "worker/data/chat_template.h"

#include "tests/fuzz/fuzz.h"
#include "worker/errors.h"

namespace {

constexpr int kMaxDepth = 64;  // as of records that are read

nlohmann::ordered_json parse(std::string_view text) {
  using Json = nlohmann::ordered_json;
  const auto is_shallow = [](int depth, Json::parse_event_t, Json&) { return depth < kMaxDepth; };
  Json json = Json::parse(text, is_shallow, false);
  return json.is_discarded() ? Json() : json;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto [source, messages, tools] = fuzz::parts_of<3>(fuzz::text_of(data, size));
  const fuzz::Directory directory;
  directory.write("a.jinja", source);
  try {
    const ChatTemplateSources sources =
        read_chat_templates(directory.path() / "a.jinja", "model.tokenizer");
    has_generation_markers(sources.at("default"));
    const ChatTemplates templates(sources, {{"eos_token", "</s>"}}, 0, "model.tokenizer");
    templates.render(parse(messages), {.tools = parse(tools), .variables = {}}, true);
  } catch (const std::runtime_error&) {  // UserError is one
  }
  return 0;
}
