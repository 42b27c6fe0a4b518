"""The rendered manifests as tests want them: by overlay, by kind, and as the pods they make."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from draft_service.config import DraftServiceConfig
from router.config import RouterConfig
from serving.options import parse
from verify_service.config import VerifyConfig

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
OVERLAYS: Final = ("cpu-demo", "single-node-gpu", "single-node-gpu-tls", "multi-node")
CONFIGS: Final[dict[str, Any]] = {
    "router": RouterConfig,
    "draft": DraftServiceConfig,
    "verify": VerifyConfig,
}
MODULES: Final = {"router": "router", "draft": "draft_service", "verify": "verify_service"}
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """A pod template; `size` pods of it make one replica."""

    owner: Manifest
    template: Manifest
    listens: bool = True
    size: int = 1

    @property
    def name(self) -> str:
        """The service's: router, draft or verify."""
        return str(self.labels["app.kubernetes.io/name"])

    @property
    def labels(self) -> dict[str, str]:
        # A LeaderWorkerSet's controller adds the index; of its two templates, leaders have 0.
        index = {"leaderworkerset.sigs.k8s.io/worker-index": "0" if self.listens else "1"}
        own: dict[str, str] = self.template["metadata"]["labels"]
        return own | index if self.owner["kind"] == "LeaderWorkerSet" else own

    @property
    def spec(self) -> Manifest:
        found: Manifest = self.template["spec"]
        return found

    @property
    def container(self) -> Manifest:
        (only,) = self.spec["containers"]
        found: Manifest = only
        return found

    @property
    def containers(self) -> list[Manifest]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]


@cache
def manifests(overlay: str) -> tuple[Manifest, ...]:
    return tuple(yaml.safe_load_all((DEPLOY / "rendered" / f"{overlay}.yaml").read_text()))


def of_kind(overlay: str, *kinds: str) -> list[Manifest]:
    return [found for found in manifests(overlay) if found["kind"] in kinds]


def pods(overlay: str) -> list[Pod]:
    found = [
        Pod(owner, owner["spec"]["template"])
        for owner in of_kind(overlay, "Deployment", "StatefulSet")
    ]
    for owner in of_kind(overlay, "LeaderWorkerSet"):
        group = owner["spec"]["leaderWorkerTemplate"]
        size = group["size"]
        found += [
            Pod(owner, group["leaderTemplate"], size=size),
            Pod(owner, group["workerTemplate"], listens=False, size=size),
        ]
    return found


def config_text(overlay: str, pod: Pod) -> str:
    """The config file that the pod's container mounts."""
    (volume,) = (v for v in pod.spec["volumes"] if v["name"] == "config")
    (found,) = (
        one
        for one in of_kind(overlay, "ConfigMap")
        if one["metadata"]["name"] == volume["configMap"]["name"]
    )
    return str(found["data"][f"{pod.name}.toml"])


def config(overlay: str, pod: Pod, folder: Path) -> Any:
    """The same as the program reads it; an unknown option or value fails the test."""
    file = folder / f"{pod.name}.toml"
    file.write_text(config_text(overlay, pod))
    args = [str(file) if arg.startswith("/etc/domino-serve/") else arg for arg in own_args(pod)]
    return parse(CONFIGS[pod.name], args, prog=pod.name, description="")


def own_args(pod: Pod) -> list[str]:
    """The program's own, behind torchrun's."""
    args: list[str] = pod.container["args"]
    module = MODULES[pod.name]
    return args[args.index(module) + 1 :] if module in args else args


def selects(labels: dict[str, str], pod: Pod) -> bool:
    return labels.items() <= pod.labels.items()
