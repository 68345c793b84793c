#include "proto/spec/generation_relations.h"

#include <string>

#include <google/protobuf/descriptor.h>

#include "absl/strings/str_cat.h"
#include "proto/spec/bytes.h"
#include "proto/spec/field_text.h"
#include "proto/spec/method_fields.h"
#include "proto/spec/online_relations.h"

namespace tessera::spec {
namespace {

using Violations = std::vector<Violation>;

void check_generation(const v1::JobSpec& spec, Violations& out) {
  const v1::Generation& generation = spec.generation();
  if (generation.max_num_seqs() > generation.max_num_batched_tokens()) {
    out.push_back(
        {"generation.max_num_seqs",
         absl::StrCat("generation.max_num_seqs is ", generation.max_num_seqs(),
                      ", must be at most max_num_batched_tokens, ",
                      generation.max_num_batched_tokens(), ": a pass has a token of each")});
  }
  const auto refuse_merge = [&](const char* rest) {
    out.push_back({"generation.merge_adapter",
                   absl::StrCat("generation.merge_adapter is true, must be false ", rest)});
  };
  if (generation.merge_adapter() && !spec.has_peft())
    refuse_merge("without peft: there is no adapter");
  if (generation.merge_adapter() && spec.peft().quantization() != "none" && spec.has_peft())
    refuse_merge("with peft.quantization: a quantized matrix does not hold what an adapter adds");
  const std::string& memory = generation.kv_cache_memory();
  if (!memory.empty() && !parse_device_memory(memory)) {
    out.push_back(
        {"generation.kv_cache_memory", absl::StrCat("generation.kv_cache_memory is \"", memory,
                                                    "\", must be ", kDeviceMemoryRule)});
  }
}

// Why the job makes none.
std::string reason_of(const v1::JobSpec& spec) {
  if (!spec.data().rollouts().empty()) return "data.rollouts, which hold completions";
  const std::string method = method_fields(spec.method()).method;
  const char* how = spec.method().has_gkd() ? " with lmbda 0 and without seq_kd" : "";
  return absl::StrCat(method, ", which makes no completions", how);
}

// Else what is said of completions would be ignored.
void refuse_generation(const v1::JobSpec& spec, Violations& out) {
  v1::JobSpec plain;
  plain.mutable_generation();
  fill_defaults(plain);
  const v1::Generation &given = spec.generation(), &defaults = plain.generation();
  const auto refuse = [&](const std::string& field, const std::string& value) {
    out.push_back(
        {field, absl::StrCat(field, " is ", value, ", must be absent with ", reason_of(spec))});
  };
  for (int i = 0; i < given.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *given.GetDescriptor()->field(i);
    const std::string path = absl::StrCat("generation.", field.name());
    if (field.is_repeated()) {
      if (given.GetReflection()->FieldSize(given, &field) > 0) refuse(path, "given");
    } else if (given.GetReflection()->HasField(given, &field)) {
      const std::string value = to_text(given, field);
      if (value != to_text(defaults, field)) refuse(path, value);
    }
  }
}

}  // namespace

void check_generation_relations(const v1::JobSpec& spec, Violations& out) {
  if (makes_completions(spec)) {
    check_generation(spec, out);
  } else if (spec.has_method()) {
    refuse_generation(spec, out);
  }
}

}  // namespace tessera::spec
