// Llama: the plain decoder. Source: transformers/models/llama/modeling_llama.py.
#include "worker/model/families.h"

namespace tessera {

void adjust_llama(ModelConfig& config) { config.qk_norm = false; }

}  // namespace tessera
