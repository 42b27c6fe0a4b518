"""Replicas behind a Kubernetes Service: its EndpointSlices listed, then watched.

Needs the extra [k8s] and the right to list and watch endpointslices in the namespace.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from router.endpoint import Endpoint
from router.endpoint_slices import endpoints
from serving.errors import StartError

_log = logging.getLogger(__name__)

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_WATCH_S: Final = 240  # then it is listed anew: whatever a watch may have missed comes then
_LIST_S: Final = 30.0
_LONGEST_PAUSE_S: Final = 30.0


class KubernetesService:
    """namespace None is the pod's own, outside a cluster "default"."""

    def __init__(
        self, service: str, port: str, *, namespace: str | None = None, pause_s: float = 1.0
    ) -> None:
        self._service, self._port, self._pause_s = service, port, pause_s
        self._namespace = namespace or _own_namespace()

    async def watch(self) -> AsyncIterator[tuple[Endpoint, ...]]:
        """Never ends; while the API fails, the last set stays and it is asked again."""
        known: tuple[Endpoint, ...] | None = None
        pause_s = self._pause_s
        async with await _api_client() as client:
            while True:
                try:
                    async with aclosing(self._follow(client)) as changes:
                        async for slices in changes:
                            pause_s = self._pause_s
                            found = endpoints(slices.values(), self._port)
                            if found != known:
                                known = found
                                yield known
                except _failures() as error:
                    _log.warning("EndpointSlices of %s: %s; nothing changes", self._service, error)
                await asyncio.sleep(pause_s)  # also after a watch that ended in order
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _follow(self, client: Any) -> AsyncGenerator[dict[str, Any], None]:
        """The slices by name, at once and after each event, until the watch ends."""
        listed = json.loads(await _read(await self._ask(client, _LIST_S)))
        slices = {_name(item): item for item in listed["items"]}
        yield slices
        version = listed["metadata"]["resourceVersion"]
        how = {"watch": True, "resource_version": version, "timeout_seconds": _WATCH_S}
        response = await self._ask(client, _WATCH_S + _LIST_S, **how)
        try:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":  # mostly 410, the version is too old by now
                    raise ValueError(f"the watch ended with {event['object']}")
                if event["type"] == "DELETED":
                    slices.pop(_name(event["object"]), None)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    slices[_name(event["object"])] = event["object"]
                yield slices
        finally:
            response.close()

    async def _ask(self, client: Any, timeout_s: float, **how: Any) -> Any:
        from kubernetes.aio.client import ApiException, DiscoveryV1Api

        response = await DiscoveryV1Api(
            client
        ).list_namespaced_endpoint_slice_without_preload_content(
            self._namespace,
            label_selector=f"kubernetes.io/service-name={self._service}",
            _request_timeout=timeout_s,  # a server that went silent ends nothing itself
            **how,
        )
        if response.status != 200:
            raise ApiException(status=response.status, reason=response.reason)
        return response


async def _read(response: Any) -> bytes:
    return bytes(await response.read())


def _name(item: Any) -> str:
    return str(item["metadata"]["name"])


async def _api_client() -> Any:
    """For the pod's service account, or outside a cluster for $KUBECONFIG's."""
    from kubernetes.aio import config
    from kubernetes.aio.client import ApiClient, Configuration

    configuration = Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(configuration)
        else:
            await config.load_kube_config(client_configuration=configuration)
    except (config.ConfigException, OSError, ValueError) as error:
        raise StartError(f"no access to the Kubernetes API: {error}") from error
    return ApiClient(configuration)


def _failures() -> tuple[type[Exception], ...]:
    """What a request, a connection or an answer that is no EndpointSlice list can raise."""
    from aiohttp import ClientError
    from kubernetes.aio.client import ApiException

    return (ApiException, ClientError, OSError, ValueError, KeyError, TypeError, AttributeError)


def _own_namespace() -> str:
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else "default"
