#include "worker/data/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "worker/data/jinja/template.h"
#include "worker/data/training_templates.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string render(const std::string& source, const ordered_json& variables = {}) {
  std::vector<std::pair<std::string, jinja::Value>> values;
  for (const auto& [name, value] : variables.items()) {
    values.emplace_back(name, jinja::from_json(value));
  }
  return jinja::Template(source).render(values, 0).text;
}

// compare_templates.py holds far more against jinja2; these say what matters in one place.
TEST(JinjaTest, StripsWhiteSpaceAsTrimBlocksAndLstripBlocksDo) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(render("a\n  {{- 'b' -}}  \n c"), "abc");
  EXPECT_EQ(render("a  {%+ if true %}\nb{% endif +%}\nc"), "a  b\nc");
  EXPECT_EQ(render("  {# x #}\n  {{ 1 }}\n\n"), "  1\n");
  EXPECT_EQ(render("{% raw %}\n{{ x }}{% endraw %}\ny"), "\n{{ x }}y");
}

TEST(JinjaTest, KeepsNamesInTheirBlocks) {
  EXPECT_EQ(
      render("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"),
      "231");
  EXPECT_EQ(render("{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}"
                   "{% endfor %}{{ n.x }}"),
            "4");
  EXPECT_EQ(render("{% generation %}{% set x = 1 %}{% endgeneration %}{{ x }}|"), "|");
  EXPECT_EQ(render("{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}"), "1");
}

TEST(JinjaTest, PrintsValuesAsPython) {
  EXPECT_EQ(render("{{ [1, 2.0, 1e16, 1e-5, none, true, 'a\\'b', {'k': ()}] }}"),
            "[1, 2.0, 1e+16, 1e-05, None, True, \"a'b\", {'k': ()}]");
  EXPECT_EQ(render("{{ v | tojson }}", {{"v", {{"b", "é\n\x7f"}, {"a", {1.0, nullptr}}}}}),
            "{\"b\": \"é\\n\x7f\", \"a\": [1.0, null]}");
  EXPECT_EQ(render("{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }}"), "-4 2 3.5 0.5");
}

TEST(JinjaTest, FindsMethodsBeforeKeysAsAttributesAndKeysBeforeMethodsAsItems) {
  const ordered_json variables = {{"d", {{"items", 3}, {"k", 4}}}};
  EXPECT_EQ(render("{{ d['items'] }}{{ d.k }}{{ d.items() | length }}", variables), "342");
}

TEST(JinjaTest, RaisesWhatPythonRaises) {
  for (const std::string source :
       {"{{ missing.x }}", "{{ 1 + 'a' }}", "{{ none | length }}", "{{ [1, 'a'] | sort }}",
        "{{ {}.pop('a') }}", "{{ raise_exception('no') }}", "{{ 1 // 0 }}", "{{ x | nothing }}",
        "{{ 'a' is nothing }}", "{{ missing | tojson }}", "{{ 9223372036854775807 + 1 }}"}) {
    EXPECT_THROW(render(source), jinja::Error) << source;
  }
}

TEST(JinjaTest, NamesTheLineOfWhatDoesNotParse) {
  EXPECT_THAT([] { render("a\n{% if %}"); }, ThrowsMessage<jinja::Error>(HasSubstr("line 2:")));
  for (const std::string source :
       {"{{ a", "{% if x %}", "{% endif %}", "{% include 'x' %}", "{{ (a }}", "{% break %}", "{# a",
        "{{ 'a }}", "{% raw %}", "{% set 1 = 2 %}", "{% for x %}{% endfor %}", "{{ a ! b }}",
        "{% generation %}"}) {
    EXPECT_THROW(render(source), jinja::Error) << source;
  }
}

