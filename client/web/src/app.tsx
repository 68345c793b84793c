import { useEffect } from "preact/hooks";

import { Compare } from "./pages/compare";
import { JobPage } from "./pages/job";
import { Jobs } from "./pages/jobs";
import { Nodes } from "./pages/nodes";
import { Link, usePlace } from "./router";
import { choose, useTheme } from "./theme";
import { Empty } from "./ui/parts";

const PAGES = [
  ["/", "Jobs"],
  ["/nodes", "Nodes"],
  ["/compare", "Compare"],
] as const;

function Page({ path, query }: { path: string; query: URLSearchParams }) {
  const job = /^\/jobs\/([^/]+)$/.exec(path)?.[1];
  if (job !== undefined) return <JobPage key={job} id={decodeURIComponent(job)} />;
  switch (path) {
    case "/":
      return <Jobs query={query} />;
    case "/nodes":
      return <Nodes />;
    case "/compare":
      return <Compare query={query} />;
    default:
      return (
        <Empty title="There is no such page.">
          <Link to="/">All jobs</Link>
        </Empty>
      );
  }
}

function ThemeButton() {
  const { choice } = useTheme();
  const next = { auto: "light", light: "dark", dark: "auto" } as const;
  return (
    <button
      type="button"
      class="theme"
      onClick={() => choose(next[choice])}
      title={`Colours: ${choice}`}
    >
      <span aria-hidden="true">{{ auto: "◐", light: "☀", dark: "☾" }[choice]}</span>
      <span class="unseen">Colours: {choice}</span>
    </button>
  );
}

export function App() {
  const place = usePlace();
  useEffect(() => {
    const name = PAGES.find(([path]) => path === place.path)?.[1];
    document.title = name ? `${name} · Tessera` : "Tessera";
  }, [place.path]);
  return (
    <>
      <a class="skip" href="#main">
        To the content
      </a>
      <header class="bar">
        <Link to="/" class="brand" label="Tessera, all jobs">
          <img src="/favicon.svg" alt="" width="22" height="22" />
          <span>Tessera</span>
        </Link>
        <nav aria-label="Pages">
          {PAGES.map(([path, name]) => (
            <Link
              key={path}
              to={path}
              isCurrent={place.path === path || (path === "/" && place.path.startsWith("/jobs/"))}
            >
              {name}
            </Link>
          ))}
        </nav>
        <ThemeButton />
      </header>
      <main id="main" tabIndex={-1}>
        <Page path={place.path} query={place.query} />
      </main>
    </>
  );
}
