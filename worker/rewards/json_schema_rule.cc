#include <limits>
#include <stdexcept>

#include "worker/data/mapped_file.h"
#include "worker/errors.h"
#include "worker/rewards/code_block.h"
#include "worker/rewards/json_schema.h"
#include "worker/rewards/rules.h"

namespace tessera {
namespace {

constexpr size_t kMaxSchemaBytes = 16 << 20;

class JsonSchemaRule : public RewardRule {
 public:
  JsonSchemaRule(JsonSchema schema, bool in_code_block)
      : schema_(std::move(schema)), in_code_block_(in_code_block) {}

  float score(const JudgedCompletion& completion) const override {
    std::string_view text = completion.completion;
    if (in_code_block_) text = last_code_block(text).value_or(text);
    const std::optional<nlohmann::json> value = parse_json(text);
    if (!value) return 0;
    const std::optional<bool> is_allowed = schema_.allows(*value);
    if (!is_allowed) return std::numeric_limits<float>::quiet_NaN();
    return *is_allowed ? 1 : 0;
  }

 private:
  const JsonSchema schema_;
  const bool in_code_block_;
};

}  // namespace

std::unique_ptr<RewardRule> make_json_schema(const v1::JsonSchemaReward& options,
                                             const std::string& field) {
  const std::string name = field + ".schema";
  const auto refuse = [&](const std::string& rest) {
    throw UserError(name, name + " " + options.schema() + ": " + rest);
  };
  const MappedFile file(options.schema(), name);
  if (file.contents().size() > kMaxSchemaBytes) refuse("is larger than 16 MiB");
  const std::optional<nlohmann::json> document = parse_json(file.contents());
  if (!document)
    refuse("is not JSON, or nested more than " + std::to_string(kMaxJsonNesting) + " deep");
  try {
    return std::make_unique<JsonSchemaRule>(JsonSchema(*document), options.in_code_block());
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
  return nullptr;
}

}  // namespace tessera
