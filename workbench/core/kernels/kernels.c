/* Passes over many small arrays at once: one call and one parallel region for all tensors of a step.
 *
 * Every function takes the arrays as lists of pointers with a list of lengths, and a number of threads. The elements of
 * all arrays, laid end to end, are dealt out evenly; what an element becomes does not depend on the number of threads.
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

static int64_t sum(int64_t arrays, const int64_t *lengths) {
    int64_t total = 0;
    for (int64_t a = 0; a < arrays; a++) total += lengths[a];
    return total;
}

/* Run a block for every array of which this thread has a part, with `a` its number and [first, last) the part. */
#define FOR_MY_PARTS(...)                                                                                              \
    {                                                                                                                  \
        const int64_t mine = omp_get_thread_num(), all = omp_get_num_threads();                                        \
        const int64_t begin = total / all * mine + (mine < total % all ? mine : total % all);                          \
        const int64_t end = begin + total / all + (mine < total % all);                                                \
        int64_t offset = 0;                                                                                            \
        for (int64_t a = 0; a < arrays && offset < end; offset += lengths[a], a++) {                                   \
            const int64_t first = begin > offset ? begin - offset : 0;                                                 \
            const int64_t last = end - offset < lengths[a] ? end - offset : lengths[a];                                \
            if (first < last) __VA_ARGS__                                                                                     \
        }                                                                                                              \
    }

/* a * b + c, rounded once where the processor can do that quickly. */
static inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Multiply each array by its factor; `found` of an array becomes 1 when an element was inf or NaN before. */
void unscale_and_check(int64_t arrays, float *const *values, const int64_t *lengths, const float *factors,
                       int32_t *found, int32_t threads) {
    const int64_t total = sum(arrays, lengths);
    PARALLEL(threads)
    FOR_MY_PARTS({
        float *restrict x = values[a];
        const float factor = factors[a];
        uint32_t largest = 0;
        for (int64_t i = first; i < last; i++) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            bits &= 0x7fffffffu;
            largest = bits > largest ? bits : largest;
            x[i] *= factor;
        }
        if (largest >= 0x7f800000u) {
            _Pragma("omp atomic write")
            found[a] = 1;
        }
    })
}

/* Sums are formed in float32 over this many elements, in LANES partial sums, and added up in double precision. */
enum { BLOCK = 1024, LANES = 32 };

/* The sum of squares of all arrays and the bits of the largest absolute value; of all numbers inf and NaN have the
 * largest bits. On one thread, so that the order of the sum is always the same.
 */
void squares_and_maximum(int64_t arrays, const float *const *values, const int64_t *lengths, double *squares,
                         uint32_t *maximum) {
    double total = 0.0;
    uint32_t largest = 0;
    for (int64_t a = 0; a < arrays; a++) {
        double of_array = 0.0;
        for (int64_t from = 0; from < lengths[a]; from += BLOCK) {
            const float *restrict x = values[a] + from;
            const int64_t n = lengths[a] - from < BLOCK ? lengths[a] - from : BLOCK;
            float sums[LANES] = {0.0f};
            for (int64_t i = 0; i < n; i++) {
                uint32_t bits;
                memcpy(&bits, x + i, sizeof bits);
                bits &= 0x7fffffffu;
                largest = bits > largest ? bits : largest;
            }
            int64_t i = 0;
            for (; i + LANES <= n; i += LANES)
                for (int k = 0; k < LANES; k++) sums[k] += x[i + k] * x[i + k];
            for (; i < n; i++) sums[0] += x[i] * x[i];
            for (int k = 0; k < LANES; k++) of_array += sums[k];
        }
        total += of_array;
    }
    *squares = total;
    *maximum = largest;
}

enum { EXPONENTS = 256, COUNTERS = 4 };

/* Add to `counts` how often each binary exponent occurs: EXPONENTS + 1 numbers for each place, and every array has one.
 * The last number is of exact zeros, which are not among those with exponent 0. Neighbours mostly have the same
 * exponent, and a counter that was just written makes the next one wait, so they take turns.
 */
void count_exponents(int64_t arrays, const float *const *values, const int64_t *lengths, const int64_t *places,
                     int64_t *counts) {
    for (int64_t a = 0; a < arrays; a++) {
        int64_t found[COUNTERS][EXPONENTS] = {{0}}, zeros = 0;
        const float *x = values[a];
        for (int64_t i = 0; i < lengths[a]; i++) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            bits <<= 1; /* without the sign */
            found[i % COUNTERS][bits >> 24]++;
            zeros += bits == 0;
        }
        int64_t *of_place = counts + (EXPONENTS + 1) * places[a];
        for (int k = 0; k < COUNTERS; k++)
            for (int e = 0; e < EXPONENTS; e++) of_place[e] += found[k][e];
        of_place[0] -= zeros;
        of_place[EXPONENTS] += zeros;
    }
}

