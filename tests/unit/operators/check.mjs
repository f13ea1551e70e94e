// Hold the manifests on standard input, a JSON list, to the schemas of their operators; print each fault, one a line.
import { readFileSync } from "node:fs";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1";
import { PodMonitor, PrometheusRule } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const kinds = { PodMonitor, PrometheusRule, ScaledObject };
for (const manifest of JSON.parse(readFileSync(0, "utf8"))) {
  const kind = kinds[manifest.kind];
  if (!kind.is(manifest)) console.log(`${manifest.kind}: ${manifest.apiVersion} is not ${kind.apiVersion}`);
  try {
    new kind(manifest).validate();
  } catch (error) {
    console.log(`${manifest.kind}: ${error.message}`);
  }
}
