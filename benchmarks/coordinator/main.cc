// Figures of the coordinator: a real tesserad over its socket, with clients and agents that cost as
// little as they can, on the same machine.
//
//   coordinator_benchmark [--tesserad PATH] [--dir DIR]
//   submits|watches|slow-watchers|memory|history
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "benchmarks/coordinator/bench.h"
#include "tests/client/temp_dir.h"

int main(int argc, char** argv) {
  CLI::App app{"Figures of the coordinator"};
  tessera::bench::Place place{.tesserad = TESSERAD, .directory = {}};
  std::string directory;
  app.add_option("--tesserad", place.tesserad, "The program")->capture_default_str();
  app.add_option("--dir", directory,
                 "For the database and the log, which stay; else below the temporary directory");
  app.require_subcommand(1);
  tessera::bench::add_submits(app, place);
  tessera::bench::add_watches(app, place);
  tessera::bench::add_slow_watchers(app, place);
  tessera::bench::add_memory(app, place);
  tessera::bench::add_history(app, place);
  const tessera::TempDir temporary;
  app.parse_complete_callback([&] {
    place.directory = directory.empty() ? temporary.path() : std::filesystem::path(directory);
    std::filesystem::create_directories(place.directory);
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "coordinator_benchmark: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
