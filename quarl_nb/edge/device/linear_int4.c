/* ---- y = W x + b; weights int4 in blocks of 32 inputs, activations in 256 levels ----
 *
 * weight [block][16][outputs]: a byte holds the weights of inputs 2k (low) and 2k + 1, plus 8;
 * scale [block][outputs]. `bias` holds what the levels' zero adds. A block's sum is at most
 * 32 * 7 * 128 < 2^15 in size: it is exact modulo 2^16, whatever is added on the way. */

static void linear(const float *restrict x, float *restrict y, int inputs, int outputs,
                   float inverse_step, float zero, const uint8_t *restrict weight,
                   const float *restrict scale, const float *restrict bias)
{
    uint16_t q[32], sum[WIDEST];
    for (int o = 0; o < outputs; o++)
        y[o] = bias[o];
    for (int start = 0; start < inputs; start += 32, scale += outputs) {
        const int n = inputs - start < 32 ? inputs - start : 32;
        uint32_t total = 0;
        for (int i = 0; i < n; i++)
            q[i] = (uint16_t)((int32_t)level(x[start + i], inverse_step, zero, 255.0f) - 128);
        for (int i = n; i < 32; i++)
            q[i] = 0; /* meets weights of zero */
        for (int i = 0; i < 32; i++)
            total += q[i];
        for (int o = 0; o < outputs; o++)
            sum[o] = (uint16_t)(0u - 8u * total);
        for (int i = 0; i < 32; i += 8, weight += 4 * outputs) {
            const uint8_t *restrict w0 = weight, *restrict w1 = w0 + outputs;
            const uint8_t *restrict w2 = w1 + outputs, *restrict w3 = w2 + outputs;
            const uint32_t a = q[i], b = q[i + 1], c = q[i + 2], d = q[i + 3];
            const uint32_t e = q[i + 4], f = q[i + 5], g = q[i + 6], h = q[i + 7];
            for (int o = 0; o < outputs; o++)
                sum[o] = (uint16_t)(sum[o] + a * (w0[o] & 15u) + b * (uint32_t)(w0[o] >> 4)
                                    + c * (w1[o] & 15u) + d * (uint32_t)(w1[o] >> 4)
                                    + e * (w2[o] & 15u) + f * (uint32_t)(w2[o] >> 4)
                                    + g * (w3[o] & 15u) + h * (uint32_t)(w3[o] >> 4));
        }
        for (int o = 0; o < outputs; o++)
            y[o] += scale[o] * (float)(int16_t)sum[o];
    }
}
