// What ranks and the service said.
import { useEffect, useRef, useState } from "preact/hooks";

import type { JobEvent } from "../../api/types";
import { clockTime, dateTime } from "../../data/format";
import type { JobView } from "../../data/job";
import { Choice, Empty } from "../../ui/parts";

type Level = "all" | "said" | "problems";
const LEVELS: readonly (readonly [Level, string])[] = [
  ["all", "All"],
  ["said", "Without output"],
  ["problems", "Problems"],
];

export function shows(event: JobEvent, level: Level, words: string): boolean {
  const line = event.log;
  if (line === undefined) return false;
  if (level === "said" && line.severity === "OUTPUT") return false;
  if (level === "problems" && line.severity !== "WARNING" && line.severity !== "ERROR")
    return false;
  return words === "" || (line.text ?? "").toLowerCase().includes(words.toLowerCase());
}

export function Log({ view }: { view: JobView }) {
  const [level, setLevel] = useState<Level>("all");
  const [words, setWords] = useState("");
  const [isFollowing, setFollowing] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  const lines = view.log.filter((event) => shows(event, level, words));
  useEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines.length, isFollowing]);
  const onScroll = () => {
    const element = box.current;
    if (element) setFollowing(element.scrollHeight - element.scrollTop - element.clientHeight < 24);
  };
  if (view.log.length === 0) return <Empty title="Nothing was said yet." />;
  return (
    <>
      <div class="controls">
        <Choice label="Lines" options={LEVELS} chosen={level} onChoose={setLevel} />
        <input
          type="search"
          placeholder="Search"
          aria-label="Search the log"
          value={words}
          onInput={(event) => setWords(event.currentTarget.value)}
        />
        {!isFollowing && (
          <button type="button" onClick={() => setFollowing(true)}>
            To the end
          </button>
        )}
      </div>
      <div class="panel log" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label="Log">
        {lines.map((event) => (
          <div key={event.revision} class={`line ${(event.log?.severity ?? "").toLowerCase()}`}>
            <time title={dateTime(event.time)}>{clockTime(event.time)}</time>
            <span class="who">{(event.log?.rank ?? 0) < 0 ? "" : (event.log?.rank ?? 0)}</span>
            <span class="text">{event.log?.text}</span>
          </div>
        ))}
        {lines.length === 0 && <p class="empty">No line is so.</p>}
      </div>
      <p class="meta">
        The last lines. All of them: <code>tessera logs {view.job.id}</code>
      </p>
    </>
  );
}
