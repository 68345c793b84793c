// Light and dark: the system's choice, or one that stays.
import { useEffect, useState } from "preact/hooks";

export type Choice = "auto" | "light" | "dark";

const KEY = "tessera.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

export function choice(): Choice {
  const stored = localStorage.getItem(KEY);
  return stored === "light" || stored === "dark" ? stored : "auto";
}

export function choose(wanted: Choice): void {
  if (wanted === "auto") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, wanted);
  apply();
}

function isDark(): boolean {
  const wanted = choice();
  return wanted === "dark" || (wanted === "auto" && dark.matches);
}

export function apply(): void {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  for (const listener of listeners) listener();
}

dark.addEventListener("change", apply);

export function useTheme(): { choice: Choice; isDark: boolean } {
  const [state, set] = useState({ choice: choice(), isDark: isDark() });
  useEffect(() => {
    const listener = () => set({ choice: choice(), isDark: isDark() });
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return state;
}

// A colour of the style sheet, as it is now.
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
