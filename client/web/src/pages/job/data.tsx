// How long the documents are. Read on request: a machine goes through them for it.
import { useEffect, useRef, useState } from "preact/hooks";

import { fetchLengths } from "../../api/client";
import type { DataProfile } from "../../api/types";
import { count, percent } from "../../data/format";
import { Empty, Section, Stat, Trouble } from "../../ui/parts";

const DOCUMENTS = 10_000;

function Histogram({ profile }: { profile: DataProfile }) {
  const bins = profile.bins ?? [];
  const most = Math.max(1, ...bins.map((bin) => Number(bin.numDocuments ?? 0)));
  const limit = profile.choices?.find((choice) => choice.isOfJob)?.maxLength;
  return (
    <ul class="histogram" aria-label="Documents by length">
      {bins.map((bin) => {
        const documents = Number(bin.numDocuments ?? 0);
        const begin = Number(bin.begin ?? 0);
        const last = Number(bin.end ?? 0) - 1;
        const isCut = limit !== undefined && begin >= limit;
        return (
          <li key={begin}>
            <span>{last > begin ? `${begin}–${last}` : begin}</span>
            <i class={isCut ? "cut" : ""} style={{ width: `${(documents / most) * 100}%` }} />
            <b>{count(documents)}</b>
          </li>
        );
      })}
    </ul>
  );
}

function Choices({ profile }: { profile: DataProfile }) {
  const choices = profile.choices ?? [];
  if (choices.length === 0) return null;
  const documents = Number(profile.numDocuments ?? 0) || 1;
  const tokens = Number(profile.numTokens ?? 0) || 1;
  return (
    <div class="scroll">
      <table class="plain">
        <caption>What each max_length would make of them</caption>
        <thead>
          <tr>
            <th class="num">max_length</th>
            <th class="num">Documents cut</th>
            <th class="num">Tokens cut</th>
            <th class="num">Documents lost</th>
            <th class="num">Padding of others</th>
          </tr>
        </thead>
        <tbody>
          {choices.map((choice) => (
            <tr key={choice.maxLength} class={choice.isOfJob ? "own" : ""}>
              <th scope="row" class="num">
                {choice.maxLength}
                {choice.isOfJob && " (the job's)"}
              </th>
              <td class="num">{percent(Number(choice.numTruncatedDocuments ?? 0) / documents)}</td>
              <td class="num">{percent(Number(choice.numTruncatedTokens ?? 0) / tokens)}</td>
              <td class="num">{count(choice.numLostDocuments)}</td>
              <td class="num">{count(choice.numPaddingTokens)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Found({ profile }: { profile: DataProfile }) {
  const at = (share: number) =>
    profile.quantiles?.find((quantile) => Math.abs((quantile.share ?? 0) - share) < 1e-9)
      ?.numTokens;
  const isPart =
    Number(profile.maxDocuments ?? 0) > 0 &&
    Number(profile.numDocuments ?? 0) >= Number(profile.maxDocuments);
  return (
    <>
      <dl class="stats inner">
        <Stat label="Documents" hint={isPart && "the first of each source"}>
          {count(profile.numDocuments)}
        </Stat>
        <Stat label="Tokens">{count(profile.numTokens)}</Stat>
        <Stat label="Mean">{count(profile.meanTokens)}</Stat>
        <Stat label="Half are below">{count(at(0.5))}</Stat>
        <Stat label="99% are below">{count(at(0.99))}</Stat>
        <Stat label="Longest">{count(at(1))}</Stat>
      </dl>
      <h3>Documents by tokens</h3>
      <Histogram profile={profile} />
      <Choices profile={profile} />
      {profile.advice && (
        <p class="advice">
          <strong>
            max_length: {profile.advice.maxLength}
            {profile.advice.packingStrategy &&
              profile.advice.packingStrategy !== "none" &&
              `, packing_strategy: ${profile.advice.packingStrategy}`}
          </strong>{" "}
          {(profile.advice.reasons ?? []).join(" ")}
        </p>
      )}
    </>
  );
}

export function Data({ id }: { id: string }) {
  const [profile, setProfile] = useState<DataProfile | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [isReading, setReading] = useState(false);
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);
  const read = async () => {
    setReading(true);
    setError(null);
    try {
      setProfile(await fetchLengths(id, DOCUMENTS, stop.current.signal));
    } catch (cause) {
      if (!stop.current.signal.aborted)
        setError(cause instanceof Error ? cause.message : String(cause));
    }
    setReading(false);
  };
  return (
    <Section title="Lengths of the documents">
      {error && <Trouble message={error} />}
      {profile ? (
        <Found profile={profile} />
      ) : (
        <Empty title={isReading ? "A machine reads the documents…" : "Not read yet."}>
          <p>
            A machine of the service reads up to {count(DOCUMENTS)} documents of each source, and
            nothing of it is stored.
          </p>
          <button type="button" class="primary" disabled={isReading} onClick={() => void read()}>
            {isReading ? "Reading…" : "Read the lengths"}
          </button>
        </Empty>
      )}
    </Section>
  );
}
