/* ---- y = W x + b; weights int8 [outputs][inputs padded to 16], activations in 256 levels ----
 *
 * Sums are int32 and exact. `scale` has one value, or one for each output where `per_output` is 1;
 * `bias` holds what the levels' zero adds. */

static inline int32_t dot(const activation *restrict x, const int8_t *restrict w, int n)
{
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += (int32_t)x[i] * w[i];
    return sum;
}

static void linear(const float *restrict x, float *restrict y, int inputs, int outputs,
                   float inverse_step, float zero, const int8_t *restrict weight,
                   const float *restrict scale, int per_output, const float *restrict bias)
{
    activation q[WIDEST_PADDED];
    const int padded = (inputs + 15) / 16 * 16;
    for (int i = 0; i < inputs; i++)
        q[i] = (activation)((int32_t)level(x[i], inverse_step, zero, 255.0f) - OFFSET);
    for (int i = inputs; i < padded; i++)
        q[i] = 0; /* meets weights of zero */
    for (int o = 0; o < outputs; o++)
        y[o] = (float)dot(q, weight + (size_t)o * padded, padded) * scale[per_output * o] + bias[o];
}
