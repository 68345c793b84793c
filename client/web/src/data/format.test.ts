import { expect, test } from "vitest";

import { ago, bytes, count, duration, epoch, percent, seconds, value } from "./format";

test.each([
  [0, "0 B"],
  [1023, "1023 B"],
  [1536, "1.50 KiB"],
  ["268435456", "256 MiB"],
  [85899345920, "80.0 GiB"],
  [undefined, "0 B"],
  [-2048, "−2.00 KiB"],
])("bytes(%s) is %s", (given, text) => expect(bytes(given)).toBe(text));

test.each([
  [0, "0"],
  [7.25, "7.3"],
  [950, "950"],
  [1200, "1.2k"],
  [12_500, "12.5k"],
  ["1234567", "1.2M"],
  [999_950, "1M"],
  [Number.NaN, "–"],
])("count(%s) is %s", (given, text) => expect(count(given)).toBe(text));

test.each([
  [42, "42s"],
  [185, "3m 05s"],
  [7620, "2h 07m"],
  [442800, "5d 03h"],
  [-1, "–"],
])("duration(%s) is %s", (given, text) => expect(duration(given)).toBe(text));

test.each([
  [0, "0 s"],
  [0.00004, "40 µs"],
  [0.0123, "12 ms"],
  [1.255, "1.25 s"],
  [90, "1m 30s"],
])("seconds(%s) is %s", (given, text) => expect(seconds(given)).toBe(text));

test.each([
  [0, "0"],
  [1.23456, "1.235"],
  [-0.5, "−0.5"],
  [2e-5, "2.00e−5"],
  [null, "–"],
])("value(%s) is %s", (given, text) => expect(value(given)).toBe(text));

test("times", () => {
  expect(epoch("1970-01-01T00:01:00Z")).toBe(60);
  expect(epoch(undefined)).toBeNull();
  expect(epoch("nonsense")).toBeNull();
  expect(ago("1970-01-01T00:00:00Z", 90_000)).toBe("1m 30s ago");
  expect(percent(0.056)).toBe("5.6%");
  expect(percent(0.5)).toBe("50%");
});
