"""A server on several nodes: what its launch command says more, and what the other nodes run.

Sources: SGLang docs "Multi-Node Deployment" (--dist-init-addr, --nnodes, --node-rank); vLLM docs "Running vLLM with
MultiProcessing" (PR #30509: --nnodes, --node-rank, --master-addr, --headless) and "Data Parallel Deployment"
(--data-parallel-size-local, --data-parallel-address, --data-parallel-start-rank); TensorRT-LLM docs "trtllm-serve",
multi-node serving with Slurm (trtllm-llmapi-launch under srun).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.account.deploy import ranks_of_server, usual_node_gpus

if TYPE_CHECKING:
    from dsa_ledger.schema import Scenario

HEAD, PORT = "HEAD_NODE_IP", 20000


class Nodes(NamedTuple):
    """How one server lies on nodes, and what they run: words in front and behind, and of the other nodes."""

    many: int
    gpus: int
    front: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    others: str = ""


def nodes_of(scenario: Scenario) -> Nodes:
    """Return the nodes of a scenario's server; with one node no words are needed."""
    gpus = scenario.machine.node_gpus or usual_node_gpus(scenario.gpu_name)
    ranks = ranks_of_server(scenario)
    count = -(-ranks // gpus)
    if count == 1:
        return Nodes(1, gpus)
    rank = "1" if count == 2 else f"1 to {count - 1}"  # noqa: PLR2004 - of two nodes there is one other
    if scenario.engine.name == "sglang":
        flags: tuple[str, ...] = ("--nnodes", str(count), "--node-rank", "0", "--dist-init-addr", f"{HEAD}:{PORT}")
        return Nodes(count, gpus, (), flags, f"the same with --node-rank {rank}")
    if scenario.engine.name == "tensorrt-llm":
        front = ("srun", "--nodes", str(count), "--ntasks", str(ranks), "--ntasks-per-node", str(-(-ranks // count)))
        return Nodes(count, gpus, (*front, "--mpi=pmix", "trtllm-llmapi-launch"), (), "nothing: srun starts all ranks")
    cut = scenario.sharding
    if cut.dp_attention % count == 0:
        local = cut.dp_attention // count
        flags = ("--data-parallel-size-local", str(local), "--data-parallel-address", HEAD)
        starts = f"{local}" if count == 2 else ", ".join(str(local * node) for node in range(1, count))  # noqa: PLR2004 - as above
        return Nodes(count, gpus, (), flags, f"the same with --headless --data-parallel-start-rank {starts}")
    flags = ("--nnodes", str(count), "--node-rank", "0", "--master-addr", HEAD)
    return Nodes(count, gpus, (), flags, f"the same with --headless and --node-rank {rank}")
