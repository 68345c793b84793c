#include "server/web/pages.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;"
    "color:#1b1f24}h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .8rem .3rem 0;"
    "border-bottom:1px solid #d8dee4}td.n,th.n{text-align:right}"
    "pre{background:#f6f8fa;padding:1rem;overflow:auto}.SUCCEEDED{color:#1a7f37}"
    ".FAILED,.LOST{color:#cf222e}.RUNNING,.READY{color:#0969da}";

std::string page(const std::string& title, const std::string& body) {
  return absl::StrCat("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">",
                      "<meta http-equiv=\"refresh\" content=\"5\"><title>", escape_html(title),
                      "</title><style>", kStyle, "</style></head><body><h1>", escape_html(title),
                      "</h1>", body, "</body></html>\n");
}

std::string cell(const std::string& text) { return "<td>" + escape_html(text) + "</td>"; }
std::string number(const std::string& text) { return "<td class=\"n\">" + text + "</td>"; }

std::string state_cell(const std::string& name) {
  return absl::StrCat("<td class=\"", name, "\">", name, "</td>");
}

std::string mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f", static_cast<double>(bytes) / (1 << 20));
}

// What is left at the mean pace of the steps in the ring.
std::string time_left(const JobSeries& series) {
  if (series.job.state() != v1::Job::RUNNING || series.steps.empty()) return "";
  double seconds = 0;
  for (const v1::StepMetrics& step : series.steps) seconds += step.time().total_seconds();
  const v1::StepMetrics& last = series.steps.back();
  const double left = (last.total_steps() - last.step()) * seconds / series.steps.size();
  return absl::FormatDuration(absl::Trunc(absl::Seconds(left), absl::Seconds(1)));
}

std::string job_row(const JobSeries& series) {
  const v1::Job& job = series.job;
  std::string row =
      absl::StrCat("<tr><td><a href=\"/jobs/", escape_html(job.id()), "\">", escape_html(job.id()),
                   "</a></td>", state_cell(std::string(state_name(job.state()))));
  const v1::StepMetrics& step = job.step();
  if (job.has_step()) {
    absl::StrAppend(&row, number(absl::StrCat(step.step(), " / ", step.total_steps())),
                    number(absl::StrFormat("%.4f", step.loss())),
                    number(absl::StrFormat("%.0f", step.tokens_per_second())));
  } else {
    absl::StrAppend(&row, number(""), number(""), number(""));
  }
  return absl::StrCat(row, number(time_left(series)), cell(job.reason()), "</tr>");
}

std::string node_row(const v1::Node& node, absl::Time now) {
  std::string devices;
  for (const v1::Device& device : node.devices()) {
    absl::StrAppend(&devices, devices.empty() ? "" : ", ", device.kind(), ":", device.index(),
                    device.job().empty() ? "" : " (" + device.job() + ")");
  }
  const auto age = absl::Trunc(now - from_proto(node.last_seen_time()), absl::Seconds(1));
  return absl::StrCat("<tr>", cell(node.name()), state_cell(v1::Node::State_Name(node.state())),
                      cell(node.hostname()), cell(devices),
                      cell(absl::StrCat(absl::FormatDuration(age), " ago")), "</tr>");
}

std::string memory_row(int rank, const std::string& name, int64_t now, int64_t at_peak,
                       int64_t own_peak) {
  return absl::StrCat("<tr>", cell(absl::StrCat(rank)), cell(name), number(mebibytes(now)),
                      number(mebibytes(at_peak)), number(mebibytes(own_peak)), "</tr>");
}

std::string memory_table(const JobSeries& series) {
  std::string table =
      "<h2>Memory (MiB)</h2><table><tr><th>rank</th><th>owner</th><th class=\"n\">now</th>"
      "<th class=\"n\">at peak</th><th class=\"n\">own peak</th></tr>";
  const auto add = [&table](int rank, const std::string& space, const auto& owners) {
    for (const v1::OwnerBytes& owner : owners) {
      table += memory_row(rank, absl::StrCat(space, owner.owner()), owner.current_bytes(),
                          owner.at_peak_bytes(), owner.peak_bytes());
    }
  };
  for (const auto& [rank, memory] : series.memory) {
    add(rank, "", memory.owners());
    table +=
        memory_row(rank, "all", memory.current_bytes(), memory.peak_bytes(), memory.peak_bytes());
    add(rank, "host: ", memory.host_owners());
    table += memory_row(rank, "resident set", memory.rss_bytes(), memory.peak_rss_bytes(),
                        memory.peak_rss_bytes());
  }
  return table + "</table>";
}

// Of the last step.
std::string metrics_table(const v1::StepMetrics& step) {
  constexpr size_t kMaxRows = 64;
  const std::map<std::string, double> metrics(step.metrics().begin(), step.metrics().end());
  std::string table = "<h2>Metrics</h2><table><tr><th>name</th><th class=\"n\">value</th></tr>";
  size_t rows = 0;
  for (const auto& [name, value] : metrics) {
    if (++rows > kMaxRows) break;
    absl::StrAppend(&table, "<tr>", cell(name), number(absl::StrFormat("%.6g", value)), "</tr>");
  }
  return table + "</table>";
}

}  // namespace

std::string escape_html(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string render_overview(const Overview& overview, absl::Time now) {
  std::string jobs =
      "<h2>Jobs</h2><table><tr><th>job</th><th>state</th><th class=\"n\">step</th>"
      "<th class=\"n\">loss</th><th class=\"n\">tokens/s</th><th "
      "class=\"n\">left</th><th></th></tr>";
  std::vector<const JobSeries*> newest;
  for (const JobSeries& series : overview.jobs) newest.push_back(&series);
  std::sort(newest.begin(), newest.end(), [](auto* a, auto* b) {
    return from_proto(a->job.create_time()) > from_proto(b->job.create_time());
  });
  for (const JobSeries* series : newest) jobs += job_row(*series);
  std::string nodes =
      "</table><h2>Nodes</h2><table><tr><th>node</th><th>state</th><th>host</th><th>devices</th>"
      "<th>last seen</th></tr>";
  for (const v1::Node& node : overview.nodes) nodes += node_row(node, now);
  return page("Tessera", absl::StrCat(jobs, nodes, "</table>"));
}

std::string render_job(const JobSeries& series, absl::Time now) {
  const v1::Job& job = series.job;
  const auto age = absl::Trunc(now - from_proto(job.create_time()), absl::Seconds(1));
  std::string body = absl::StrCat(
      "<p><a href=\"/\">All jobs</a></p><table><tr><th>job</th><th>state</th>"
      "<th class=\"n\">step</th><th class=\"n\">loss</th><th class=\"n\">tokens/s</th>"
      "<th class=\"n\">left</th><th></th></tr>",
      job_row(series), "</table><p>Submitted ", absl::FormatDuration(age), " ago. Attempt ",
      job.attempt(), ", ", job.restarts(), " restarts since the last checkpoint",
      job.has_checkpoint() ? absl::StrCat(" (step ", job.checkpoint().step(), ")") : "", ".</p>");
  if (!job.step().metrics().empty()) body += metrics_table(job.step());
  if (!series.memory.empty()) body += memory_table(series);
  body += "<h2>Log</h2><pre>";
  for (const v1::LogLine& line : series.log) {
    absl::StrAppend(&body, line.rank() < 0 ? "" : absl::StrCat("[", line.rank(), "] "),
                    escape_html(line.text()), "\n");
  }
  return page(job.id(), body + "</pre>");
}

}  // namespace tessera::server
