#include "worker/planner/planner.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "proto/spec/fields.h"
#include "proto/spec/rules.h"
#include "worker/errors.h"
#include "worker/planner/cost_model.h"
#include "worker/planner/search.h"
#include "worker/planner/techniques.h"

namespace tessera {
namespace {

constexpr double kDefaultSeconds = 10;
constexpr int64_t kNoLimit = int64_t{1} << 60;
// Of what ran out of memory, what the next plan may need.
constexpr double kAfterFailure = 0.95;

class Planner {
 public:
  Planner(const v1::PlanRequest& request, int64_t device_memory_bytes, const PlannerTools& tools)
      : request_(request),
        device_memory_bytes_(device_memory_bytes),
        tools_(tools),
        begin_(tools.seconds()),
        max_seconds_(request.max_seconds() > 0 ? request.max_seconds() : kDefaultSeconds),
        peak_ratio_(request.peak_ratio() > 0 ? request.peak_ratio() : 1),
        spec_(request.spec()) {
    spec::fill_defaults(spec_);
    const auto violations = spec::validate(spec_);
    if (!violations.empty()) throw UserError(violations.front().field, violations.front().message);
  }

  v1::Plan run() {
    const v1::Rehearsal as_written = rehearse(spec_);
    if (request_.has_failed()) bound_by_failed();
    // The first of them has read the data, which may have taken longer than all others will.
    others_begin_ = tools_.seconds();
    *plan_.mutable_as_written() = as_written;
    plan_.set_device_memory_bytes(device_memory_bytes_);
    plan_.set_peak_ratio(peak_ratio_);
    plan_.set_limit_bytes(limit() == kNoLimit ? 0 : limit());
    plan_.set_fits(fits(as_written));
    if (tools_.rates) plan_.set_rates(tools_.rates->name + ", " + tools_.rates->source);
    knobs_ = knobs_of(spec_);
    add_alternatives();
    choose();
    plan_.set_num_rehearsed(num_rehearsed_);
    plan_.set_seconds(tools_.seconds() - begin_);
    return std::move(plan_);
  }

 private:
  bool has_time() const {
    return num_rehearsed_ < kMaxRehearsals && tools_.seconds() - others_begin_ < max_seconds_;
  }

  bool fits(const v1::Rehearsal& rehearsal) const {
    return device_memory_bytes_ == 0 || peak_ratio_ * static_cast<double>(rehearsal.peak_bytes()) <=
                                            static_cast<double>(device_memory_bytes_);
  }

  // Of peak_bytes as rehearsed, with the margin, for the choice.
  int64_t limit() const {
    int64_t most = kNoLimit;
    if (device_memory_bytes_ > 0) {
      most = static_cast<int64_t>(static_cast<double>(device_memory_bytes_) *
                                  (1 - spec_.memory().auto_margin()) / peak_ratio_);
    }
    return std::min(most, most_after_failure_);
  }

  // What did not fit after all, however it was predicted. That may have been before the data
  // changed, so it is rehearsed again.
  void bound_by_failed() {
    v1::JobSpec failed = request_.failed();
    spec::fill_defaults(failed);
    const int64_t peak = rehearse(failed).peak_bytes();
    plan_.set_failed_peak_bytes(peak);
    most_after_failure_ = static_cast<int64_t>(kAfterFailure * static_cast<double>(peak));
  }

  v1::Rehearsal rehearse(const v1::JobSpec& spec) {
    ++num_rehearsed_;
    v1::Rehearsal rehearsal = tools_.rehearse(spec);
    if (tools_.rates) {
      rehearsal.mutable_cost()->set_seconds(
          step_seconds(rehearsal.cost(), *tools_.rates, spec.model().dtype()));
      if (rehearsal.has_generation_cost()) {
        rehearsal.mutable_generation_cost()->set_seconds(
            step_seconds(rehearsal.generation_cost(), *tools_.rates, spec.model().dtype()));
      }
    }
    return rehearsal;
  }

  // Absent: forbidden, or there is no time left.
  const v1::Rehearsal* try_rehearse(const v1::JobSpec& spec) {
    const std::string key = spec.SerializeAsString();
    const auto known = rehearsed_.find(key);
    if (known != rehearsed_.end()) return known->second ? &*known->second : nullptr;
    if (!has_time()) return nullptr;
    std::optional<v1::Rehearsal>& slot = rehearsed_[key];
    if (!is_allowed(spec)) return nullptr;
    try {
      slot = rehearse(spec);
    } catch (const UserError&) {
      return nullptr;
    }
    return &*slot;
  }

  v1::JobSpec with(const Combination& combination, const std::vector<Knob>& knobs) const {
    v1::JobSpec spec = spec_;
    for (size_t i = 0; i < knobs.size(); ++i) {
      if (combination[i] < 0) continue;
      spec = with_setting(std::move(spec), knobs[i].settings[static_cast<size_t>(combination[i])]);
    }
    return spec;
  }

