#!/usr/bin/env python3
"""The manifests by Kubernetes' schemas, and that they confine their pods and name what is there."""

import kubernetes_validate
from deployed import DEPLOY, expect, load, load_all

# The oldest that has ReadWriteOncePod, and the newest known.
VERSIONS = ("1.29", kubernetes_validate.latest_version())


def documents():
    paths = load("kustomization.yaml")["resources"]
    on_disk = {f"kubernetes/{path.name}" for path in (DEPLOY / "kubernetes").iterdir()}
    expect(set(paths) == on_disk, f"kustomization.yaml names {paths}, there are {on_disk}")
    return [document for path in paths for document in load_all(path)]


def test_schemas(manifests):
    for manifest in manifests:
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, ".".join(version.split(".")[:2]), strict=True)
    wrong = manifests[-1] | {"spec": {"accessMode": "ReadWriteMany"}}
    try:
        kubernetes_validate.validate(wrong, "1.29", strict=True)
    except kubernetes_validate.ValidationError:
        return
    raise AssertionError("the schema takes a field that is none")


def pods(manifests):
    for manifest in manifests:
        if "template" in manifest.get("spec", {}):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]


def test_pods_are_confined(manifests):
    for name, template in pods(manifests):
        spec = template["spec"]
        expect(spec["securityContext"]["runAsNonRoot"], f"{name} may be root")
        expect(spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", name)
        expect(spec["automountServiceAccountToken"] is False, f"{name} has a token of the API")
        for container in spec["containers"]:
            context = container["securityContext"]
            expect(context["readOnlyRootFilesystem"], f"{name}: its root can be written")
            expect(not context["allowPrivilegeEscalation"], f"{name}: privileges may grow")
            expect(context["capabilities"] == {"drop": ["ALL"]}, f"{name}: capabilities")
            expect(
                "memory" in container["resources"]["requests"], f"{name}: no memory is asked for"
            )
            host = container["image"].split("/")[0]
            expect("." not in host, f"{name}: {container['image']} names a registry")


def test_names_lead_somewhere(manifests):
    by_kind = {}
    for manifest in manifests:
        by_kind.setdefault(manifest["kind"], set()).add(manifest["metadata"]["name"])
    maps = by_kind["ConfigMap"] | {
        m["name"] for m in load("kustomization.yaml")["configMapGenerator"]
    }
    for generated in load("kustomization.yaml")["configMapGenerator"]:
        for path in generated["files"]:
            expect((DEPLOY / path).is_file(), f"kustomization.yaml names {path}")
    labels = [template["metadata"]["labels"] for _, template in pods(manifests)]

    def selects(selector):
        return any(selector.items() <= pod.items() for pod in labels)

    for manifest in manifests:
        name, spec = manifest["metadata"]["name"], manifest.get("spec", {})
        if manifest["kind"] == "Service":
            expect(selects(spec["selector"]), f"Service {name} has no pod")
        elif manifest["kind"] == "PodDisruptionBudget":
            expect(selects(spec["selector"]["matchLabels"]), f"{name} has no pod")
        elif manifest["kind"] == "NetworkPolicy":
            expect(selects(spec["podSelector"].get("matchLabels", {})), f"{name} has no pod")
        elif "template" in spec:
            template = spec["template"]
            expect(spec["selector"]["matchLabels"] == template["metadata"]["labels"], name)
            volumes = {v["name"]: v for v in template["spec"]["volumes"]}
            claims = {c["metadata"]["name"] for c in spec.get("volumeClaimTemplates", [])}
            for volume in volumes.values():
                if "configMap" in volume:
                    expect(volume["configMap"]["name"] in maps, f"{name}: {volume}")
                if "persistentVolumeClaim" in volume:
                    claim = volume["persistentVolumeClaim"]["claimName"]
                    expect(claim in by_kind["PersistentVolumeClaim"], f"{name}: {volume}")
            mounted = {
                mount["name"] for c in template["spec"]["containers"] for mount in c["volumeMounts"]
            }
            expect(mounted == set(volumes) | claims, f"{name} mounts {mounted}")


def main():
    manifests = documents()
    test_schemas(manifests)
    test_pods_are_confined(manifests)
    test_names_lead_somewhere(manifests)
    print(f"ok: {len(manifests)} manifests")


if __name__ == "__main__":
    main()
