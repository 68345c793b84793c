// Which max_length and packing fit the lengths of documents.
#pragma once

#include "tessera/v1/inspect.pb.h"
#include "worker/data/truncation.h"

namespace tessera {

// Looks at the counts of the profile's choices, which are of growing max_length. The least
// max_length that truncates next to nothing wins, unless a longer row is filled much better; rows
// are packed wherever that makes them fuller, and the choices say how they would be. Absent advice
// where there are no choices or tokens. `left_out`: what the choices count as lost.
void add_length_advice(v1::DataProfile& profile, LeftOut left_out);

}  // namespace tessera