TEST(JinjaTest, BoundsWhatATemplateMayUse) {
  const std::string deep(5000, '(');
  for (const std::string& source : {
           std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
           std::string(
               "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
           std::string("{{ 'x' * 1000000000000 }}"),
           std::string("{% set n = namespace(x='xxxxxxxxxxxxxxxx') %}{% for i in range(90) %}"
                       "{% set n.x = n.x ~ n.x %}{% endfor %}"),
           std::string("{{ [0] * 1000000000 }}"),
           std::string("{{ range(1000000) }}"),
           std::string("{{ range(99999) | unique | list }}"),
           std::string("{% set n = namespace(x=[]) %}{% for i in range(99999) %}"
                       "{% set n.x = [n.x] %}{% endfor %}"),
           std::string("{% set n = namespace(x=[]) %}{% for i in range(99) %}"
                       "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}"),
           std::string("{% set n = namespace() %}{% set n.x = n %}{{ n }}"),
           std::string("{{ '%999999999d' % 1 }}"),
           "{{ " + deep,
           "{{ " + std::string(5000, '-') + "1 }}",
           [] {
             std::string nested;
             for (int i = 0; i < 5000; ++i) nested += "{% if 1 %}";
             return nested;
           }(),
       }) {
    EXPECT_THROW(render(source), jinja::Error) << source.substr(0, 60);
  }
}

TEST(JinjaTest, CountsGeneratedCharactersNotBytes) {
  const jinja::Template chat(
      "é{% for m in [1, 2] %}{% generation %}→{{ m }}{% endgeneration %},{% endfor %}");
  const auto rendered = chat.render({}, 0);
  EXPECT_EQ(rendered.text, "é→1,→2,");
  ASSERT_EQ(rendered.generated.size(), 2u);
  EXPECT_EQ(rendered.generated[0].begin, 1);
  EXPECT_EQ(rendered.generated[0].end, 3);
  EXPECT_EQ(rendered.generated[1].begin, 4);
  EXPECT_EQ(rendered.generated[1].end, 6);
}

ChatTemplates templates(const ChatTemplateSources& sources) {
  return ChatTemplates(sources, {{"bos_token", "<s>"}}, 0, "field");
}

TEST(ChatTemplatesTest, DropsNullKeysAndFillsTheNamesOfReasoning) {
  const auto chat = templates({{"default", "{% for m in messages %}{{ m | tojson }}{% endfor %}"}});
  const ordered_json messages =
      ordered_json::parse(R"([{"role": "assistant", "content": null, "reasoning": "why"}])");
  EXPECT_EQ(chat.render(messages, {}, false).text,
            R"({"thinking": "why", "role": "assistant", "reasoning": "why", )"
            R"("reasoning_content": "why"})");
}

TEST(ChatTemplatesTest, ChoosesTheTemplateForTools) {
  const auto chat = templates({{"default", "plain{{ bos_token }}"}, {"tool_use", "tools{{ x }}"}});
  const ordered_json messages = ordered_json::parse(R"([{"role": "user", "content": "a"}])");
  EXPECT_EQ(chat.render(messages, {}, false).text, "plain<s>");
  EXPECT_EQ(chat.render(messages, {ordered_json::array(), {{"x", 1}}}, false).text, "tools1");
  EXPECT_EQ(chat.render(messages, {nullptr, {{"bos_token", "!"}}}, false).text, "plain!");
  EXPECT_THROW(chat.render(messages, {nullptr, {{"tokenize", true}}}, false), jinja::Error);
  EXPECT_THROW(chat.render(messages, {{"no object"}, nullptr}, false), jinja::Error);
}

TEST(ChatTemplatesTest, FindsGenerationMarkersAsTrlDoes) {
  EXPECT_TRUE(has_generation_markers("{% if x %}{%- generation -%}{% endif %}"));
  EXPECT_TRUE(has_generation_markers("{%generation%}"));
  EXPECT_FALSE(has_generation_markers("{% endgeneration %}{% generations %}{{ generation }}"));
}

}  // namespace
}  // namespace tessera
