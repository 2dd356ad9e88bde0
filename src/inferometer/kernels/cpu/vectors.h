// Vectors as wide as the processor this is compiled for has them, and the two types of numbers that models are stored in.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * W)));
typedef int32_t Ints __attribute__((vector_size(4 * W)));
typedef uint16_t Halves __attribute__((vector_size(2 * W)));

// The upper half of a float's bits.
struct Bfloat16 {
    uint16_t bits;
};

inline Floats splat(float x) { return Floats{} + x; }

inline Floats load(const float* p) {
    Floats v;
    memcpy(&v, p, sizeof v);
    return v;
}

inline Floats load(const Bfloat16* p) {
    Halves h;
    memcpy(&h, p, sizeof h);
    return (Floats)(__builtin_convertvector(h, Ints) << 16);
}

inline void store(float* p, Floats v) { memcpy(p, &v, sizeof v); }

inline float widen(float x) { return x; }

inline float widen(Bfloat16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

inline void narrow(float x, float* out) { *out = x; }

// To the nearest, ties to even; what is not a number stays none.
inline void narrow(float x, Bfloat16* out) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    out->bits = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// As many values as there are, the rest zero.
template <class T> Floats load_part(const T* p, int64_t count) {
    float out[W] = {};
    for (int64_t i = 0; i < count; i++) out[i] = widen(p[i]);
    return load(out);
}

inline float sum(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float part[W];
    store(part, v);
    for (int width = W / 2; width; width /= 2)
        for (int i = 0; i < width; i++) part[i] += part[i + width];
    return part[0];
#endif
}

// a * b + c, rounded once where the processor can. Written out, because a compiler that may choose chooses differently for one row and for
// many, and a row's bits would depend on its company.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX__) && defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// e^x within two units in the last place: 2^n times a polynomial of the rest; below e^-87 that, above e^88 that.
inline Floats exponential(Floats x) {
    x = x < splat(-87.0f) ? splat(-87.0f) : x;
    x = x > splat(88.0f) ? splat(88.0f) : x;
    // Adding 1.5 * 2^23 leaves the nearest whole number in the lowest bits.
    const Floats shifted = x * splat(1.44269504f) + splat(12582912.0f);
    const Floats n = shifted - splat(12582912.0f);
    const Floats r = x - n * splat(0.693359375f) - n * splat(-2.12194440e-4f);
    Floats p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * r * r + r + splat(1.0f);
    return p * (Floats)(((Ints)shifted << 23) + 0x3f800000);
}
