// The job as it runs, with defaults filled in.
import { useMemo } from "preact/hooks";

import type { Job } from "../../api/types";
import { toYaml } from "../../data/yaml";
import { Section } from "../../ui/parts";

export function Spec({ job }: { job: Job }) {
  const text = useMemo(() => toYaml(job.spec ?? {}), [job.spec]);
  return (
    <Section title="Job file, with defaults">
      <pre class="spec" tabIndex={0}>
        {text}
      </pre>
    </Section>
  );
}
