// Norms of rows of the residual stream.
#pragma once
#include <cmath>

#include "model.h"

// The sum of f over a row of `count` numbers. beyond: f of the zeros that fill up the last vector.
template <class F> float total(const float* x, int64_t count, F f, float beyond = 0) {
    Floats sums = {};
    int64_t i = 0;
    for (; i + W <= count; i += W) sums += f(load(x + i));
    if (i < count) sums += f(load_part(x + i, count - i));
    return sum(sums) - (i < count ? float(W - (count - i)) * beyond : 0.0f);
}

// to: the norm of x, one row, in the model's type. also: the same in float32, or null.
template <class T> void norm(const Model& m, const Norm& weights, const float* x, T* to, float* also) {
    float mean = 0;
    if (!m.rms) mean = total(x, m.hidden, [](Floats v) { return v; }) / m.hidden;
    const Floats centre = splat(mean);
    const float square = total(x, m.hidden, [&](Floats v) { return (v - centre) * (v - centre); }, mean * mean);
    const float factor = 1.0f / sqrtf(square / m.hidden + m.epsilon);
    for (int64_t i = 0; i < m.hidden; i++) {
        float y = (x[i] - mean) * factor;
        if (weights.weight) y *= weights.weight[i];
        if (weights.bias) y += weights.bias[i];
        narrow(y, to + i);
        if (also) also[i] = y;
    }
}
