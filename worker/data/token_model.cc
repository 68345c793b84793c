#include "worker/data/token_model.h"

#include "worker/data/bpe.h"
#include "worker/data/unigram.h"
#include "worker/data/word_models.h"

namespace tessera {
namespace {

// Files of old do not say what the model is.
std::string_view type_of(const JsonNode& model) {
  if (const auto type = model.find("type")) return type->string();
  if (model.find("merges")) return "BPE";
  if (const auto vocab = model.find("vocab"); vocab && vocab->is_array()) return "Unigram";
  return model.find("continuing_subword_prefix") ? "WordPiece" : "WordLevel";
}

}  // namespace

std::unique_ptr<const TokenModel> make_token_model(const JsonNode& options, const JsonNode& model,
                                                   bool bytes) {
  const auto type = type_of(options);
  if (type_of(model) != type) {
    model.fail("is of type " + std::string(type_of(model)) + " where the tokenizer_class needs " +
               std::string(type));
  }
  if (type == "BPE") return std::make_unique<Bpe>(read_bpe(options, model), bytes);
  if (type == "Unigram") return std::make_unique<Unigram>(read_unigram(options, model));
  if (type == "WordLevel") return std::make_unique<WordLevel>(options, model);
  if (type == "WordPiece") return std::make_unique<WordPiece>(options, model);
  model.fail("is of type " + std::string(type) + ", which is not supported");
}

}  // namespace tessera
