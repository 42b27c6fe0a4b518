"""What each pod runs fits the program, its config file, its probes and its limits."""

import re
from pathlib import Path
from typing import Any

import pytest

from serving.process import LIVENESS, READINESS
from tests.deploy.manifests import DEPLOY, OVERLAYS, Pod, config, own_args, pods

EVERY_POD = [
    pytest.param(overlay, pod, id=f"{overlay}-{pod.name}{'' if pod.listens else '-worker'}")
    for overlay in OVERLAYS
    for pod in pods(overlay)
]
LISTENING = [param for param in EVERY_POD if param.values[1].listens]  # type: ignore[union-attr]
TEARDOWN_S = 10  # from the end of a drain to the end of the process
# Variables of others that manifests or images set, and whose they are.
FOREIGN_ENV = {
    "CUDA_DEVICE_ORDER": "CUDA",
    "NCCL_DEBUG": "NCCL",
    "TRITON_CACHE_DIR": "Triton",
    "GRPC_VERBOSITY": "gRPC",
    "PYTHONUNBUFFERED": "Python",
    "PYTHONDONTWRITEBYTECODE": "Python",
    "HOME": "POSIX",
    "XDG_CACHE_HOME": "XDG",
}
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()


def gibibytes(quantity: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()  # type: ignore[union-attr]
    return int(number) / (1024 if unit == "Mi" else 1)


def ports(pod: Pod) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in pod.container["ports"]}


def flag(pod: Pod, name: str) -> str:
    (found,) = (arg for arg in pod.container["args"] if arg.startswith(f"--{name}="))
    return str(found.partition("=")[2])


@pytest.mark.parametrize(("overlay", "pod"), EVERY_POD)
def test_the_program_takes_its_arguments(overlay: str, pod: Pod, tmp_path: Path) -> None:
    """Prevents a pod that ends with a usage error: every flag, option and value is read."""
    found = config(overlay, pod, tmp_path)
    assert str(found.target) == "/models/target"
    assert found.host == "0.0.0.0"
    assert "--config" in own_args(pod)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("kv_tokns = 1\n", "kv_tokns"),
        ('dtype = "float23"\n', "float23"),
        ('kv_tokens = "many"\n', "many"),
        ('target = "x"\nkv_tokens = -1\n', "-1"),
    ],
)
def test_an_unknown_option_or_value_in_a_config_file_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    named: str,
) -> None:
    """Prevents an overlay's misspelt option, or value, from being passed over in silence."""
    pod = next(pod for pod in pods("cpu-demo") if pod.name == "verify")
    monkeypatch.setattr("tests.deploy.manifests.config_text", lambda *_: text)
    with pytest.raises(SystemExit):
        config("cpu-demo", pod, tmp_path)
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(("overlay", "pod"), LISTENING)
def test_ports_are_those_that_the_program_listens_on(
    overlay: str, pod: Pod, tmp_path: Path
) -> None:
    """Prevents probes, Services and scrapes of a port where nobody is."""
    found = config(overlay, pod, tmp_path)
    assert ports(pod)["grpc"] == found.port != 0
    assert ports(pod)["metrics"] == found.metrics_port != 0


PROBES = {"startup": "readiness", "readiness": "readiness", "liveness": "liveness"}


@pytest.mark.parametrize(("overlay", "pod"), LISTENING)
def test_probes_ask_for_names_that_the_servers_know(overlay: str, pod: Pod, tmp_path: Path) -> None:
    """Prevents probes of a name nobody serves: such a pod never starts, or always restarts."""
    assert PROBES["readiness"] in READINESS and PROBES["liveness"] == LIVENESS
    found = config(overlay, pod, tmp_path)
    for name, health in PROBES.items():
        probe = pod.container[f"{name}Probe"]
        if found.tls_cert:  # gRPC probes are plaintext; the metrics page says the same
            assert probe["httpGet"] == {"port": "metrics", "path": f"/{health}"}
        else:
            assert probe["grpc"] == {"port": found.port, "service": health}


@pytest.mark.parametrize(("overlay", "pod"), EVERY_POD)
def test_a_drain_fits_into_the_termination_period(overlay: str, pod: Pod, tmp_path: Path) -> None:
    """Prevents the kubelet's SIGKILL from ending requests that a drain would have finished."""
    found = config(overlay, pod, tmp_path)
    drain_s = found.grace_s + getattr(found, "notice_s", 0)
    if "torch.distributed.run" in pod.container.get("command", ()):
        assert float(flag(pod, "shutdown-timeout")) >= drain_s + TEARDOWN_S, "torchrun kills first"
        drain_s = float(flag(pod, "shutdown-timeout"))
    pre_stop_s = pod.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pre_stop_s >= 5, "routers and load balancers have to hear of it first"
    assert pod.spec["terminationGracePeriodSeconds"] >= pre_stop_s + drain_s + TEARDOWN_S


