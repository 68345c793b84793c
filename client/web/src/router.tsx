// Addresses: /, /nodes, /jobs/ID, /compare?jobs=A,B.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

export interface Place {
  path: string;
  query: URLSearchParams;
}

const here = (): Place => ({
  path: location.pathname,
  query: new URLSearchParams(location.search),
});
const CHANGED = "tessera:place";

export function go(address: string, replace = false): void {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new Event(CHANGED));
  if (!replace) scrollTo(0, 0);
}

export function usePlace(): Place {
  const [place, set] = useState(here);
  useEffect(() => {
    const update = () => set(here());
    addEventListener("popstate", update);
    addEventListener(CHANGED, update);
    return () => {
      removeEventListener("popstate", update);
      removeEventListener(CHANGED, update);
    };
  }, []);
  return place;
}

interface LinkProps {
  to: string;
  children: ComponentChildren;
  class?: string;
  label?: string;
  isCurrent?: boolean;
}

export function Link(props: LinkProps) {
  const onClick = (event: MouseEvent) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
      return;
    event.preventDefault();
    go(props.to);
  };
  return (
    <a
      href={props.to}
      class={props.class}
      aria-label={props.label}
      aria-current={props.isCurrent ? "page" : undefined}
      onClick={onClick}
    >
      {props.children}
    </a>
  );
}
