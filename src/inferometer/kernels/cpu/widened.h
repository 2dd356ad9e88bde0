// Numbers of few bits, widened to float32 in registers.
#pragma once
#include "vectors.h"

// How a linear map's weight is stored. PLAIN: as the model's other numbers.
enum Kind { PLAIN, INT8, INT4, FP8 };
enum Scale { FLOAT32, FLOAT16, BFLOAT16 };

inline float half_to_float(uint16_t bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, rest = bits & 0x7fff;
    uint32_t wide = rest << 13;
    float out;
    if (rest >= 0x7c00) wide |= 0x7f800000;
    else if (rest >= 0x400) wide += 112u << 23;
    else return (sign ? -1.0f : 1.0f) * float(rest) * 5.9604645e-8f;
    wide |= sign;
    memcpy(&out, &wide, 4);
    return out;
#endif
}

inline float scale_at(const void* scales, int64_t i, int32_t type) {
    if (type == FLOAT32) return ((const float*)scales)[i];
    if (type == FLOAT16) return half_to_float(((const uint16_t*)scales)[i]);
    return widen(((const Bfloat16*)scales)[i]);
}

// As many scales, as float32. What follows up to a multiple of 16 is written to as well.
inline void widen_scales(const void* scales, int64_t first, int64_t count, int32_t type, float* out) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if (type == FLOAT16) {
        const uint16_t* from = (const uint16_t*)scales + first;
        for (int64_t i = 0; i < count; i += 16) {
            const __mmask16 real = count - i < 16 ? __mmask16((1 << (count - i)) - 1) : __mmask16(0xffff);
            _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(real, from + i)));
        }
        return;
    }
#endif
    for (int64_t i = 0; i < count; i++) out[i] = scale_at(scales, first + i, type);
}

typedef uint8_t Bytes __attribute__((vector_size(W)));
typedef int8_t SignedBytes __attribute__((vector_size(W)));

inline Bytes load_bytes(const uint8_t* p) {
    Bytes b;
    memcpy(&b, p, sizeof b);
    return b;
}

// As many as there are, the rest zero.
inline Bytes load_bytes(const uint8_t* p, int64_t count) {
    Bytes b = {};
    memcpy(&b, p, count);
    return b;
}

// Written out: compilers take a conversion of so many bytes apart.
inline Ints unsigned_ints(Bytes b) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepu8_epi32((__m128i)b);
#elif defined(__AVX2__)
    int64_t raw;
    memcpy(&raw, &b, sizeof raw);
    return (Ints)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(raw));
#else
    return __builtin_convertvector(b, Ints);
#endif
}

inline Ints signed_ints(Bytes b) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepi8_epi32((__m128i)b);
#elif defined(__AVX2__)
    int64_t raw;
    memcpy(&raw, &b, sizeof raw);
    return (Ints)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(raw));
#else
    SignedBytes s;
    memcpy(&s, &b, sizeof s);
    return __builtin_convertvector(s, Ints);
#endif
}

// e4m3 as its value divided by 256: its bits are those of a half precision number whose exponent counts from 8 less.
constexpr float FP8_UNIT = 256.0f;

template <int K> Floats widen_bytes(Bytes b) {
    if constexpr (K == INT8) return __builtin_convertvector(signed_ints(b), Floats);
#if defined(__AVX512F__)
    const __m256i wide = _mm256_cvtepu8_epi16((__m128i)b);
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
    const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
    return (Floats)_mm512_cvtph_ps(_mm256_or_si256(sign, rest));
#else
    Floats out;
    for (int i = 0; i < W; i++) out[i] = half_to_float(uint16_t((b[i] & 0x80) << 8 | (b[i] & 0x7f) << 7));
    return out;
#endif
}

// The 16 numbers that nibbles of one group stand for.
struct Grid {
#if defined(__AVX512F__)
    Floats table;
    Grid(float scale, float zero) {
        const Floats levels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        table = (levels - splat(zero)) * splat(scale);
    }
    // Only the lowest four bits of each are looked at.
    Floats low(Ints b) const { return (Floats)_mm512_permutexvar_ps((__m512i)b, (__m512)table); }
    Floats high(Ints b) const { return low(b >> 4); }
#else
    Floats scale, zero;
    Grid(float scale, float zero) : scale(splat(scale)), zero(splat(zero)) {}
    Floats low(Ints b) const { return (__builtin_convertvector(b & 15, Floats) - zero) * scale; }
    Floats high(Ints b) const { return (__builtin_convertvector(b >> 4, Floats) - zero) * scale; }
#endif
};
