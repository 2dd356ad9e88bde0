// Activations, as nn/ names them.
#pragma once
#include <cmath>

#include "vectors.h"

enum Activation { RELU, RELU_SQUARED, GELU, GELU_TANH, GELU_QUICK, SILU, TANH, SIGMOID, MISH, LEAKY_RELU, IDENTITY };

inline Floats tanh_of(Floats x) {
    // Near zero, where 1 - 1 would be left of the formula, by its series.
    const Floats square = x * x;
    const Floats series = x * (1.0f - square * (0.333333333f - square * (0.133333333f - square * 0.0539682540f)));
    const Floats size = x < splat(0.0f) ? -x : x;
    const Floats e = exponential(-2.0f * size);
    const Floats far = (1.0f - e) / (1.0f + e);
    return size < splat(0.2f) ? series : x < splat(0.0f) ? -far : far;
}

inline Floats activate(Floats x, int kind) {
    switch (kind) {
        case RELU: return x < splat(0.0f) ? splat(0.0f) : x;
        case RELU_SQUARED: x = x < splat(0.0f) ? splat(0.0f) : x; return x * x;
        case GELU: {
            for (int i = 0; i < W; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
            return x;
        }
        case GELU_TANH: return 0.5f * x * (1.0f + tanh_of(0.79788456f * (x + 0.044715f * x * x * x)));
        case GELU_QUICK: return x / (1.0f + exponential(-1.702f * x));
        case SILU: return x / (1.0f + exponential(-x));
        case TANH: return tanh_of(x);
        case SIGMOID: return 1.0f / (1.0f + exponential(-x));
        case MISH: {
            const Floats e = exponential(x > splat(20.0f) ? splat(20.0f) : x);
            const Floats grown = e * (e + 2.0f);
            return x * (grown / (grown + 2.0f));
        }
        case LEAKY_RELU: return x < splat(0.0f) ? 0.01f * x : x;
        default: return x;
    }
}