@pytest.mark.parametrize(("overlay", "pod"), EVERY_POD)
def test_a_rank_has_a_gpu(overlay: str, pod: Pod, tmp_path: Path) -> None:
    """Prevents ranks without a GPU, and GPUs that idle."""
    gpus = pod.container["resources"]["limits"].get("nvidia.com/gpu", 0)
    device = getattr(config(overlay, pod, tmp_path), "device", "cpu")
    ranks = 1
    if "torch.distributed.run" in pod.container.get("command", ()):
        ranks = int(flag(pod, "nproc-per-node"))
        assert flag(pod, "nnodes") == "$(LWS_GROUP_SIZE)" and pod.size > 1
    assert gpus == (ranks if device == "cuda" else 0)
    assert bool(pod.spec.get("tolerations")) == bool(gpus), "GPU nodes are mostly tainted"


@pytest.mark.parametrize(("overlay", "pod"), EVERY_POD)
def test_images_are_pinned_and_can_be_built(overlay: str, pod: Pod, tmp_path: Path) -> None:
    """Prevents `latest`, images no Containerfile makes, and CPU builds on GPU nodes."""
    for container in pod.containers:
        name, _, tag = container["image"].rpartition(":")
        assert tag and tag != "latest", container["image"]
        target = name.removeprefix("domino-serve-")
        assert re.search(rf"^FROM .* AS {target}$", CONTAINERFILE, re.MULTILINE), name
    device = getattr(config(overlay, pod, tmp_path), "device", None)
    assert pod.container["image"].endswith(f"-{device}") or device is None


@pytest.mark.parametrize(("overlay", "pod"), EVERY_POD)
def test_containers_can_change_nothing_outside_their_mounts(overlay: str, pod: Pod) -> None:
    """Prevents root, capabilities, a writable image, and tokens for the API nobody needs."""
    assert pod.spec["securityContext"]["runAsNonRoot"] is True
    assert str(pod.spec["securityContext"]["runAsUser"]) in CONTAINERFILE
    for container in pod.containers:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"]["drop"] == ["ALL"]
    has_token = pod.spec.get("automountServiceAccountToken", True)
    assert has_token == (pod.name == "router")


@pytest.mark.parametrize(("overlay", "pod"), EVERY_POD)
def test_resources_are_asked_for(overlay: str, pod: Pod) -> None:
    """Prevents pods that are packed onto a full node, or that take a node's memory with them."""
    for container in pod.containers:
        resources = container["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys()
        assert gibibytes(resources["limits"]["memory"]) >= gibibytes(
            resources["requests"]["memory"]
        )
    shm = [v["emptyDir"]["sizeLimit"] for v in pod.spec["volumes"] if v["name"] == "shm"]
    assert pod.name == "router" or shm, "ranks and data planes need more than 64 MiB there"
    limit = gibibytes(pod.container["resources"]["limits"]["memory"])
    assert all(gibibytes(size) <= limit / 2 for size in shm), "it counts against the limit"


@pytest.mark.parametrize(("overlay", "pod"), EVERY_POD)
def test_volumes_are_there_and_models_are_checked_first(overlay: str, pod: Pod) -> None:
    """Prevents mounts of nothing, and weights that nobody compared with their sums."""
    volumes = {volume["name"] for volume in pod.spec["volumes"]}
    for container in pod.containers:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    last = pod.spec["initContainers"][-1]
    assert last["command"][:3] == ["sha256sum", "--check", "--strict"]
    assert last["workingDir"] == "/models"
    mounts: dict[str, Any] = {m["mountPath"]: m for m in pod.container["volumeMounts"]}
    assert mounts["/models"]["readOnly"] is True
    assert mounts.keys() >= ({"/tmp"} if pod.name == "router" else {"/tmp", "/cache"})


def test_environment_variables_exist() -> None:
    """Prevents settings that nobody reads."""
    root = DEPLOY.parent
    sources = [
        *root.glob("serving/*.py"),
        *root.glob("*_service/*.py"),
        *root.glob("kernels/**/*.py"),
    ]
    ours = "".join(file.read_text() for file in sources)
    manifest_names = {
        variable["name"]
        for param in EVERY_POD
        for container in param.values[1].containers  # type: ignore[union-attr]
        for variable in container.get("env", ())
    }
    image_names = set(re.findall(r"\b([A-Z][A-Z_]+)=", CONTAINERFILE)) - {"VARIANT", "TORCH_INDEX"}
    for name in (manifest_names | image_names) - {"PYTHON", *FOREIGN_ENV}:
        assert f'"{name}"' in ours, f"nobody reads {name}"


def test_certificates_are_mounted_and_names_fit(tmp_path: Path) -> None:
    """Prevents TLS options without files, and callers that the other side does not let in."""
    engine, router = "engines.domino-serve", "router.domino-serve"
    for pod in pods("single-node-gpu-tls"):
        found = config("single-node-gpu-tls", pod, tmp_path)
        volumes = {
            v["name"]: v["secret"]["secretName"] for v in pod.spec["volumes"] if "secret" in v
        }
        mounts = {m["mountPath"]: m["name"] for m in pod.container["volumeMounts"]}
        for file in (found.tls_cert, found.tls_key, found.tls_ca):
            assert volumes[mounts[str(file.parent)]] == f"{pod.name}-tls"
        assert found.tls_server_name == engine
        callers = {"router": set(), "verify": {router}, "draft": {router, engine}}
        if pod.name == "router":
            assert volumes[mounts[str(found.callers.parent)]] == "callers"
        assert found.allowed_callers == callers[pod.name]
