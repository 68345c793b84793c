// What a model will see of a job's documents.
#pragma once

#include <functional>

#include "tessera/v1/inspect.pb.h"

namespace tessera {

// Reads the documents as a job of the request would, and replies. Throws UserError.
void inspect(const v1::InspectRequest& request,
             const std::function<void(const v1::InspectReply&)>& reply);

}  // namespace tessera
