// Numbers and times for people.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value: number | string | null | undefined): string {
  const number = Number(value ?? 0);
  if (!Number.isFinite(number)) return "–";
  let scaled = Math.abs(number);
  let unit = 0;
  while (scaled >= 1024 && unit < BYTES.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2;
  return `${number < 0 ? "−" : ""}${scaled.toFixed(digits)} ${BYTES[unit]}`;
}

// "950", "1.2k", "34.5k", "120k", "1.2M".
export function count(value: number | string | null | undefined): string {
  const number = Number(value ?? 0);
  if (!Number.isFinite(number)) return "–";
  let scaled = Math.abs(number);
  let unit = 0;
  const units = ["", "k", "M", "B", "T", "P", "E"];
  while (scaled >= 999.5 && unit < units.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  return `${number < 0 ? "−" : ""}${trimmed(scaled, scaled < 100 ? 1 : 0)}${units[unit]}`;
}

function trimmed(value: number, digits: number): string {
  const text = value.toFixed(digits);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// Four significant digits, with an exponent where it is very small or large.
export function value(number: number | null | undefined): string {
  if (number == null || !Number.isFinite(number)) return "–";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size < 1e-3 || size >= 1e6)
    return number.toExponential(2).replace("e+", "e").replace("-", "−").replace("e-", "e−");
  return String(Number(number.toPrecision(4))).replace("-", "−");
}

// "42s", "3m 05s", "2h 07m", "5d 03h".
export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds) || seconds < 0) return "–";
  const two = (part: number) => String(Math.floor(part)).padStart(2, "0");
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ${two((seconds % 3600) / 60)}m`;
  return `${Math.floor(seconds / 86400)}d ${two((seconds % 86400) / 3600)}h`;
}

// "120 ms", "1.25 s".
export function seconds(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${trimmed(value * 1e3, value < 0.01 ? 1 : 0)} ms`;
  return value < 60 ? `${trimmed(value, 2)} s` : duration(value);
}

export function ago(time: string | undefined, now: number): string {
  const past = epoch(time);
  if (past === null) return "–";
  const age = now / 1000 - past;
  return age < 2 ? "just now" : `${duration(age)} ago`;
}

// Seconds since 1970; null where there is no time.
export function epoch(time: string | undefined): number | null {
  if (time === undefined) return null;
  const ms = Date.parse(time);
  return Number.isNaN(ms) ? null : ms / 1000;
}

export function clockTime(time: string | undefined): string {
  if (time === undefined) return "";
  return new Date(time).toLocaleTimeString(undefined, { hour12: false });
}

export function dateTime(time: string | undefined): string {
  if (time === undefined) return "–";
  return new Date(time).toLocaleString(undefined, { hour12: false });
}

export function percent(share: number | null | undefined): string {
  if (share == null || !Number.isFinite(share)) return "–";
  return `${trimmed(share * 100, Math.abs(share) < 0.1 ? 1 : 0)}%`.replace("-", "−");
}

// "grad_norm" -> "Grad norm"; names of the method's own metrics stay.
export function title(name: string): string {
  const known: Record<string, string> = {
    loss: "Loss",
    grad_norm: "Gradient norm",
    learning_rate: "Learning rate",
    tokens_per_second: "Tokens per second",
    num_tokens: "Tokens seen",
    epoch: "Epoch",
    reward: "Reward",
    entropy: "Entropy",
    mean_token_accuracy: "Token accuracy",
  };
  return known[name] ?? name;
}
