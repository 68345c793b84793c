// The machines, their devices, and who holds them.
import { fetchNodes } from "../api/client";
import type { Device, Node } from "../api/types";
import { ago, bytes } from "../data/format";
import { useNow, usePoll } from "../poll";
import { Link } from "../router";
import { Badge, Empty, Stat, Trouble } from "../ui/parts";

function DeviceTile({ device }: { device: Device }) {
  const name = `${device.kind ?? "device"} ${device.index ?? 0}`;
  const about = [device.model, Number(device.memoryBytes ?? 0) > 0 ? bytes(device.memoryBytes) : ""]
    .filter(Boolean)
    .join(", ");
  if (!device.job) {
    return (
      <li class="device free" title={about}>
        <b>{name}</b>
        <span>free</span>
      </li>
    );
  }
  return (
    <li class="device held" title={about}>
      <b>{name}</b>
      <Link to={`/jobs/${device.job}`}>{device.job}</Link>
    </li>
  );
}

function Card({ node, now }: { node: Node; now: number }) {
  const devices = node.devices ?? [];
  const held = devices.filter((device) => device.job).length;
  const models = [...new Set(devices.map((device) => device.model || device.kind || ""))].join(
    ", ",
  );
  return (
    <article class="panel node">
      <header>
        <h2>{node.name}</h2>
        <Badge state={node.state} />
      </header>
      <p class="meta">
        {node.hostname !== node.name && `${node.hostname} · `}
        {models} · {held} of {devices.length} held · seen {ago(node.lastSeenTime, now)}
        {node.version && ` · ${node.version}`}
      </p>
      {node.state === "LOST" && (
        <p class="warn">
          Its lease ran out. Its ranks may still run; they end themselves before their job starts
          elsewhere.
        </p>
      )}
      <ul class="devices">
        {devices.map((device) => (
          <DeviceTile key={`${device.kind}${device.index}`} device={device} />
        ))}
      </ul>
    </article>
  );
}

export function Nodes() {
  const { value, error } = usePoll("nodes", 3000, fetchNodes);
  const now = useNow();
  const devices = (value ?? [])
    .filter((node) => node.state !== "LOST")
    .flatMap((node) => node.devices ?? []);
  const held = devices.filter((device) => device.job).length;
  return (
    <>
      <h1>Nodes</h1>
      {error && <Trouble message={`${error.message} Trying again.`} />}
      {value === null && !error && <p class="loading">Loading…</p>}
      {value !== null && value.length === 0 && (
        <Empty title="No machine has connected.">
          <p>
            Start <code>tessera-agent --coordinator ADDRESS</code> on each machine that has devices,
            or <code>tessera up</code>, which starts one here.
          </p>
        </Empty>
      )}
      {value !== null && value.length > 0 && (
        <>
          <dl class="stats">
            <Stat label="Machines">{value.length}</Stat>
            <Stat label="Devices held">
              {held} of {devices.length}
            </Stat>
            <Stat label="Lost">{value.filter((node) => node.state === "LOST").length}</Stat>
          </dl>
          <div class="cards">
            {value.map((node) => (
              <Card key={node.name} node={node} now={now} />
            ))}
          </div>
        </>
      )}
    </>
  );
}
