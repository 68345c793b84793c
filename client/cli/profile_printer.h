// A profile of lengths for people: a histogram, quantiles, a table, and what follows from them.
#pragma once

#include "client/cli/terminal.h"
#include "tessera/v1/inspect.pb.h"

namespace tessera::cli {

// As wide as the terminal, but at least 60 columns and at most 100.
void print_profile(const Terminal& terminal, const v1::DataProfile& profile);

}  // namespace tessera::cli
