import { expect, test } from "vitest";

import { toYaml } from "./yaml";

test("a message becomes the lines of a job file", () => {
  const text = toYaml({
    name: "demo",
    method: { sft: { maxLength: 64, packing: false } },
    data: { train: ["a.jsonl", "b: c.jsonl"], eval: [] },
    training: { maxSteps: "100", outputDir: "/out/x", note: "yes" },
    rules: [{ field: "a", value: 1 }],
    empty: {},
  });
  expect(text).toBe(
    [
      "name: demo",
      "method:",
      "  sft:",
      "    max_length: 64",
      "    packing: false",
      "data:",
      "  train:",
      "    - a.jsonl",
      '    - "b: c.jsonl"',
      "  eval: []",
      "training:",
      "  max_steps: 100",
      "  output_dir: /out/x",
      '  note: "yes"',
      "rules:",
      "  - field: a",
      "    value: 1",
      "empty: {}",
      "",
    ].join("\n"),
  );
});
