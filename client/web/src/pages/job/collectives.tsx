// What each rank exchanged with the others last, as it told it when the job hung or somebody asked.
import type { CollectiveRecord, JobEvent } from "../../api/types";
import { bytes, clockTime, seconds } from "../../data/format";
import type { JobView } from "../../data/job";
import { exchangeName, waitedFor } from "../../data/ranks";
import { Section } from "../../ui/parts";

function Row({ record, time }: { record: CollectiveRecord; time: string | undefined }) {
  const awaited = waitedFor(record);
  return (
    <tr>
      <th scope="row" class="num">
        {record.rank ?? 0}
      </th>
      <td>{clockTime(time)}</td>
      <td class="num">{record.step ?? 0}</td>
      <td>{record.phase}</td>
      <td class="num">{record.numIssued ?? 0}</td>
      <td>{awaited ? `waits in ${exchangeName(awaited)}` : "waits for nobody"}</td>
      <td class="num">{awaited ? seconds(awaited.seconds) : ""}</td>
    </tr>
  );
}

function Exchanges({ record }: { record: CollectiveRecord }) {
  return (
    <details>
      <summary>The last exchanges of rank {record.rank ?? 0}</summary>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th>Exchange</th>
              <th class="num">Bytes</th>
              <th class="num">Took</th>
              <th>State</th>
            </tr>
          </thead>
          <tbody>
            {(record.collectives ?? []).toReversed().map((exchange) => (
              <tr key={`${exchange.group} ${exchange.sequence}`}>
                <th scope="row">{exchangeName(exchange)}</th>
                <td class="num">{bytes(exchange.bytes)}</td>
                <td class="num">{seconds(exchange.seconds)}</td>
                <td>{exchange.done ? "done" : exchange.isWaitedFor ? "waited for" : "under way"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

export function Collectives({ view }: { view: JobView }) {
  const events = [...view.collectives.values()].filter(
    (event): event is JobEvent & { collectives: CollectiveRecord } =>
      event.collectives !== undefined,
  );
  if (events.length === 0) return null;
  events.sort((a, b) => (a.collectives.rank ?? 0) - (b.collectives.rank ?? 0));
  return (
    <Section title="Collectives">
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th class="num">Rank</th>
              <th>Told at</th>
              <th class="num">Step</th>
              <th>Phase</th>
              <th class="num">Exchanges</th>
              <th>Waits</th>
              <th class="num">For</th>
            </tr>
          </thead>
          <tbody>
            {events.map((event) => (
              <Row
                key={event.collectives.rank ?? 0}
                record={event.collectives}
                time={event.time}
              />
            ))}
          </tbody>
        </table>
      </div>
      {events.map((event) => (
        <Exchanges key={event.collectives.rank ?? 0} record={event.collectives} />
      ))}
      <p class="meta">
        Told when the job hung or lost a rank, or when asked by tessera collectives {view.job.id}. A
        rank that is missing here did not answer.
      </p>
    </Section>
  );
}
