// An adapter directory as PEFT writes and reads it: adapter_config.json, and
// adapter_model.safetensors with what was trained.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "worker/model/adapter_names.h"
#include "worker/model/decoder.h"
#include "worker/model/lora.h"
#include "worker/model/safetensors.h"

namespace tessera {

// What adapter_config.json asks for. Throws UserError("peft.adapter_path", ...) naming the field
// where it is malformed, or asks for what is not built.
LoraOptions read_adapter_config(const std::filesystem::path& directory);

// The text of an adapter_config.json for the adapters of `model`, which add_adapters() made with
// `options`. `base` is the directory of the frozen weights.
std::string adapter_config_text(DecoderModel& model, const LoraOptions& options,
                                const std::filesystem::path& base);

// Whether one matrix is trained that is tied to another, and what the files have it as, too.
bool trains_tied_matrix(DecoderModel& model);
inline const std::map<std::string, std::string> kTiedNames = {
    {"model.embed_tokens.weight", "lm_head.weight"}};

// adapter_model.safetensors of a directory, which holds every trained parameter of `model` in its
// shape. Throws UserError("peft.adapter_path", ...) where it does not.
SafetensorsFile open_adapter(DecoderModel& model, const std::filesystem::path& directory);

}  // namespace tessera