/* Of each pair of arrays a.b, a.a and b.b, run by run of `run` elements: the order of the sums, and
 * so their bits, are the same for any number of threads. `first_runs` says where the runs of an array begin in `sums`.
 */
void inner_products(int64_t arrays, const float *const *ours, const float *const *theirs, const int64_t *lengths,
                    const int64_t *first_runs, int64_t run, double *sums, int32_t threads) {
    const int64_t runs = first_runs[arrays];
    _Pragma("omp parallel for num_threads(threads) schedule(static)")
    for (int64_t r = 0; r < runs; r++) {
        int64_t low = 0, high = arrays; /* the array of this run: the last that begins at or before it */
        while (high - low > 1) {
            const int64_t middle = low + (high - low) / 2;
            if (first_runs[middle] <= r)
                low = middle;
            else
                high = middle;
        }
        const int64_t first = (r - first_runs[low]) * run;
        const int64_t last = first + run < lengths[low] ? first + run : lengths[low];
        const float *restrict a = ours[low];
        const float *restrict b = theirs[low];
        double totals[3] = {0.0, 0.0, 0.0};
        for (int64_t from = first; from < last; from += BLOCK) {
            const int64_t until = from + BLOCK < last ? from + BLOCK : last;
            float across[LANES] = {0.0f}, own[LANES] = {0.0f}, other[LANES] = {0.0f};
            int64_t i = from;
            for (; i + LANES <= until; i += LANES)
                for (int k = 0; k < LANES; k++) {
                    across[k] += a[i + k] * b[i + k];
                    own[k] += a[i + k] * a[i + k];
                    other[k] += b[i + k] * b[i + k];
                }
            for (; i < until; i++) {
                across[0] += a[i] * b[i];
                own[0] += a[i] * a[i];
                other[0] += b[i] * b[i];
            }
            for (int k = 0; k < LANES; k++) {
                totals[0] += across[k];
                totals[1] += own[k];
                totals[2] += other[k];
            }
        }
        memcpy(sums + 3 * r, totals, sizeof totals);
    }
}

/* Replace each array by `own` of it times itself plus `other` of it times its partner. */
void mix(int64_t arrays, float *const *ours, const float *const *theirs, const int64_t *lengths, const float *own,
         const float *other, int32_t threads) {
    const int64_t total = sum(arrays, lengths);
    PARALLEL(threads)
    FOR_MY_PARTS({
        float *restrict a_ = ours[a];
        const float *restrict b = theirs[a];
        const float x = own[a], y = other[a];
        for (int64_t i = first; i < last; i++) a_[i] = x * a_[i] + y * b[i];
    })
}

/* Columns whose two sums stay in the nearest cache while all rows of a matrix pass by. */
enum { COLUMNS = 4096 };

/* Two linear combinations of the rows of a matrix, read once: with `factors` of two times so many rows, the first for
 * out[0, columns), the second for what follows. Rows are added in their order, four at a time.
 */
void combine_rows(int64_t rows, int64_t columns, const float *matrix, const float *factors, float *out,
                  int32_t threads) {
    const int64_t blocks = (columns + COLUMNS - 1) / COLUMNS;
    PARALLEL(threads)
    {
        const int64_t mine = omp_get_thread_num(), all = omp_get_num_threads();
        for (int64_t b = blocks * mine / all; b < blocks * (mine + 1) / all; b++) {
            const int64_t from = b * COLUMNS, n = columns - from < COLUMNS ? columns - from : COLUMNS;
            float *restrict one = out + from, *restrict other = out + columns + from;
            memset(one, 0, n * sizeof *one);
            memset(other, 0, n * sizeof *other);
            const float *own = factors, *its = factors + rows;
            int64_t r = 0;
            for (; r + 4 <= rows; r += 4) {
                const float *restrict w = matrix + r * columns + from, *restrict x = w + columns;
                const float *restrict y = x + columns, *restrict z = y + columns;
                const float a = own[r], c = own[r + 1], d = own[r + 2], e = own[r + 3];
                const float f = its[r], g = its[r + 1], h = its[r + 2], k = its[r + 3];
                for (int64_t i = 0; i < n; i++) {
                    one[i] = fused(e, z[i], fused(d, y[i], fused(c, x[i], fused(a, w[i], one[i]))));
                    other[i] = fused(k, z[i], fused(h, y[i], fused(g, x[i], fused(f, w[i], other[i]))));
                }
            }
            for (; r < rows; r++) {
                const float *restrict w = matrix + r * columns + from;
                for (int64_t i = 0; i < n; i++) {
                    one[i] = fused(own[r], w[i], one[i]);
                    other[i] = fused(its[r], w[i], other[i]);
                }
            }
        }
    }
}

