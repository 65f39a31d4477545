/* ---- y = W x + b in float32; weight [inputs][outputs] ---- */

static void linear(const float *restrict x, float *restrict y, int inputs, int outputs,
                   const float *restrict weight, const float *restrict bias)
{
    int i = 0;
    for (int o = 0; o < outputs; o++)
        y[o] = bias[o];
    for (; i + 4 <= inputs; i += 4, weight += 4 * outputs) {
        const float a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];
        for (int o = 0; o < outputs; o++)
            y[o] += a * weight[o] + b * weight[outputs + o] + c * weight[2 * outputs + o]
                    + d * weight[3 * outputs + o];
    }
    for (; i < inputs; i++, weight += outputs)
        for (int o = 0; o < outputs; o++)
            y[o] += x[i] * weight[o];
}
