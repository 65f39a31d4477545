"""The kinds of actor that reports compare: their names, order and colours."""

from __future__ import annotations

from quarl_nb.report.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

# The paper's actors in full precision, and those of the runtime that int8 runs in.
BASELINES = {"torch": "fp32/torch", "ort": "fp32/onnxruntime"}
INT8 = "int8/onnxruntime"
ACTORS = (*BASELINES.values(), "fp16/torch", INT8)  # as tables and figures order them
COLORS = {"fp32/torch": BLUE, "fp32/onnxruntime": SKY, "bf16/torch": GREEN, "fp16/torch": PURPLE,
          "int8/onnxruntime": VERMILION, "int4/onnxruntime": ORANGE}  # fmt: skip
DASHES = {"fp32/torch": "--", "fp32/onnxruntime": ":", "fp16/torch": "-."}  # others: solid


def actor_label(actor: str) -> str:
    """`int8/onnxruntime` as tables and figures write it: int8 ORT."""
    return actor.replace("/onnxruntime", " ORT").replace("/", " ")


def kind_order(kind: object) -> int:
    """The place of a kind of actor among the others; a pull period's is itself."""
    return list(COLORS).index(str(kind)) if str(kind) in COLORS else int(str(kind))
