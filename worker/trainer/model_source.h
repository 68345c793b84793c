// Where a model of a job comes from, that is not its policy.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "worker/errors.h"
#include "worker/model/config.h"

namespace tessera {

struct ModelSource {
  std::filesystem::path path;  // a Hugging Face directory
  std::string field;           // of the job file, that names it
  bool has_adapter = false;    // with the adapter of peft.adapter_path
};

// Does what may complain of model.path; here another field may name the model.
template <typename Work>
auto naming_its_field(const ModelSource& source, const Work& work) {
  constexpr std::string_view kField = "model.path";
  try {
    return work();
  } catch (const UserError& error) {
    if (error.field() != kField) throw;
    std::string message = error.what();
    if (message.starts_with(kField)) message.replace(0, kField.size(), source.field);
    throw UserError(source.field, message);
  }
}

// Its config.json. Throws UserError: also where its vocabulary is not the policy's.
ModelConfig read_config_of(const ModelSource& source, const ModelConfig& policy);

}  // namespace tessera
