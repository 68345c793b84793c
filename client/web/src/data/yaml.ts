// A message in JSON as the lines of a job file: names in snake_case, YAML.

export function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

const PLAIN = /^[A-Za-z_./][\w./ -]*$/;
const WORDS = new Set(["true", "false", "null", "yes", "no", "on", "off", "~"]);

function scalar(value: unknown): string {
  if (typeof value !== "string") return String(value);
  // 64-bit integers come as strings.
  if (/^-?\d+$/.test(value)) return value;
  const isPlain = PLAIN.test(value) && !WORDS.has(value.toLowerCase()) && value === value.trim();
  return isPlain ? value : JSON.stringify(value);
}

export function toYaml(value: unknown, indent = 0): string {
  const pad = "  ".repeat(indent);
  if (Array.isArray(value)) {
    return value
      .map((item) => {
        if (!isNested(item)) return `${pad}- ${scalar(item)}\n`;
        return `${pad}- ${toYaml(item, indent + 1).trimStart()}`;
      })
      .join("");
  }
  if (value === null || typeof value !== "object") return `${pad}${scalar(value)}\n`;
  return Object.entries(value)
    .map(([name, inner]) => {
      if (!isNested(inner))
        return `${pad}${snake(name)}: ${isEmpty(inner) ? empty(inner) : scalar(inner)}\n`;
      return `${pad}${snake(name)}:\n${toYaml(inner, indent + 1)}`;
    })
    .join("");
}

function isEmpty(value: unknown): boolean {
  return typeof value === "object" && value !== null && Object.keys(value).length === 0;
}

function empty(value: unknown): string {
  return Array.isArray(value) ? "[]" : "{}";
}

function isNested(value: unknown): boolean {
  return typeof value === "object" && value !== null && !isEmpty(value);
}
