// Collectives that a flight recorder sees.
#pragma once

#include <memory>

#include "worker/parallel/collectives.h"
#include "worker/parallel/flight_recorder.h"
#include "worker/parallel/mesh.h"

namespace tessera {

// The same collectives, each told to `recorder` under the group's name (telemetry.proto,
// Collective.group). Of one rank, nothing is told: it never waits. All must outlive it.
std::unique_ptr<Collectives> make_recorded_collectives(Collectives& inner, const char* name,
                                                       FlightRecorder& recorder);

// All groups of the mesh so.
Mesh recorded(const Mesh& mesh, FlightRecorder& recorder);

}  // namespace tessera
