/* Adam on moments that are bfloat16, over many arrays in one call and one parallel region.
 *
 * Arrays come as lists of pointers with a list of lengths. The elements of all of them, laid end to end, are dealt out
 * evenly to the threads; what an element becomes does not depend on their number.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef _OPENMP
#define PARALLEL(threads) _Pragma("omp parallel num_threads(threads)")
extern int omp_get_thread_num(void);
extern int omp_get_num_threads(void);
#else
#define PARALLEL(threads)
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

/* a * b + c, rounded once where the processor can do that quickly. */
static inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* What is the same for all elements of a step of Adam. */
struct adam {
    float first_weight;  /* 1 - beta1 */
    float beta2;
    float second_weight; /* 1 - beta2 */
    float eps;
    float step;          /* learning rate, with both bias corrections in it */
    float decay;         /* added to the gradient, times the weight */
};

/* In the order of torch's fused kernel and with its roundings. */
static inline __attribute__((always_inline)) float moved(const struct adam *s, float w, float g, float *m, float *v) {
    g = fused(w, s->decay, g);
    *m = fused(g - *m, s->first_weight, *m);
    *v = fused(s->second_weight * g, g, *v * s->beta2);
    return w - s->step * *m / (sqrtf(*v) + s->eps);
}

static inline float widened(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static inline uint16_t rounded(float x, int32_t noise) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + (uint32_t)noise) >> 16);
}

/* Adam whose moments are rounded up or down by what a table says.
 *
 * Each array is cut into pieces of `piece` elements; piece number p reads the table from places[2 p] for its first
 * moments and from places[2 p + 1] for its second ones.
 */
void adam_rounded(int64_t arrays, float *const *weights, const float *const *gradients, uint16_t *const *first_moments,
                  uint16_t *const *second_moments, const int64_t *lengths, const struct adam *settings,
                  const int32_t *table, const int64_t *places, const int64_t *first_pieces, int64_t piece,
                  int32_t threads) {
    const struct adam s = *settings;
    int64_t total = 0;
    for (int64_t a = 0; a < arrays; a++) total += lengths[a];
    PARALLEL(threads)
    {
        const int64_t mine = omp_get_thread_num(), all = omp_get_num_threads();
        const int64_t begin = total / all * mine + (mine < total % all ? mine : total % all);
        const int64_t end = begin + total / all + (mine < total % all);
        int64_t offset = 0;
        for (int64_t a = 0; a < arrays && offset < end; offset += lengths[a], a++) {
            float *restrict w = weights[a];
            const float *restrict g = gradients[a];
            uint16_t *restrict ms = first_moments[a];
            uint16_t *restrict vs = second_moments[a];
            const int64_t last = end - offset < lengths[a] ? end - offset : lengths[a];
            for (int64_t from = begin > offset ? begin - offset : 0; from < last;) {
                const int64_t number = from / piece;
                const int64_t until = (number + 1) * piece < last ? (number + 1) * piece : last;
                const int64_t *place = places + 2 * (first_pieces[a] + number);
                const int32_t *restrict up_m = table + place[0] - number * piece;
                const int32_t *restrict up_v = table + place[1] - number * piece;
                for (int64_t i = from; i < until; i++) {
                    float m = widened(ms[i]), v = widened(vs[i]);
                    w[i] = moved(&s, w[i], g[i], &m, &v);
                    ms[i] = rounded(m, up_m[i]);
                    vs[i] = rounded(v, up_v[i]);
                }
                from = until;
            }
        }
    }
}
