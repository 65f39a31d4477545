/* ---- layers without weights; plain C99, every loop can be vectorized ---- */

#include <float.h>

#ifdef __FAST_MATH__
#error "-ffast-math would undo round_even: compile without it"
#endif

/* Where sums are wider than float (x87), storing one rounds it. gcc without -std=c99 may keep even
 * an assigned one wide, but stores what is volatile. */
#if FLT_EVAL_METHOD == 0
typedef float stored;
#else
typedef volatile float stored;
#endif

/* Nearest integer, ties to even, of |x| < 2^22; calls no library. */
static inline float round_even(float x)
{
    const stored shifted = x + 12582912.0f; /* a float has no room for the fraction */
    return shifted - 12582912.0f;
}

static inline void relu(float *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

static inline void clip(float *x, int n, float low, float high)
{
    for (int i = 0; i < n; i++) {
        x[i] = x[i] > low ? x[i] : low;
        x[i] = x[i] < high ? x[i] : high;
    }
}

/* The rational approximation of Eigen and ONNX Runtime: within 4e-7 of tanh. */
static inline void hyperbolic_tangent(float *x, int n)
{
    clip(x, n, -9.0f, 9.0f);
    for (int i = 0; i < n; i++) {
        const float s = x[i] * x[i];
        float p = -2.76076847742355e-16f;
        p = p * s + 2.00018790482477e-13f;
        p = p * s + -8.60467152213735e-11f;
        p = p * s + 5.12229709037114e-08f;
        p = p * s + 1.48572235717979e-05f;
        p = p * s + 6.37261928875436e-04f;
        p = p * s + 4.89352455891786e-03f;
        float q = 1.19825839466702e-06f;
        q = q * s + 1.18534705686654e-04f;
        q = q * s + 2.26843463243900e-03f;
        q = q * s + 4.89352518554385e-03f;
        x[i] = x[i] * p / q;
    }
}

/* Levels 0..top of activations; zero is level `zero`. */
static inline float level(float x, float inverse_step, float zero, float top)
{
    float l = round_even(x * inverse_step) + zero;
    l = l > 0.0f ? l : 0.0f; /* NaN too */
    return l < top ? l : top;
}

/* What quantization-aware training leaves: values on the levels that it trained with. */
static inline void fixed_quantize(float *x, int n, float step, float inverse_step, float zero,
                                  float top)
{
    for (int i = 0; i < n; i++)
        x[i] = (level(x[i], inverse_step, zero, top) - zero) * step;
}
