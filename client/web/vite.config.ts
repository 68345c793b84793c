import { defineConfig } from "vitest/config";

// scripts/web.sh dev says where the API is.
const api = `http://127.0.0.1:${process.env.TESSERAD_PORT ?? "8080"}`;

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
  },
  server: { proxy: { "/api": api } },
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});
