"""An own model as a graph of its own: raw readings in, probabilities or predictions out."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from intarsia.core import IntarsiaError, SettingsError
from intarsia.data.preparation import Preparation

INPUT, OUTPUTS, PROBABILITIES, PREDICTIONS = "input", "outputs", "probabilities", "predictions"
ABOUT = "intarsia.json"
"""What a .pt2 calls the record inside of it; in ONNX and safetensors it is the metadata `intarsia`."""
ONNX_MISSING = "ONNX needs packages that are not here: pip install 'intarsia[onnx]'"

Runner = Callable[[Tensor], Sequence[Tensor]]
"""Gives what a model's graph gives, for raw samples."""


class ExportError(IntarsiaError):
    """A model that cannot be exported, or that differs from the original once it is."""


class Deployed(nn.Module):
    """A plain network with all that comes before it and after it.

    It gives the network's outputs, and the probabilities of labels or, in regression, predictions in the units of the
    table that it was trained on.
    """

    def __init__(
        self, inputs: nn.Module, network: nn.Module, targets: Preparation | None, classes: bool
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.network = network
        self.classes = classes
        columns = targets.targets if targets is not None else ()
        self.offset = [column.offset for column in columns]
        self.scale = [column.scale for column in columns]
        self.eval()

    @property
    def names(self) -> tuple[str, str]:
        """What its two outputs are called."""
        return OUTPUTS, PROBABILITIES if self.classes else PREDICTIONS

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs, and probabilities or predictions."""
        outputs: Tensor = self.network(self.inputs(raw))
        if self.classes:
            return outputs, outputs.softmax(1)
        outputs = outputs.reshape(outputs.shape[0], -1)
        if not self.scale:
            return outputs, outputs.clone()
        scale, offset = (torch.tensor(v, dtype=torch.float64) for v in (self.scale, self.offset))
        return outputs, outputs.double() * scale + offset


def traced(deployed: Deployed, example: Tensor) -> torch.export.ExportedProgram:
    """Return the graph of a model for any number of samples; the example must be none of a client's."""
    batch = torch.export.Dim("batch", min=1)
    try:
        with _quietly(), torch.no_grad():
            graph = torch.export.export(deployed, (example,), dynamic_shapes=({0: batch},), strict=False)
    except Exception as error:
        name = type(deployed.network).__name__
        raise ExportError(
            f"{name} cannot be made a graph ({type(error).__name__}: {_first(error)}): what its forward does must not "
            "depend on the values or the number of samples; its weights can be exported: --to model.safetensors"
        ) from error
    _forget_places(graph)
    return graph


def _forget_places(graph: torch.export.ExportedProgram) -> None:
    """Take out where the code lay that made each node: paths of this machine would go out with the file."""
    for module in graph.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)


def to_pt2(graph: torch.export.ExportedProgram, about: Mapping[str, Any]) -> bytes:
    """Return a graph as a .pt2 file."""
    file = io.BytesIO()
    with _quietly():
        torch.export.save(graph, file, extra_files={ABOUT: json.dumps(about)})
    return file.getvalue()


def run_pt2(data: bytes) -> tuple[Runner, dict[str, Any]]:
    """Return what runs a .pt2 file, and what it says of itself."""
    extra = {ABOUT: ""}
    with _quietly():
        module = torch.export.load(io.BytesIO(data), extra_files=extra).module()
    return in_torch(module), json.loads(extra[ABOUT] or "{}")


def to_onnx(graph: torch.export.ExportedProgram, names: Sequence[str], about: Mapping[str, Any]) -> bytes:
    """Return a graph as an ONNX file, with one metadata entry for each thing that is known of it."""
    check_onnx()
    with _quietly():
        program = torch.onnx.export(
            graph, dynamo=True, input_names=[INPUT], output_names=list(names), verbose=False
        )
    if program is None:
        raise ExportError("torch.onnx gave no program: try another version of torch")
    proto = program.model_proto
    _name_batch(proto)
    entries = {"intarsia": json.dumps(about), **{key: _text(value) for key, value in about.items()}}
    for key, value in entries.items():
        proto.metadata_props.add(key=key, value=value)
    return bytes(proto.SerializeToString())


def run_onnx(data: bytes) -> tuple[Runner, dict[str, Any]]:
    """Return what runs an ONNX file, and what it says of itself."""
    check_onnx()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(raw: Tensor) -> Sequence[Tensor]:
        found = session.run(names, {INPUT: raw.numpy()})
        return [torch.from_numpy(np.asarray(values)) for values in found]

    about = session.get_modelmeta().custom_metadata_map.get("intarsia", "{}")
    return run, json.loads(about)


def to_safetensors(network: nn.Module, about: Mapping[str, Any]) -> bytes:
    """Return the weights of a plain network."""
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in network.state_dict().items()}
    return save(tensors, {"intarsia": json.dumps(about)})


def run_safetensors(data: bytes, deployed: Deployed) -> Runner:
    """Return what runs a network of the same form with these weights."""
    filled = copy.deepcopy(deployed)
    with torch.no_grad():
        for tensor in filled.network.state_dict().values():
            tensor.zero_()
    filled.network.load_state_dict(load(data))
    return in_torch(filled)


def check_onnx() -> None:
    """Say what to install, if ONNX cannot be used."""
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise SettingsError(f"{ONNX_MISSING} ({error.name} is missing)") from None
    _ = onnx, onnxruntime, onnxscript


def in_torch(module: nn.Module) -> Runner:
    """Return what runs a module that gives a graph's outputs."""

    def run(raw: Tensor) -> Sequence[Tensor]:
        with torch.no_grad():
            found: Sequence[Tensor] = module(raw)
        return found

    return run


def _name_batch(proto: Any) -> None:
    """Call the number of samples `batch`, whatever the tracer called it."""
    first = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == first:
                dim.dim_param = "batch"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _first(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep back what torch says to those who work on its exporter; attention takes its plain way meanwhile."""
    fast = torch.backends.mha.get_fastpath_enabled()
    before = logging.root.manager.disable
    torch.backends.mha.set_fastpath_enabled(False)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        torch.backends.mha.set_fastpath_enabled(fast)
