#include "client/cli/data_printer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::InspectReply row_reply() {
  v1::InspectReply reply;
  v1::InspectedDocument& document = *reply.mutable_row()->add_documents();
  for (const auto& [text, counts] : {std::pair("ask", false), std::pair("", true),
                                     std::pair("an\x1b[2Jswer", true), std::pair("\n", false)}) {
    document.add_ids(document.ids_size());
    document.add_texts(text);
    document.add_labels(counts);
  }
  return reply;
}

class DataPrinterTest : public ::testing::Test {
 protected:
  std::string printed(const v1::InspectReply& reply, bool colour, bool json) {
    std::ostringstream out;
    const Terminal terminal{.out = out, .err = err_, .out_is_tty = colour, .colour = colour};
    DataPrinter(terminal, json).print(reply);
    return out.str();
  }

  std::ostringstream err_;
};

TEST_F(DataPrinterTest, MarksWhatTheLossCountsWhereThereAreNoColours) {
  EXPECT_EQ(printed(row_reply(), false, false),
            "\nrow 0: 1 document, 4 tokens, 2 in the loss\n"
            "--- document 0: 4 tokens, 2 in the loss\n"
            "ask{+an?[2Jswer+}\n\n");
}

TEST_F(DataPrinterTest, ColoursTokensAndLetsNoDocumentDriveTheTerminal) {
  const std::string text = printed(row_reply(), true, false);
  EXPECT_THAT(text, HasSubstr("\033[90mask\033[0m\033[32man?[2Jswer\033[0m"));
  EXPECT_THAT(text, Not(HasSubstr("\033[2J")));
  EXPECT_THAT(text, Not(HasSubstr("{+")));
}

TEST_F(DataPrinterTest, NamesTheDocumentsOfPairs) {
  v1::InspectReply reply = row_reply();
  v1::InspectedDocument& chosen = *reply.mutable_row()->mutable_documents(0);
  chosen.set_role("chosen");
  chosen.set_margin(0.25);
  *reply.mutable_row()->mutable_mismatched() = reply.row().documents(0);
  reply.mutable_row()->mutable_mismatched()->clear_margin();
  EXPECT_EQ(printed(reply, false, false),
            "\nrow 0: 1 document, 4 tokens, 2 in the loss\n"
            "--- chosen: 4 tokens, 2 in the loss, margin 0.25\n"
            "ask{+an?[2Jswer+}\n\n"
            "--- with another completion: 4 tokens, 2 in the loss\n"
            "ask{+an?[2Jswer+}\n\n");
}

TEST_F(DataPrinterTest, PrintsOneMessageALineAsJson) {
  const std::string text = printed(row_reply(), false, true);
  EXPECT_THAT(text, HasSubstr(R"("labels":[false,true,true,false])"));
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST_F(DataPrinterTest, SumsUpAndSaysWhatIsASample) {
  v1::InspectReply reply;
  v1::InspectedData& data = *reply.mutable_data();
  data.set_num_rows(2);
  data.set_num_documents(3);
  data.set_num_tokens(40);
  data.set_num_labels(10);
  EXPECT_THAT(printed(reply, false, false),
              HasSubstr("2 rows of 3 documents: 40 tokens, 10 in the loss (25.0%)\n"));
  data.set_max_documents(3);
  EXPECT_THAT(printed(reply, false, false),
              HasSubstr("(25.0%); of each source at most 3 are read\n"));
}

TEST_F(DataPrinterTest, SendsNotesToStandardError) {
  v1::InspectReply reply;
  reply.set_note("tokenised");
  EXPECT_EQ(printed(reply, false, true), "");
  EXPECT_EQ(err_.str(), "tokenised\n");
}

TEST(WithoutControls, KeepsLinesAndOtherScripts) {
  EXPECT_EQ(without_controls("a\tb\né日\x7f\xC2\x9B"), "a\tb\né日??");
}

}  // namespace
}  // namespace tessera::cli
