// The text of a config.json with some members changed, all other bytes as they are.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

// With its dtype ("float32", "bfloat16", "float16") set, under the name it has there: dtype, or
// torch_dtype as before transformers 4.56. Returns an empty string when the text is not a JSON
// object.
std::string config_with_dtype(const std::string& config, const std::string& dtype);

// That of a model which scores documents: architectures names `class_name`
// ("Llama")ForSequenceClassification, with one label, whose name stays where it has one. Documents
// end before tokens pad_token_id (-1: as config.json says). Returns an empty string when the text
// is not a JSON object.
std::string config_of_classifier(const std::string& config, const std::string& class_name,
                                 int64_t pad_token_id);

}  // namespace tessera
