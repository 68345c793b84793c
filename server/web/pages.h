// The status pages, as HTML that needs no script. Everything that came from users is escaped.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "server/telemetry/metrics_page.h"

namespace tessera::server {

// All recent jobs, and the nodes.
std::string render_overview(const Overview& overview, absl::Time now);

// One job: its state, memory by owner, last log lines.
std::string render_job(const JobSeries& series, absl::Time now);

// With &, <, >, " and ' replaced.
std::string escape_html(const std::string& text);

}  // namespace tessera::server