/* What is the same for all elements of a step of Adam. */
struct adam {
    float first_weight;   /* 1 - beta1 */
    float beta2;
    float second_weight;  /* 1 - beta2 */
    float correction;     /* sqrt(1 - beta2 ** t), or 1 */
    float eps;
    float step;           /* learning rate / (1 - beta1 ** t) */
    float decay;          /* added to the gradient, times the weight */
    float shrink;         /* 1 - learning rate * decoupled decay */
    float sign;           /* -1 to maximise */
};

/* In torch's order and with its roundings, so that a step has torch's bits. `is_last` is for the elements that torch's
 * vectors do not reach: there its compiler fuses the other product. `corrects` is false where `correction` is 1. */
static inline __attribute__((always_inline)) float moved(const struct adam *s, float w, float g, float *m, float *v,
                                                         int is_last, int corrects) {
    g = fused(w, s->decay, s->sign * g);
    w *= s->shrink;
    *m = fused(g - *m, s->first_weight, *m);
    *v = is_last ? fused(*v, s->beta2, s->second_weight * g * g) : fused(s->second_weight * g, g, *v * s->beta2);
    const float root = sqrtf(*v);
    return w - s->step * *m / ((corrects ? root / s->correction : root) + s->eps);
}

static inline __attribute__((always_inline)) void adam_part(const struct adam *s, int64_t first, int64_t last,
                                                            float *restrict w, const float *restrict g,
                                                            float *restrict m, float *restrict v, int is_last,
                                                            int corrects) {
    for (int64_t i = first; i < last; i++) w[i] = moved(s, w[i], g[i], m + i, v + i, is_last, corrects);
}

void adam(int64_t arrays, float *const *weights, const float *const *gradients, float *const *first_moments,
          float *const *second_moments, const int64_t *lengths, const struct adam *settings, int64_t lanes,
          int32_t threads) {
    const struct adam s = *settings;
    const int corrects = s.correction != 1.0f;
    const int64_t total = sum(arrays, lengths);
    PARALLEL(threads)
    FOR_MY_PARTS({
        float *w = weights[a];
        const float *g = gradients[a];
        float *m = first_moments[a];
        float *v = second_moments[a];
        const int64_t whole = lengths[a] - lengths[a] % lanes; /* what torch does in vectors */
        const int64_t until = last < whole ? last : whole;
        if (corrects)
            adam_part(&s, first, until, w, g, m, v, 0, 1);
        else
            adam_part(&s, first, until, w, g, m, v, 0, 0);
        adam_part(&s, first > whole ? first : whole, last, w, g, m, v, 1, corrects);
    })
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

/* Adam whose moments are bfloat16, rounded up or down by what a table says.
 *
 * Each array is cut into pieces of `piece` elements; piece number p reads the table from places[2 p] for its first
 * moments and from places[2 p + 1] for its second ones. `correction` is taken for 1.
 */
void adam_rounded(int64_t arrays, float *const *weights, const float *const *gradients, uint16_t *const *first_moments,
                  uint16_t *const *second_moments, const int64_t *lengths, const struct adam *settings,
                  const int32_t *table, const int64_t *places, const int64_t *first_pieces, int64_t piece,
                  int32_t threads) {
    const struct adam s = *settings;
    const int64_t total = sum(arrays, lengths);
    PARALLEL(threads)
    FOR_MY_PARTS({
        float *restrict w = weights[a];
        const float *restrict g = gradients[a];
        uint16_t *restrict ms = first_moments[a];
        uint16_t *restrict vs = second_moments[a];
        for (int64_t from = first; from < last;) {
            const int64_t number = from / piece;
            const int64_t until = (number + 1) * piece < last ? (number + 1) * piece : last;
            const int64_t *place = places + 2 * (first_pieces[a] + number);
            const int32_t *restrict up_m = table + place[0] - number * piece;
            const int32_t *restrict up_v = table + place[1] - number * piece;
            for (int64_t i = from; i < until; i++) {
                float m = widened(ms[i]), v = widened(vs[i]);
                w[i] = moved(&s, w[i], g[i], &m, &v, 0, 0);
                ms[i] = rounded(m, up_m[i]);
                vs[i] = rounded(v, up_v[i]);
            }
            from = until;
        }
    })
}
