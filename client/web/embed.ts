// Writes the built files as one C++ source: embed.ts DIR SOURCE. server/web/assets.h is its header.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { extname, join, relative } from "node:path";

const TYPES: Record<string, string> = {
  ".css": "text/css; charset=utf-8",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".svg": "image/svg+xml",
};

const [folder, source] = process.argv.slice(2) as [string, string];
const files = readdirSync(folder, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => join(entry.parentPath, entry.name))
  .sort();

const arrays: string[] = [];
const rows: string[] = [];
files.forEach((file, index) => {
  const path = `/${relative(folder, file)}`;
  const type = TYPES[extname(file)];
  if (type === undefined) throw new Error(`${path}: its type is not in embed.ts`);
  const bytes = readFileSync(file);
  const text = bytes.reduce<string[]>((lines, byte, i) => {
    if (i % 32 === 0) lines.push("");
    lines[lines.length - 1] += `\\${byte.toString(8).padStart(3, "0")}`;
    return lines;
  }, []);
  arrays.push(`constexpr char kFile${index}[] =\n${text.map((line) => `"${line}"`).join("\n")};\n`);
  rows.push(
    `    {"${path}", "${type}", {kFile${index}, ${bytes.length}}, ${path.startsWith("/assets/")}},\n`,
  );
});

writeFileSync(
  source,
  `// Made of client/web/ by scripts/web.sh.
#include "server/web/assets.h"

namespace tessera::server {
namespace {

${arrays.join("\n")}
constexpr Asset kAssets[] = {
${rows.join("")}};

}  // namespace

std::span<const Asset> assets() { return kAssets; }

}  // namespace tessera::server
`,
);
