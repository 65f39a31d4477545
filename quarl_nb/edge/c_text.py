"""Pieces of C99: arrays, numbers, the header, and the function that chooses the action."""

from __future__ import annotations

import math

import numpy as np

from quarl_nb.rl.spec import Head

SIGNED_OFFSET = 128
C_TYPES = {"int8": "int8_t", "uint8": "uint8_t", "int32": "int32_t", "float32": "float",
            "float64": "double"}  # fmt: skip

ACTIVATION_TYPE = f"""/* x86 multiplies u8 by s8 with VNNI, else s16 by s16; Arm s8 by s8. */
#if defined(__x86_64__) || defined(__i386__)
#define UNSIGNED_ACTIVATIONS 1
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
typedef uint8_t activation;
#else
typedef int16_t activation;
#endif
enum {{ OFFSET = 0 }};
#else
#define UNSIGNED_ACTIVATIONS 0
typedef int8_t activation;
enum {{ OFFSET = {SIGNED_OFFSET} }};
#endif
"""

HEADER = """#ifndef POLICY_H
#define POLICY_H

#include <stdint.h>

#define POLICY_INPUTS {inputs}
#define POLICY_OUTPUTS {outputs}
#define POLICY_PRECISION "{precision}"
{discrete}
typedef {input_type} policy_input;

/* Outputs [POLICY_OUTPUTS] of a raw, finite observation [POLICY_INPUTS]; no heap, no state. */
void policy_run(const policy_input *obs, float *outputs);

{act};

#endif
"""


def declaration(name: str, array: np.ndarray) -> str:
    """A constant C array of the values, of the same shape."""
    kind, flat = array.dtype.name, array.reshape(-1)
    if flat.dtype.itemsize == 1 and array.ndim == 1:
        # A string: gcc takes 25 times as long, and 400 MB for 3 MB of weights, to read a list.
        codes = [f"\\{byte:03o}" for byte in flat.view(np.uint8).tolist()]
        rows = [f'"{"".join(codes[i : i + 32])}"' for i in range(0, len(codes), 32)]
        values = "\n".join(rows)
    else:
        numbers = [literal(x, kind) for x in flat.tolist()]
        rows = [", ".join(numbers[i : i + 16]) for i in range(0, len(numbers), 16)]
        values = "{\n" + ",\n".join(rows) + "}"
    sizes = "".join(f"[{size}]" for size in array.shape)
    return f"static const {C_TYPES[kind]} {name}{sizes} = {values};"


def literal(value: float, dtype: str = "float32") -> str:
    """A number as a constant in C, which has none for infinity: the largest stands for it."""
    if math.isinf(value):
        value = math.copysign(float(np.finfo(dtype).max), value)
    if dtype == "float32":
        return f"{value:.8e}f"
    return f"{value:.16e}" if dtype == "float64" else str(int(value))


def act_declaration(head: Head) -> str:
    if head.discrete:
        return "/* The action of an observation. */\nint policy_act(const policy_input *obs)"
    return (
        f"/* The action [{len(head.low)}] of an observation. */\n"
        "void policy_act(const policy_input *obs, float *action)"
    )


def act_definition(head: Head) -> str:
    declared = act_declaration(head).partition("\n")[2]
    if head.kind == "argmax":
        return f"""{declared}
{{
    float outputs[POLICY_OUTPUTS];
    int best = 0;
    policy_run(obs, outputs);
    for (int i = 1; i < POLICY_OUTPUTS; i++)
        best = outputs[i] > outputs[best] ? i : best;
    return best;
}}
"""
    low, high = (np.array(bound, np.float32) for bound in (head.low, head.high))
    if head.kind == "clip":
        body = "clip(action + i, 1, low[i], high[i]);"
    else:
        body = (
            "{ hyperbolic_tangent(action + i, 1);\n"
            "        action[i] = low[i] + 0.5f * (action[i] + 1.0f) * (high[i] - low[i]); }"
        )
    return f"""{declaration("low", low)}
{declaration("high", high)}
{declared}
{{
    policy_run(obs, action);
    for (int i = 0; i < POLICY_OUTPUTS; i++)
        {body}
}}
"""