  bool overrides(const Setting& setting) const {
    return std::any_of(setting.changes.begin(), setting.changes.end(), [&](const auto& change) {
      return spec::has_field(request_.spec(), change.field()) &&
             spec::get_field(spec_, change.field()) != change.value();
    });
  }

  void describe(const v1::Rehearsal& rehearsal, v1::Alternative& alternative) const {
    *alternative.mutable_rehearsal() = rehearsal;
    const v1::Rehearsal& before = plan_.as_written();
    alternative.set_saved_bytes(before.peak_bytes() - rehearsal.peak_bytes());
    const double seconds = before.cost().seconds();
    alternative.set_time_ratio(seconds > 0 ? rehearsal.cost().seconds() / seconds : 0);
    alternative.set_fits(fits(rehearsal));
  }

  // Only fields that are another than the job's.
  void add_setting(const Setting& setting, v1::Alternative& alternative) const {
    alternative.set_title(alternative.title().empty() ? setting.title
                                                      : alternative.title() + "; " + setting.title);
    for (const v1::FieldChange& change : setting.changes) {
      if (spec::get_field(spec_, change.field()) == change.value()) continue;
      *alternative.add_changes() = change;
    }
    alternative.set_exact(alternative.exact() && setting.exact);
    alternative.set_overrides(alternative.overrides() || overrides(setting));
  }

  void add_alternatives() {
    std::vector<v1::Alternative> alternatives;
    for (const Knob& knob : knobs_) {
      for (const Setting& setting : knob.settings) {
        const v1::Rehearsal* rehearsal = try_rehearse(with_setting(spec_, setting));
        if (rehearsal == nullptr) continue;
        v1::Alternative& alternative = alternatives.emplace_back();
        alternative.set_exact(true);
        add_setting(setting, alternative);
        describe(*rehearsal, alternative);
      }
    }
    std::stable_sort(alternatives.begin(), alternatives.end(), [](const auto& a, const auto& b) {
      return a.saved_bytes() > b.saved_bytes();
    });
    for (v1::Alternative& alternative : alternatives) {
      *plan_.add_alternatives() = std::move(alternative);
    }
  }

  // Settings that auto may take.
  std::vector<Knob> free_knobs() const {
    std::vector<Knob> knobs = knobs_;
    for (Knob& knob : knobs) {
      std::erase_if(knob.settings,
                    [&](const Setting& setting) { return !setting.exact || overrides(setting); });
    }
    std::erase_if(knobs, [](const Knob& knob) { return knob.settings.empty(); });
    return knobs;
  }

  void choose() {
    const std::vector<Knob> knobs = free_knobs();
    SearchSpace space;
    space.limit_bytes = limit();
    for (const Knob& knob : knobs)
      space.num_settings.push_back(static_cast<int>(knob.settings.size()));
    space.rehearse = [&](const Combination& combination) -> std::optional<Outcome> {
      if (std::all_of(combination.begin(), combination.end(), [](int i) { return i < 0; })) {
        return Outcome{plan_.as_written().peak_bytes(), plan_.as_written().cost().seconds()};
      }
      const v1::Rehearsal* rehearsal = try_rehearse(with(combination, knobs));
      if (rehearsal == nullptr) return std::nullopt;
      return Outcome{rehearsal->peak_bytes(), rehearsal->cost().seconds()};
    };
    const std::optional<Combination> found = find_fastest(space);
    if (!found) return;
    v1::Alternative& choice = *plan_.mutable_choice();
    choice.set_exact(true);
    const v1::Rehearsal* rehearsal = &plan_.as_written();
    for (size_t i = 0; i < knobs.size(); ++i) {
      if ((*found)[i] < 0) continue;
      add_setting(knobs[i].settings[static_cast<size_t>((*found)[i])], choice);
      rehearsal = try_rehearse(with(*found, knobs));
    }
    if (choice.title().empty()) choice.set_title("the job as written");
    describe(*rehearsal, choice);
  }

  const v1::PlanRequest& request_;
  const int64_t device_memory_bytes_;
  const PlannerTools& tools_;
  const double begin_;
  const double max_seconds_;
  const double peak_ratio_;
  double others_begin_ = 0;
  v1::JobSpec spec_;  // defaults filled in
  int64_t most_after_failure_ = kNoLimit;
  std::vector<Knob> knobs_;
  std::map<std::string, std::optional<v1::Rehearsal>> rehearsed_;  // by serialized spec
  int num_rehearsed_ = 0;
  v1::Plan plan_;
};

}  // namespace

v1::Plan make_plan(const v1::PlanRequest& request, int64_t device_memory_bytes,
                   const PlannerTools& tools) {
  return Planner(request, device_memory_bytes, tools).run();
}

}  // namespace tessera
