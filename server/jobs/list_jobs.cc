#include "server/jobs/list_jobs.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

// Reads of the store in search of a job that the caller may see. A page may have fewer jobs than it
// could, and even none, with more to come.
constexpr int kMaxReadsPerPage = 16;

// A page token holds where the next page starts, and the filter it belongs to.
std::string make_token(int64_t before, const std::string& filter) {
  return absl::WebSafeBase64Escape(absl::StrCat("1:", before, ":", filter));
}

bool read_token(const std::string& token, const std::string& filter, int64_t& before) {
  std::string text;
  if (!absl::WebSafeBase64Unescape(token, &text)) return false;
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  return parts.size() == 3 && parts[0] == "1" && absl::SimpleAtoi(parts[1], &before) &&
         parts[2] == filter;
}

}  // namespace

absl::Status list_jobs(Reader& reader, const std::function<bool(const std::string& project)>& sees,
                       const v1::ListJobsRequest& request, v1::ListJobsResponse& response) {
  if (request.page_size() < 0 || request.page_size() > kMaxPageSize) {
    return invalid_request(
        {{"page_size", absl::StrCat("page_size must be between 0 and ", kMaxPageSize, ", is ",
                                    request.page_size())}});
  }
  std::vector<v1::Job::State> states;
  for (const int state : request.states()) states.push_back(static_cast<v1::Job::State>(state));
  const std::string filter = absl::StrJoin(states, ",");
  int64_t before = std::numeric_limits<int64_t>::max();
  if (!request.page_token().empty() && !read_token(request.page_token(), filter, before)) {
    return invalid_request(
        {{"page_token", "page_token is not one that this request's previous page gave"}});
  }
  const int size = request.page_size() == 0 ? kDefaultPageSize : request.page_size();
  bool more = true;
  for (int i = 0; i < kMaxReadsPerPage && more && response.jobs().empty(); ++i) {
    JobPage page = reader([&](Queries& queries) { return queries.list(before, states, size); });
    more = page.more;
    for (JobRecord& record : page.records) {
      before = record.number();
      if (sees(record.job().spec().project()))
        *response.add_jobs() = std::move(*record.mutable_job());
    }
  }
  if (more) response.set_next_page_token(make_token(before, filter));
  return absl::OkStatus();
}

}  // namespace tessera::server
