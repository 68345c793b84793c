// What the sources say that are linked in place of those for CUDA.
#pragma once

namespace tessera {

inline constexpr char kNoCuda[] =
    "this build has no CUDA backend; configure with -DTESSERA_CUDA=ON";

}  // namespace tessera
