/* NAdam (spec/nadam.md) for `refopt check 'cmd:./nadam' --optimizer nadam`, by docs/protocol.md.
 *     cc -O2 -ffp-contract=off nadam.c -o nadam -lm */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1 << 20, ARRAYS = 8, ELEMENTS = 4096 };
typedef struct {
    int size;
    double t, product, param[ELEMENTS], m[ELEMENTS], v[ELEMENTS];
} Array;
static struct { double lr, beta1, beta2, epsilon, weight_decay, momentum_decay; } h;
static int arrays, wide, maximize, decoupled; /* wide: float64, else float32 */
static Array array[ARRAYS];
static char line[LINE];

/* What follows in the line. */
static const char *after(const char *key) { return strstr(line, key) + strlen(key); }

/* The number after a name, as it was where the line lacks it. */
static double number(const char *name, double before) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *found = strstr(line, key);
    if (!found) return before;
    found += strlen(key);
    return strtod(found + (*found == '"'), NULL);
}

static void read_hyper(void) {
    h.lr = number("lr", h.lr);
    h.beta1 = number("beta1", h.beta1);
    h.beta2 = number("beta2", h.beta2);
    h.epsilon = number("epsilon", h.epsilon);
    h.weight_decay = number("weight_decay", h.weight_decay);
    h.momentum_decay = number("momentum_decay", h.momentum_decay);
}

/* Every number is kept in a double; one of float32 is rounded where it is stored. */
static double stored(double x) { return wide ? x : (float)x; }

/* The elements of the next string of bits, and how many there are; -1 for null. */
static int decode(const char **at, double *x, int wide) {
    *at += strcspn(*at, "\"n");
    if (**at == 'n') return *at += 4, -1;
    int digits = wide ? 16 : 8, n = 0;
    for (++*at; **at != '"'; *at += digits, n++) {
        char text[17] = {0};
        memcpy(text, *at, digits);
        uint64_t bits = strtoull(text, NULL, 16);
        uint32_t half = (uint32_t)bits;
        float narrow;
        if (n == ELEMENTS) exit(fprintf(stderr, "more than %d elements\n", ELEMENTS));
        memcpy(&narrow, &half, sizeof half);
        memcpy(&x[n], &bits, sizeof bits);
        if (!wide) x[n] = narrow;
    }
    return ++*at, n;
}

static void encode(const char *name, size_t offset) {
    printf(", \"%s\": [", name);
    for (int i = 0; i < arrays; i++) {
        const double *x = (const double *)((const char *)&array[i] + offset);
        printf(i ? ", \"" : "\"");
        for (int j = 0; j < array[i].size; j++) {
            uint64_t bits;
            uint32_t half;
            float narrow = (float)x[j];
            memcpy(&bits, &x[j], sizeof bits);
            memcpy(&half, &narrow, sizeof half);
            if (wide) printf("%016" PRIx64, bits);
            else printf("%08" PRIx32, half);
        }
        printf("\"");
    }
    printf("]");
}

static double mu(double t) { return h.beta1 * (1 - 0.5 * pow(0.96, t * h.momentum_decay)); }

static void step(Array *a, const double *grad) {
    double t = ++a->t; /* steps done */
    a->product *= mu(t);
    double here = (1 - mu(t)) / (1 - a->product);
    double ahead = mu(t + 1) / (1 - a->product * mu(t + 1));
    for (int j = 0; j < a->size; j++) {
        double p = a->param[j], g = maximize ? -grad[j] : grad[j];
        if (decoupled) p -= h.lr * h.weight_decay * p;
        else g += h.weight_decay * p;
        a->m[j] = stored(h.beta1 * a->m[j] + (1 - h.beta1) * g);
        a->v[j] = stored(h.beta2 * a->v[j] + (1 - h.beta2) * g * g);
        double v_hat = a->v[j] / (1 - pow(h.beta2, t));
        a->param[j] = stored(p - h.lr * (ahead * a->m[j] + here * g) / (sqrt(v_hat) + h.epsilon));
    }
}

static void start(void) {
    wide = strstr(line, "\"dtype\": \"float64\"") != NULL;
    read_hyper();
    maximize = (int)number("maximize", 0);
    decoupled = (int)number("decoupled_weight_decay", 0);
    const char *at = after("\"params\": [");
    for (arrays = 0; *at != ']' && arrays < ARRAYS; arrays++, at += strspn(at, ", ")) {
        array[arrays] = (Array){.product = 1};
        array[arrays].size = decode(&at, array[arrays].param, wide);
    }
}

/* One quantity of the state, from its place in an array; a number is a float64. */
static void set(const char *at, size_t offset, int wide) {
    for (int i = 0; i < arrays; i++) decode(&at, (double *)((char *)&array[i] + offset), wide);
}

int main(void) {
    while (fgets(line, LINE, stdin)) {
        printf("{\"seq\": %d", (int)number("seq", 0));
        if (strstr(line, "\"op\": \"hello\"")) {
            const char *suite = after("\"suite\": \"");
            printf(", \"rop\": 1, \"optimizer\": \"nadam\", \"suite\": \"%.*s\"",
                   (int)strcspn(suite, "\""), suite);
            printf(", \"name\": \"nadam.c\", \"version\": \"1\", \"takes\": [\"float32\", "
                   "\"float64\", \"several\", \"missing\", \"set_state\", \"lr\", \"beta1\", \"beta2\", "
                   "\"epsilon\", \"weight_decay\", \"momentum_decay\", \"maximize\", "
                   "\"decoupled_weight_decay\"]");
        } else if (strstr(line, "\"op\": \"case\"")) {
            start();
        } else if (strstr(line, "\"op\": \"step\"")) {
            const char *at = after("\"grads\": [");
            double grad[ELEMENTS];
            read_hyper();
            for (int i = 0; i < arrays; i++)
                if (decode(&at, grad, wide) >= 0) step(&array[i], grad);
            encode("param", offsetof(Array, param));
            encode("m", offsetof(Array, m));
            encode("v", offsetof(Array, v));
        } else if (strstr(line, "\"op\": \"set_state\"")) {
            set(after("\"t\": ["), offsetof(Array, t), 1);
            set(after("\"product\": ["), offsetof(Array, product), 1);
            set(after("\"param\": ["), offsetof(Array, param), wide);
            set(after("\"m\": ["), offsetof(Array, m), wide);
            set(after("\"v\": ["), offsetof(Array, v), wide);
        }
        puts("}");
        fflush(stdout);
    }
}
