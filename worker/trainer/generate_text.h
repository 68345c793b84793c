// Text of a trained model: `tessera-trainer --generate`.
#pragma once

#include <functional>

#include "tessera/v1/generate.pb.h"

namespace tessera {

// Replies are made as tokens are; completions of all prompts run together. On one rank. Throws
// UserError naming the field of the request.
void generate_text(const v1::GenerateRequest& request,
                   const std::function<void(const v1::GenerateReply&)>& reply);

}  // namespace tessera
