#include "client/cli/profile_printer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "absl/strings/str_split.h"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void add_bin(v1::DataProfile& profile, int64_t begin, int64_t end, int64_t documents,
             int64_t tokens) {
  v1::LengthBin& bin = *profile.add_bins();
  bin.set_begin(begin);
  bin.set_end(end);
  bin.set_num_documents(documents);
  bin.set_num_tokens(tokens);
}

void add_choice(v1::DataProfile& profile, int32_t max_length, int64_t cut_documents,
                int64_t cut_tokens, int64_t num_rows) {
  v1::LengthChoice& choice = *profile.add_choices();
  choice.set_max_length(max_length);
  choice.set_num_truncated_documents(cut_documents);
  choice.set_num_truncated_tokens(cut_tokens);
  choice.set_num_padding_tokens(500);
  for (const char* strategy : {"bfd", "bfd_split", "wrapped"}) {
    v1::PackedRows& packed = *choice.add_packed();
    packed.set_strategy(strategy);
    packed.set_num_rows(num_rows);
    packed.set_num_tokens(1500 - cut_tokens);
  }
}

v1::DataProfile sample() {
  v1::DataProfile profile;
  profile.set_num_documents(20);
  profile.set_num_tokens(1500);
  profile.set_mean_tokens(75);
  profile.set_batch_rows(4);
  for (const auto& [share, tokens] : {std::pair(0.0, 40), {0.5, 70}, {0.999, 200}, {1.0, 200}}) {
    v1::LengthQuantile& quantile = *profile.add_quantiles();
    quantile.set_share(share);
    quantile.set_num_tokens(tokens);
  }
  add_bin(profile, 32, 64, 8, 400);
  add_bin(profile, 64, 128, 11, 900);
  add_bin(profile, 128, 256, 1, 200);
  add_choice(profile, 64, 12, 480, 17);
  add_choice(profile, 256, 0, 0, 6);
  profile.mutable_choices(0)->set_is_of_job(true);
  profile.mutable_advice()->set_max_length(256);
  profile.mutable_advice()->set_packing_strategy("bfd");
  profile.mutable_advice()->add_reasons(
      "No document is longer than 256 tokens, and this sentence goes on for so long that it needs "
      "a second line.");
  return profile;
}

std::string printed(const v1::DataProfile& profile, size_t width, bool colour) {
  std::ostringstream out, err;
  print_profile(Terminal{.out = out, .err = err, .colour = colour, .width = width}, profile);
  return out.str();
}

constexpr const char* kGolden =
    R"(20 documents, 1500 tokens

           TOKENS  DOCUMENTS                                     SHARE   TOKENS
      32 -     63  ██████████████████████████████▌               40.0%    26.7%
      64 -    127  ██████████████████████████████████████████    55.0%    60.0%
     128 -    255  ███▉                                           5.0%    13.3%

min  median  p99.9  max  mean
 40      70    200  200  75.0

MAX_LENGTH  CUT OFF  DOCS CUT  PADDING    BFD  BFD_SPLIT  WRAPPED  ROWS
       64'    32.0%     60.0%    32.9%  93.8%      93.8%    93.8%    17
     * 256     0.0%      0.0%    25.0%  97.7%      97.7%    97.7%     6
CUT OFF: tokens lost to truncation. PADDING: of a padded batch of 4, in random order.
BFD ...: how full packed rows are. ROWS: of bfd. ': the job's.

max_length: 256, packing: true, packing_strategy: bfd
  No document is longer than 256 tokens, and this sentence goes on for so long
  that it needs a second line.
)";

TEST(ProfilePrinter, ShowsHistogramTableAndAdvice) {
  EXPECT_EQ(printed(sample(), 80, false), kGolden);
}

TEST(ProfilePrinter, MarksTheAdviceWithColour) {
  const std::string text = printed(sample(), 80, true);
  EXPECT_THAT(text, HasSubstr("\033[1;32mmax_length: 256, packing: true"));
}

TEST(ProfilePrinter, ShowsNoShareOfNothingAsNothing) {
  v1::DataProfile profile = sample();
  profile.set_num_documents(1'000'000);
  EXPECT_THAT(printed(profile, 80, false), HasSubstr("<0.1%"));
}

TEST(ProfilePrinter, FoldsShortDocumentsIntoOneBin) {
  v1::DataProfile profile = sample();
  profile.clear_bins();
  for (int64_t begin = 1; begin < 2000; begin += 50) add_bin(profile, begin, begin + 50, 1, 50);
  const std::string text = printed(profile, 80, false);
  EXPECT_THAT(text, HasSubstr("       1 -    850"));
  EXPECT_THAT(text, Not(HasSubstr("      51 -")));
}

TEST(ProfilePrinter, SaysWhatIsASampleAndStopsWhereThereIsNothing) {
  v1::DataProfile profile;
  profile.set_max_documents(5);
  EXPECT_EQ(printed(profile, 80, false),
            "0 documents, 0 tokens; of each source at most 5 are read\n\n");
}

TEST(ProfilePrinter, SaysOfPairsHowManyWouldBeLeftOut) {
  v1::DataProfile profile = sample();
  for (v1::LengthChoice& choice : *profile.mutable_choices()) choice.clear_packed();
  profile.mutable_choices(0)->set_num_lost_documents(12);
  profile.mutable_advice()->set_packing_strategy("none");
  const std::string text = printed(profile, 80, false);
  EXPECT_THAT(text, HasSubstr("LEFT OUT"));
  EXPECT_THAT(text, HasSubstr("\nmax_length: 256\n"));
  EXPECT_THAT(text, Not(HasSubstr("BFD")));
  EXPECT_THAT(text, Not(HasSubstr("packing")));
}

}  // namespace
}  // namespace tessera::cli
